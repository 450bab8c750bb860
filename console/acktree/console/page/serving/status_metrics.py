"""Serves the status of topologies as Prometheus metrics: what should run, and what does.

Invariant: each component of the published topology has a series, whether or not any process of it has ever
run. While the status is not fresh only its age is served: no alert trusts figures that may be old.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from acktree.console.page.serving.watcher import PageState
from acktree.console.view.documents import Status
from acktree.console.view.processes import needed_processes
from acktree.console.view.stuck import KINDS

FRESH_S = 60.0
PREFIX = "acktree_topology_"


class StatusCollector(Collector):
    """Turns the newest status of each topology into metrics; ``readers``, by topology, never wait."""

    def __init__(self, readers: Mapping[str, Callable[[], PageState]]) -> None:
        self._readers = readers

    def collect(self) -> Iterator[Metric]:
        """Yield the age of every status and, of those that are fresh, the figures."""
        states = {topology: read() for topology, read in self._readers.items()}
        age = _gauge("status_age_seconds", "Time since the topology's state was read")
        for topology, state in states.items():
            age.add_metric([topology], state.since_s)
        yield age
        fresh = {
            topology: state.status
            for topology, state in states.items()
            if state.status is not None and state.since_s < FRESH_S
        }
        if fresh:
            yield from _figures(fresh)


def _figures(fresh: Mapping[str, Status]) -> Iterator[Metric]:
    labels = ("role", "component")
    processes = _gauge("processes", "Processes that reported within 20 s", *labels)
    expected = _gauge("processes_expected", "Processes that the topology needs at least", *labels)
    lag = _gauge("lag_records", "Records waiting for the component, by committed offsets", *labels)
    stuck = _gauge("stuck", "Problems that acktree describe reports as stuck, by kind", "kind")
    for topology, status in fresh.items():
        for each in needed_processes(status):
            for gauge, value in ((processes, each.running), (expected, each.needed), (lag, each.lag)):
                gauge.add_metric([topology, each.role, each.component], value)
        kinds = [each.kind for each in status.stuck]
        for kind in KINDS:
            stuck.add_metric([topology, kind], kinds.count(kind))
    yield from (processes, expected, lag, stuck)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=["topology", *labels])
