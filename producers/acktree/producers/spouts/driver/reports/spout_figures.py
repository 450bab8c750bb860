"""Computes the figures of a spout's driver: Spark's progress, and its reports. Changes no state."""

from collections.abc import Iterable, Mapping

from acktree.core import world
from acktree.core.reports.breaker_watch import BreakerWatch
from acktree.core.reports.stats import Report
from acktree.core.topology.flow import SetFlow, flow_figures
from acktree.producers.ledger.task import TaskLedger

COUNTS = ("emitted", "completed", "failed", "timed_out", "replayed", "dead_lettered", "rejected", "lost")


def progress(tasks: Iterable[TaskLedger], ends: Mapping[int, int]) -> dict[str, int]:
    """Return how far the spout is, in records: pending, not done of the logs, counts since the start.

    ``ends`` is where the logs end, by slot.
    """
    tasks = tuple(tasks)
    frontiers = {slot: ledger.frontier for task in tasks for slot, ledger in task.slots.items()}
    lag = sum(max(0, ends[slot] - frontier) for slot, frontier in frontiers.items() if slot in ends)
    counted = {name: sum(task.counters[name] for task in tasks) for name in COUNTS}
    return {"pending": sum(task.pending for task in tasks), "frontierLag": lag, **counted}


def reports(
    spout: str, tasks: Iterable[TaskLedger], version: int, flow: SetFlow, watch: BreakerWatch, now_s: float
) -> tuple[Report, ...]:
    """Return what each task reports of itself under a version of the topology and a flow of its spout."""
    now_ms = world.wall_ms()
    common = {"version": version, **flow_figures(flow)}
    return tuple(
        Report(
            *("spout", spout, f"{spout}-{task.task}", now_ms),
            task.figures(now_s) | watch.figures(len(task.held), now_s) | common,
        )
        for task in tasks
    )
