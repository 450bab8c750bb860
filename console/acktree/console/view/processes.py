"""Lists the processes of a topology, by their reports, and how many of each component it needs. Pure.

Invariant: a process that went silent stays for SILENT_SHOWN_S: its last failure explains its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from acktree.console.view.documents import ProcessStatus, Status
from acktree.console.view.reports import SILENT_AFTER_S, Process, Reports, is_starting
from acktree.core.reports.last_error import facts_of

SILENT_SHOWN_S = 600.0
MAX_ROWS = 200
ROLES = ("spout", "bolt", "acker")


@dataclass(frozen=True, slots=True)
class Needed:
    """The processes of a component: how many have reported, how many it needs at least, what waits for it."""

    role: str
    component: str
    running: int
    needed: int
    lag: int

    @property
    def missing(self) -> int:
        return max(0, self.needed - self.running)


def needed_processes(status: Status) -> list[Needed]:
    """Return each component of the published topology, whether or not any process of it has ever run."""
    rows = [Needed("spout", each.name, each.processes, each.tasks, each.lag) for each in status.spouts]
    rows += [Needed("bolt", each.name, each.processes, 1, each.lag) for each in status.bolts]
    ackers = len(status.ackers), min(1, status.ackers_wanted)
    return [*rows, Needed("acker", "acker", *ackers, status.acker_lag)]


def make_processes(reports: Reports, now_ms: int) -> tuple[ProcessStatus, ...]:
    """Return the processes that reported within SILENT_SHOWN_S, MAX_ROWS at most, by role and component.

    One that has started reports under another name from then on.
    """
    since_ms = now_ms - 1000 * SILENT_SHOWN_S
    started_ms = now_ms - 1000 * SILENT_AFTER_S
    shown = [
        process
        for role in ROLES
        for process in reports.processes_of(role)
        if process.latest.time_ms >= (started_ms if is_starting(process) else since_ms)
    ]
    newest = sorted(shown, key=lambda process: -process.latest.time_ms)[:MAX_ROWS]
    rows = [_process(process, now_ms) for process in newest]
    return tuple(sorted(rows, key=lambda row: (ROLES.index(row.role), row.component, row.instance)))


def _process(process: Process, now_ms: int) -> ProcessStatus:
    report = process.latest
    facts = facts_of(report.values)
    reported_s = max(0.0, (now_ms - report.time_ms) / 1000)
    return ProcessStatus(
        role=report.role,
        component=report.component,
        instance=report.instance,
        host=facts.host,
        pid=facts.pid,
        task=_whole(report.values.get("task")),
        partitions=_partitions(report.values),
        started_ms=facts.started_ms,
        reported_ms=report.time_ms,
        reported_s=reported_s,
        is_silent=reported_s > SILENT_AFTER_S,
        last_error=facts.last_error,
        last_error_ms=facts.last_error_ms,
    )


def _partitions(values: Mapping[str, object]) -> int | None:
    """Return how many partitions a process has: as it reports, else how many it reports of."""
    reported = _whole(values.get("partitions"))
    of_each = sum(name.startswith("next.") for name in values)
    return of_each or None if reported is None else reported


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and 0 <= value < 1e9 else None
