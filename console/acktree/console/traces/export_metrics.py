"""Serves the metrics of `acktree export-traces`.

Invariant: every tree that is due counts once: as exported, omitted, refused or broken.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.console.traces.export import TraceExport
from acktree.console.traces.otlp import OtlpSender

PREFIX = "acktree_traces_"
EXPORTED = "exported "
COUNTERS = {
    "spans": "Spans that the receiver accepted",
    "incomplete": "Exported trees with missing parts",
    "refused": "Trees left out because the receiver will never accept them",
    "broken": "Trees left out because a defect left them without spans",
    "failed_exports": "Requests that are retried",
}


class ExportCollector(Collector):
    """Turns the counters of one export into metrics."""

    def __init__(self, topology: str, export: TraceExport, sender: OtlpSender) -> None:
        self._topology, self._export, self._sender = topology, export, sender

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        counters = dict(self._export.counters)
        exported = _counter("exported", "Trees that the receiver accepted", "result")
        for name, count in counters.items():
            if name.startswith(EXPORTED):
                exported.add_metric([self._topology, name.removeprefix(EXPORTED)], count)
        yield exported
        omitted = _counter("omitted", "Trees left out, by --sample or --per-minute", "result", "reason")
        for (kind, reason), count in dict(self._export.selection.omitted).items():
            omitted.add_metric([self._topology, kind, reason], count)
        yield omitted
        for name, text in COUNTERS.items():
            made = _counter(name, text)
            made.add_metric([self._topology], counters.get(name, 0))
            yield made
        rejected = _counter("rejected_spans", "Spans rejected by a receiver that accepted their request")
        rejected.add_metric([self._topology], self._sender.rejected_spans)
        yield rejected


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=["topology", *labels])
