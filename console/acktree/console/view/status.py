"""Combines a snapshot and the reports into the Status that command line and page show. Pure.

Invariant: what the log and the groups say wins over reports; a report is trusted for rates and latencies
only. Reports of components that the topology does not have are ignored.
"""

import re
from collections.abc import Iterable, Mapping

from acktree.console.view.breakers import breaker_of
from acktree.console.view.documents import (
    AckerStatus,
    BoltStatus,
    InputStatus,
    PartitionStatus,
    PendingRecord,
    SpoutStatus,
    Standstill,
    Status,
    TopicRate,
    Totals,
    WindowFigures,
)
from acktree.console.view.processes import make_processes
from acktree.console.view.reports import WINDOWS_S, Process, Reports
from acktree.console.view.reports import Totals as Counts
from acktree.console.view.snapshot import Snapshot
from acktree.console.view.source_view import SlotView
from acktree.console.view.stuck import find_stuck, held_ages, stuck_after_s
from acktree.schemas.flow import Flow

OLDEST = 20
ROOT = re.compile("[0-9a-f]{16}")
Rates = Mapping[tuple[str, str | None], float]


def make_status(
    snapshot: Snapshot, reports: Reports, edges: Rates | None = None, after_s: float | None = None
) -> Status:
    """Return the whole status; ``edges`` are records a second by (topic, reader or None)."""
    topology, now_ms = snapshot.topology, snapshot.time_ms
    apply_reported_offsets(snapshot, reports)
    partitions = tuple(_partition(snapshot, reports, view) for view in snapshot.views.values())
    spouts = tuple(_spout(snapshot, reports, name, partitions) for name in topology.spouts)
    bolts = tuple(_bolt(snapshot, reports, name) for name in topology.bolts)
    ackers = tuple(_acker(process, now_ms) for process in reports.alive("acker", None, now_ms))
    lag = _acker_lag(snapshot, ackers)
    group = snapshot.groups.get(topology.acker_group)
    standstills = tuple(_standstills(reports, now_ms))
    stuck = find_stuck(
        topology,
        stuck_after_s(topology, after_s),
        standstills,
        partitions,
        spouts,
        bolts,
        ackers,
        lag,
        snapshot.groups,
    )
    return Status(
        topology=topology.name,
        version=topology.version,
        ackers_wanted=topology.ackers,
        message_timeout_s=topology.message_timeout_s,
        time_ms=now_ms,
        stuck=stuck,
        totals=_totals(snapshot, spouts),
        spouts=spouts,
        partitions=partitions,
        bolts=bolts,
        acker_group=topology.acker_group,
        acker_members=len(group.members) if group else 0,
        acker_lag=lag,
        ackers=ackers,
        processes=make_processes(reports, now_ms),
        standstills=standstills,
        edges=_edges(snapshot, edges or {}),
        oldest=tuple(oldest_pending(snapshot, OLDEST)),
        reports=reports.accepted,
        garbage=reports.garbage,
        notes=tuple(snapshot.notes),
        complete=snapshot.is_complete,
    )


def apply_reported_offsets(snapshot: Snapshot, reports: Reports) -> None:
    """Apply how far spouts report to have emitted, and since when they know of what holds a frontier."""
    for view in snapshot.views.values():
        alive = reports.alive("spout", view.slot.spout, snapshot.time_ms)
        reported_next = max(_figure(alive, f"next.{view.slot.topic}.{view.slot.partition}"), default=None)
        if reported_next is not None and view.slot.topic:
            view.next_offset = max(int(reported_next), view.next_offset or 0)
        place = f"{view.slot.topic}.{view.slot.partition}"
        for process in alive:
            held_s = next(iter(_figure([process], f"held_s.{place}")), 0.0)
            if held_s > 0 and process.latest.values.get(f"frontier.{place}") == view.frontier:
                view.held_since_ms = process.latest.time_ms - int(1000 * held_s)


def oldest_pending(snapshot: Snapshot, limit: int, older_than_s: float = 0.0) -> list[PendingRecord]:
    """Return the pending records of all source partitions, the oldest first; age unknown comes last.

    With ``older_than_s`` only those whose first emission is longer ago, or unknown.
    """
    timeout_s = snapshot.topology.message_timeout_s
    found = [p for view in snapshot.views.values() for p in view.oldest(snapshot.time_ms, timeout_s, limit)]
    if older_than_s:
        found = [each for each in found if each.age_s is None or each.age_s > older_than_s]
    ages = {id(each): -1.0 if each.known_age_s is None else each.known_age_s for each in found}
    return sorted(found, key=lambda each: (-ages[id(each)], each.topic, each.offset))[:limit]


