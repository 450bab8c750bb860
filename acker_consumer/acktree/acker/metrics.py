"""The acker's figures for Prometheus: what the latest report said, under the names docs/acker.md lists.

Invariant: a scrape reads a finished report and never a table, so it cannot slow or disturb the loop. Served
on loopback unless told otherwise: figures are nobody else's business by default.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.schemas.metrics import LOOPBACK, Served, serve
from acktree.schemas.stats import Value

__all__ = ["COUNTERS", "GAUGES", "LOOPBACK", "AckerCollector", "serve_metrics"]

PREFIX = "acktree_acker_"

COUNTERS = {
    "acked": "Roots told as acked",
    "failed": "Roots told as failed",
    "timed_out": "Roots told as timed out",
    "folded": "Entries of records folded",
    "duplicated_inits": "Inits ignored because the root had one",
    "late": "Acks, fails and resets of roots that had their verdict",
    "dropped_orphans": "Orphans that timed out or made room",
    "refused_orphans": "Orphans never kept, at the cap",
    "renewed_orphans": "Times an orphan ceased to hold the cut where it was born",
    "set_aside": "Records not folded",
    "refolds": "Partitions taken over from a cut that is not the beginning",
    "rebalances": "Assignments got from the group",
    "failed_commits": "Commits that the group refused",
}
GAUGES = {
    "partitions": ("partitions", "Partitions held"),
    "pending": ("pending", "Roots without a verdict"),
    "orphans": ("orphans", "Roots without an init"),
    "oldest_age_s": ("oldest_age_seconds", "Time since the oldest entry was born"),
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
