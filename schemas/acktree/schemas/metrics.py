"""Reports as Prometheus metrics, and the page that serves them; docs/metrics.md has a sample of each.

Invariant: a scrape reads complete reports and no state of a running loop, so it cannot slow or disturb it.
Served on loopback unless configured otherwise. Needs prometheus-client.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.schemas.errors import NoMetrics
from acktree.schemas.stats import Report, Value

LOOPBACK = "127.0.0.1"


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
        "unwritable": ("unwritable", "Children that their topic never takes, so they were not emitted"),
        "misuses": ("misuses", "Calls of the bolt that were refused, as they break a rule of the library"),
        "acked": ("acked", "Tuples acked"),
        "failed": ("failed", "Tuples failed"),
        "set_aside": ("set_aside", "Records that could not be tuples"),
        "dropped": ("dropped", "Tuples in hand that went to another worker"),
        "never_acked": ("never_acked", "Tuples neither acked nor failed at a stop"),
        "busy_s": ("busy_seconds", "Time spent in execute"),
        "process_s": ("process_seconds", "Sum over tuples of the time from execute to ack or fail"),
    },
    {
        "in_hand": ("in_hand", "Tuples neither acked nor failed"),
        "paused": ("paused_partitions", "Partitions not read because of the tuples in hand"),
        "lag": ("lag_records", "Records that wait in the partitions held"),
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
        "dead_lettered": ("dead_lettered", "Records that used up their attempts, on the dead-letter topic"),
        "absent": ("absent", "Offsets proven to hold no record"),
        "overdue": ("overdue", "Records replayed because no result came within the retention"),
        "set_aside": ("set_aside", "Result records that could not be read"),
        "rewinds": ("rewinds", "Resets of the group's offset that were obeyed"),
        "lost": (
            "lost",
            "Records not done that could not be read any more, given up by failOnDataLoss=false",
        ),
        "crowded": ("crowded", "Times that a partition waited, with too many stretches of blocks in flight"),
        "pending_s": ("pending_seconds", "Sum over records of the time from the first emission to done"),
    },
    {"pending": ("pending", "Records emitted and not done")},
)

PARTITION_GAUGES = {
    "frontier": ("frontier_offset", "Next offset to commit"),
    "next": ("next_offset", "Next offset to emit for the first time"),
    "held_s": ("frontier_held_seconds", "Time since the record at the frontier was emitted, 0 if none is"),
}

NAMES: Mapping[str, Names] = {"bolt": BOLT, "spout": SPOUT}


class ReportCollector(Collector):
    """Turns the reports that ``read`` returns into metrics with the labels topology, component and task."""

    def __init__(self, topology: str, read: Callable[[], Iterable[Report]]) -> None:
        self._topology, self._read = topology, read

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the latest reports."""
        families: dict[str, Metric] = {}
        for report in self._read():
            if (names := NAMES.get(report.role)) is not None:
                self._add(families, names, report)
        yield from families.values()

    def _add(self, families: dict[str, Metric], names: Names, report: Report) -> None:
        task = {"task": str(report.values["task"])} if "task" in report.values else {}
        labels = {"topology": self._topology, report.role: report.component, **task}
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


class Served(NamedTuple):
    """A running metrics server."""

    server: WSGIServer
    url: str

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def serve(collector: Collector, port: int, host: str = LOOPBACK) -> Served:
    """Serve a collector's metrics at ``/metrics``; port 0 takes a free one.

    Raises:
        NoMetrics: the port cannot be bound.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise NoMetrics(f"cannot serve metrics on {host}:{port}: {error}; choose another port") from error
    return Served(server, f"http://{host}:{server.server_port}/metrics")


def serve_reports(
    topology: str, read: Callable[[], Iterable[Report]], port: int, host: str = LOOPBACK
) -> Served:
    """Serve the reports of a process. Raises NoMetrics."""
    return serve(ReportCollector(topology, read), port, host)