def _figure(processes: Iterable[Process], name: str) -> list[float]:
    found = (process.latest.values.get(name) for process in processes)
    return [float(value) for value in found if isinstance(value, int | float)]


def _partition(snapshot: Snapshot, reports: Reports, view: SlotView) -> PartitionStatus:
    slot, topology = view.slot, snapshot.topology
    place = slot.topic, slot.partition
    alive = reports.alive("spout", slot.spout, snapshot.time_ms)
    name = f"{slot.topic}.{slot.partition}"
    end = snapshot.ends.get(place, view.end)
    held = next(view.offsets(), None)
    held_by = (
        None if held is None else view.pending_record(held, snapshot.time_ms, topology.message_timeout_s)
    )
    since_s = max(_figure(alive, f"held_s.{name}"), default=None)
    start = snapshot.starts.get(place, 0)
    base = view.frontier if view.frontier is not None else start
    return PartitionStatus(
        spout=slot.spout,
        topic=slot.topic,
        partition=slot.partition,
        slot=slot.slot,
        task=topology.task_of(slot),
        log_start=start,
        log_end=end,
        frontier=view.frontier,
        next_offset=view.end if view.frontier is not None else None,
        done_above=len(view.done),
        pending=view.pending,
        lag=max(0, end - base - len(view.done)) if slot.topic else view.pending,
        held_by=held_by,
        held_s=since_s if held is not None else None,
    )


def _ratio_ms(total_s: float, count: float) -> float | None:
    return round(1000 * total_s / count, 3) if count > 0 else None


def _windows(reports: Reports, role: str, name: str, now_ms: int) -> dict[str, WindowFigures]:
    made = {}
    for label, seconds in WINDOWS_S.items():
        counted, lasted_s = reports.counted(role, name, seconds, now_ms)
        made[label] = _spout_window(counted) if role == "spout" else _bolt_window(counted, lasted_s)
    return made


def _spout_window(counted: Counts) -> WindowFigures:
    acked = counted.get("completed", 0) + counted.get("acked", 0)
    waited_s = counted.get("pending_s")
    return WindowFigures(
        emitted=int(counted.get("emitted", 0)),
        acked=int(acked),
        failed=int(counted.get("failed", 0)),
        timed_out=int(counted.get("timed_out", 0)),
        complete_latency_ms=None if waited_s is None else _ratio_ms(waited_s, acked),
    )


def _bolt_window(counted: Counts, lasted_s: float) -> WindowFigures:
    executed = counted.get("executed", 0)
    busy_s, process_s = counted.get("busy_s"), counted.get("process_s")
    answered = counted.get("acked", 0) + counted.get("failed", 0)
    return WindowFigures(
        emitted=int(counted.get("emitted", 0)),
        acked=int(counted.get("acked", 0)),
        failed=int(counted.get("failed", 0)),
        process_latency_ms=None if process_s is None else _ratio_ms(process_s, answered),
        execute_latency_ms=None if busy_s is None else _ratio_ms(busy_s, executed),
        capacity=round(busy_s / lasted_s, 4) if busy_s is not None and lasted_s > 0 else None,
    )


def _per_s(rates: Counts | None, *names: str) -> float | None:
    return None if rates is None else sum(rates.get(name, 0.0) for name in names)


