"""The acker's figures for Prometheus: those of the latest report, under the names docs/acker.md lists.

Invariant: a scrape reads a complete report and never a table, so it cannot slow or disturb the loop. Served
on loopback unless configured otherwise.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.schemas.metrics import LOOPBACK, Served, serve
from acktree.schemas.stats import Value

__all__ = ["COUNTERS", "GAUGES", "LOOPBACK", "AckerCollector", "serve_metrics"]

PREFIX = "acktree_acker_"

COUNTERS = {
    "acked": "Roots reported as acked",
    "failed": "Roots reported as failed",
    "timed_out": "Roots reported as timed out",
    "folded": "Entries of records folded",
    "duplicated_inits": "Inits ignored because the root had one",
    "late": "Acks, fails and resets of finished roots",
    "dropped_orphans": "Orphans that timed out or were evicted",
    "refused_orphans": "Orphans refused because the table was full",
    "renewed_orphans": "Times an orphan was moved to a newer bucket, so that it stopped holding the cut back",
    "set_aside": "Records not folded",
    "refolds": "Partitions taken over from a cut that is not the beginning",
    "rebalances": "Assignments received from the group",
    "failed_commits": "Commits that the group refused",
}
GAUGES = {
    "partitions": ("partitions", "Partitions held"),
    "pending": ("pending", "Roots with an init that are not finished"),
    "orphans": ("orphans", "Roots without an init"),
    "oldest_age_s": ("oldest_age_seconds", "Time since the oldest entry was created"),
    "oldest_root_age_s": (
        "oldest_root_age_seconds",
        "Time since the init or last reset of the oldest pending root",
    ),
    "lag": ("lag_records", "Records between the position and the end of both topics"),
    "cut_lag": ("cut_lag_records", "Records that a new owner would fold again"),
    "table_bytes": ("table_bytes", "Memory of the tables"),
}


class AckerCollector(Collector):
    """Turns a report's figures into metrics; ``read`` returns the latest, empty before the first."""

    def __init__(self, read: Callable[[], Mapping[str, Value]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield a metric per figure of the latest report."""
        figures = self._read()
        for name, text in COUNTERS.items():
            if name in figures:
                yield CounterMetricFamily(PREFIX + name, text, float(figures[name]))
        for name, (metric, text) in GAUGES.items():
            if name in figures:
                yield GaugeMetricFamily(PREFIX + metric, text, float(figures[name]))


def serve_metrics(read: Callable[[], Mapping[str, Value]], port: int, host: str = LOOPBACK) -> Served:
    """Serve the figures that ``read`` returns at ``/metrics``; port 0 takes a free one. Raises NoMetrics."""
    return serve(AckerCollector(read), port, host)
