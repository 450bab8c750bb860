"""Serves reports as Prometheus metrics; docs/metrics.md and docs/acker.md have a sample of each.

Invariant: a scrape reads complete reports and the loop's liveness, none of its other state: it cannot slow or
disturb the loop, and answers while the loop is stalled. Every series has the label topology. Needs
prometheus-client.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.core import world
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stats import Report, Value


class Names(NamedTuple):
    """The metrics of one role: figure -> (metric without the prefix, help text)."""

    prefix: str
    counters: Mapping[str, tuple[str, str]]
    gauges: Mapping[str, tuple[str, str]]


BOLT = Names(
    "acktree_bolt_",
    {
        "executed": ("executed", "Tuples executed"),
        "emitted": ("emitted", "Tuples emitted"),
        "unwritable": ("unwritable", "Children not emitted because their topic would never accept them"),
        "misuses": (
            "misuses",
            "Calls of the bolt that were rejected because they break a rule of the library",
        ),
        "acked": ("acked", "Tuples acked"),
        "failed": ("failed", "Tuples failed"),
        "invalid": ("invalid", "Records that are not valid tuples"),
        "dropped": ("dropped", "Tuples in hand whose partition moved to another worker"),
        "never_acked": ("never_acked", "Tuples neither acked nor failed at a stop"),
        "busy_s": ("busy_seconds", "Time spent in execute"),
        "process_s": ("process_seconds", "Sum over tuples of the time from execute to ack or fail"),
    },
    {
        "in_hand": ("in_hand", "Tuples neither acked nor failed"),
        "paused": ("paused_partitions", "Partitions not read because of the tuples in hand"),
        "lag": ("lag_records", "Records waiting in the assigned partitions"),
    },
)

SPOUT = Names(
    "acktree_spout_",
    {
        "emitted": ("emitted", "Records emitted for the first time"),
        "completed": ("completed", "Records whose tree is done"),
        "acked": ("completed", "Records whose tree is done"),
        "failed": ("failed", "Emissions failed by a task"),
        "timed_out": ("timed_out", "Emissions that timed out"),
        "replayed": ("replayed", "Records emitted again"),
        "dead_lettered": (
            "dead_lettered",
            "Records that exhausted their attempts, sent to the dead-letter topic",
        ),
        "rejected": ("rejected", "Records rejected by a bolt, sent to the dead-letter topic"),
        "absent": ("absent", "Offsets proven to hold no record"),
        "overdue": ("overdue", "Records replayed because no result came within the retention"),
        "invalid": ("invalid", "Result records that could not be read"),
        "rewinds": ("rewinds", "Resets of the group's offset that were applied"),
        "lost": (
            "lost",
            "Records that were lost before they were done, counted as done by failOnDataLoss=false",
        ),
        "breaker_opened": ("breaker_opened", "Times the breaker opened"),
        "pending_s": ("pending_seconds", "Sum over completed records of the time since their first emission"),
    },
    {
        "pending": ("pending", "Records emitted and not done"),
        "breaker_open": (
            "breaker_open",
            "1 while the breaker is open and only occasional probes are emitted",
        ),
        "held_back": (
            "held_back",
            "Records out of attempts that the breaker keeps from the dead-letter topic",
        ),
        "paused": ("paused", "1 while the spout is paused or drained by an operator"),
    },
)

ACKER = Names(
    "acktree_acker_",
    {
        "acked": ("acked", "Roots reported as acked"),
        "failed": ("failed", "Roots reported as failed"),
        "timed_out": ("timed_out", "Roots reported as timed out"),
        "folded": ("folded", "Entries of records folded"),
        "duplicated_inits": ("duplicated_inits", "Inits ignored because the root had one"),
        "late": ("late", "Acks, fails and resets of finished roots"),
        "dropped_orphans": ("dropped_orphans", "Orphans that timed out or were evicted"),
        "refused_orphans": ("refused_orphans", "Orphans refused because the table was full"),
        "renewed_orphans": (
            "renewed_orphans",
            "Times an orphan was moved to a newer bucket, so that it no longer holds back the cut",
        ),
        "invalid": ("invalid", "Records not folded"),
        "refolds": ("refolds", "Partitions taken over from a cut that is not the beginning"),
        "rebalances": ("rebalances", "Assignments received from the group"),
        "failed_commits": ("failed_commits", "Commits rejected by the group"),
    },
    {
        "partitions": ("partitions", "Partitions held"),
        "pending": ("pending", "Roots with an init that are not finished"),
        "orphans": ("orphans", "Roots without an init"),
        "oldest_age_s": ("oldest_age_seconds", "Time since the oldest entry was created"),
        "oldest_root_age_s": (
            "oldest_root_age_seconds",
            "Time since the last message of the oldest pending root",
        ),
        "behind_s": ("behind_seconds", "How far the slowest bolt is behind, 0 if none is"),
        "lag": ("lag_records", "Records between the position and the end of both topics"),
        "cut_lag": ("cut_lag_records", "Records that a new owner would fold again"),
        "table_bytes": ("table_bytes", "Memory of the tables"),
    },
)

PARTITION_GAUGES = {
    "frontier": ("frontier_offset", "Next offset to commit"),
    "next": ("next_offset", "Next offset to emit for the first time"),
    "held_s": ("frontier_held_seconds", "Time since the record at the frontier was emitted, 0 if none is"),
}

PROCESS_GAUGES = {
    "report_age": ("report_age_seconds", "Time since the newest report was made"),
    "stall": (
        "stalled_seconds",
        "Duration of the loop's current turn, without waits for the broker",
    ),
    "broker_wait": ("broker_wait_seconds", "Time that the loop's current turn has waited for the broker"),
    "stuck": ("stuck_seconds", "The stall of a stuck loop, with the record that its user code is executing"),
}

NAMES: Mapping[str, Names] = {"bolt": BOLT, "spout": SPOUT, "acker": ACKER}


class ReportCollector(Collector):
    """Turns the reports that ``read`` returns into metrics with the labels topology, component and task.

    ``progress`` is that of the loop that makes them; None if there is no such loop, as in Spark.
    """

    def __init__(
        self, topology: str, read: Callable[[], Iterable[Report]], progress: Liveness | None = None
    ) -> None:
        self._topology, self._read, self._progress = topology, read, progress

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the latest reports."""
        families: dict[str, Metric] = {}
        for report in self._read():
            if (names := NAMES.get(report.role)) is not None:
                self._add(families, names, report)
                self._add_process(families, report)
        yield from families.values()

    def _add(self, families: dict[str, Metric], names: Names, report: Report) -> None:
        component = {} if report.component == report.role else {report.role: report.component}
        labels = {"topology": self._topology, **component, **_task(report)}
        for figure, value in report.values.items():
            if isinstance(value, str):
                continue
            kind, _, place = figure.partition(".")
            if figure in names.counters:
                _sample(families, CounterMetricFamily, names.prefix, names.counters[figure], labels, value)
            elif figure in names.gauges:
                _sample(families, GaugeMetricFamily, names.prefix, names.gauges[figure], labels, value)
            elif place and kind in PARTITION_GAUGES:
                topic, _, partition = place.rpartition(".")
                where = labels | {"topic": topic, "partition": partition}
                _sample(families, GaugeMetricFamily, names.prefix, PARTITION_GAUGES[kind], where, value)

    def _add_process(self, families: dict[str, Metric], report: Report) -> None:
        labels = {"topology": self._topology, "role": report.role, "component": report.component}
        labels |= _task(report)

        def add(name: str, value: float, more: Mapping[str, str]) -> None:
            gauge = PROCESS_GAUGES[name]
            _sample(families, GaugeMetricFamily, "acktree_process_", gauge, {**labels, **more}, value)

        add("report_age", max(0.0, (world.wall_ms() - report.time_ms) / 1000), {})
        progress = self._progress
        if progress is None:
            return
        stalled_s, is_stuck = progress.stalled_s, progress.is_stuck
        add("stall", stalled_s, {})
        add("broker_wait", progress.broker_wait_s, {})
        if is_stuck:
            executing = {name: str(progress.figures().get(name, "")) for name in STUCK_LABELS}
            add("stuck", stalled_s, executing)


STUCK_LABELS = ("executing", "executing_root", "calling")


def _task(report: Report) -> dict[str, str]:
    return {"task": str(report.values["task"])} if "task" in report.values else {}


def _sample(
    families: dict[str, Metric],
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    prefix: str,
    name: tuple[str, str],
    labels: Mapping[str, str],
    value: Value,
) -> None:
    metric, text = prefix + name[0], name[1]
    if metric not in families:
        families[metric] = family(metric, text, labels=list(labels))
    families[metric].add_metric(list(labels.values()), float(value))  # type: ignore[attr-defined]