def _sum_known(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _spout(
    snapshot: Snapshot, reports: Reports, name: str, partitions: Iterable[PartitionStatus]
) -> SpoutStatus:
    now_ms = snapshot.time_ms
    mine = [entry for entry in partitions if entry.spout == name]
    rates = reports.rates("spout", name, now_ms)
    ever, _ = reports.counted("spout", name, None, now_ms)
    return SpoutStatus(
        name=name,
        flow=snapshot.flows.get(name, Flow.RUNNING).value,
        tasks=snapshot.topology.spouts[name].tasks,
        processes=len(reports.alive("spout", name, now_ms)),
        pending=sum(entry.pending for entry in mine),
        lag=sum(entry.lag for entry in mine),
        oldest_pending_s=max((age for entry in mine for age in held_ages(entry)), default=None),
        emitted_per_s=_per_s(rates, "emitted"),
        completed_per_s=_per_s(rates, "completed", "acked"),
        failed_per_s=_per_s(rates, "failed"),
        timed_out=int(ever.get("timed_out", 0)),
        replayed=int(ever.get("replayed", 0)),
        dead_lettered=int(ever.get("dead_lettered", 0)),
        windows=_windows(reports, "spout", name, now_ms),
        breaker=breaker_of(reports.alive("spout", name, now_ms)),
    )


def _bolt(snapshot: Snapshot, reports: Reports, name: str) -> BoltStatus:
    topology, now_ms = snapshot.topology, snapshot.time_ms
    commits, reads = snapshot.bolt_commits[name], topology.bolts[name].reads
    inputs = []
    for place, end in snapshot.ends.items():
        if place[0] in reads:
            committed = commits[place].next_offset if place in commits else None
            start = snapshot.starts.get(place, 0)
            lag = max(0, end - max(start, committed if committed is not None else start))
            inputs.append(InputStatus(*place, committed, end, lag))
    group = snapshot.groups.get(topology.group_of(name))
    rates = reports.rates("bolt", name, now_ms)
    alive = reports.alive("bolt", name, now_ms)
    return BoltStatus(
        name=name,
        group=topology.group_of(name),
        state=group.state if group else "UNKNOWN",
        members=len(group.members) if group else 0,
        processes=len(alive),
        lag=sum(entry.lag for entry in inputs),
        in_hand=int(sum(_figure(alive, "in_hand"))),
        executed_per_s=_per_s(rates, "executed"),
        emitted_per_s=_per_s(rates, "emitted"),
        failed_per_s=_per_s(rates, "failed"),
        inputs=tuple(inputs),
        windows=_windows(reports, "bolt", name, now_ms),
    )


def _acker(process: Process, now_ms: int) -> AckerStatus:
    values = process.latest.values

    def whole(name: str) -> int:
        value = values.get(name, 0)
        return int(value) if isinstance(value, int | float) and abs(value) < 1e18 else 0

    age_s = values.get("oldest_root_age_s", 0.0)
    root = values.get("oldest_root")
    return AckerStatus(
        instance=process.latest.instance,
        partitions=whole("partitions"),
        pending=whole("pending"),
        orphans=whole("orphans"),
        folded_per_s=_per_s(process.rates(now_ms), "folded"),
        lag=whole("lag"),
        cut_lag=whole("cut_lag"),
        set_aside=whole("set_aside"),
        table_bytes=whole("table_bytes"),
        oldest_root=root if isinstance(root, str) and root else None,
        oldest_root_age_s=float(age_s) if isinstance(age_s, int | float) else 0.0,
        reported_s=max(0.0, (now_ms - process.latest.time_ms) / 1000),
    )


def _standstills(reports: Reports, now_ms: int) -> Iterable[Standstill]:
    """Yield the processes whose newest report is of a standstill, the longest first."""
    found = []
    for role in ("bolt", "spout", "acker"):
        for process in reports.alive(role, None, now_ms):
            report = process.latest
            for standstill_s in _figure([process], "standstill_s"):
                texts = (report.values.get(name) for name in ("executing", "executing_root", "calling"))
                executing, root, calling = (text if isinstance(text, str) else None for text in texts)
                limit_s = next(iter(_figure([process], "stuck_after_s")), None)
                found.append(
                    Standstill(
                        role,
                        report.component,
                        report.instance,
                        standstill_s,
                        limit_s,
                        executing=executing,
                        root=root if root and ROOT.fullmatch(root) else None,
                        calling=calling,
                    )
                )
    return sorted(found, key=lambda standstill: -standstill.standstill_s)


def _acker_lag(snapshot: Snapshot, ackers: tuple[AckerStatus, ...]) -> int:
    """Return how many control records wait: as the ackers report, or above the cut where none runs."""
    return sum(acker.lag for acker in ackers) if ackers else snapshot.cut_lag


def _totals(snapshot: Snapshot, spouts: tuple[SpoutStatus, ...]) -> Totals:
    topic = snapshot.topology.dead_letter_topic
    dead_letters = sum(
        end - snapshot.starts.get(place, 0) for place, end in snapshot.ends.items() if place[0] == topic
    )
    ages = [spout.oldest_pending_s for spout in spouts if spout.oldest_pending_s is not None]
    return Totals(
        emitted_per_s=_sum_known(spout.emitted_per_s for spout in spouts),
        completed_per_s=_sum_known(spout.completed_per_s for spout in spouts),
        failed_per_s=_sum_known(spout.failed_per_s for spout in spouts),
        timed_out=sum(spout.timed_out for spout in spouts),
        replayed=sum(spout.replayed for spout in spouts),
        pending=sum(spout.pending for spout in spouts),
        oldest_pending_s=max(ages, default=None),
        dead_letters=dead_letters,
    )


def _edges(snapshot: Snapshot, rates: Rates) -> tuple[TopicRate, ...]:
    topology = snapshot.topology
    found = [TopicRate(topic, None, rates.get((topic, None))) for topic in topology.emitted_topics()]
    for name, table in topology.bolts.items():
        found += [TopicRate(topic, name, rates.get((topic, name))) for topic in table.reads]
    return tuple(found)
