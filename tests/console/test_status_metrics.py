"""The status as metrics: a series for everything the topology needs, whether or not it runs."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from acktree.console.page.serving.status_metrics import FRESH_S, StatusCollector
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.console.view.stuck import KINDS
from acktree.core.reports.stats import Report
from console.test_page import published, seen

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
NOW_MS = 1_700_000_000_000


def metrics(*reports, since_s=1.5):
    found = Reports()
    for each in reports:
        found.add_record(each.encode(), each.time_ms)
    topology = published()
    state = PageState(make_status(seen(topology), found), topology, None, since_s)
    registry = CollectorRegistry()
    registry.register(StatusCollector({"t": lambda: state}))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def sample(lines, name, **labels):
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    (line,) = [
        line for line in lines if line.startswith(f"{name}{{") and all(each in line for each in wanted)
    ]
    return float(line.rpartition(" ")[2])


def test_every_component_of_the_topology_has_its_series_even_if_nothing_runs():
    lines = metrics()
    for role, component in (("spout", "lines"), ("bolt", "count"), ("bolt", "sum"), ("acker", "acker")):
        labels = {"topology": "t", "role": role, "component": component}
        assert sample(lines, "acktree_topology_processes", **labels) == 0
        assert sample(lines, "acktree_topology_processes_expected", **labels) == 1
    assert sample(lines, "acktree_topology_lag_records", role="bolt", component="count") == 8
    assert sample(lines, "acktree_topology_stuck", kind="no-spout") == 1
    assert len([line for line in lines if "acktree_topology_stuck{" in line]) == len(KINDS)


def test_processes_that_report_are_counted():
    lines = metrics(*(Report("bolt", "count", f"count@a:{n}", NOW_MS, {}) for n in range(2)))
    assert sample(lines, "acktree_topology_processes", component="count") == 2


def test_each_metric_has_samples_of_all_topologies_even_if_one_is_unreachable():
    found = make_status(seen(published()), Reports())
    states = {"a": PageState(found, published(), None, 1.0), "b": PageState(None, None, "away", 9.0)}
    registry = CollectorRegistry()
    registry.register(StatusCollector({name: lambda each=each: each for name, each in states.items()}))
    lines = generate_latest(registry).decode().splitlines()
    assert len([line for line in lines if line.startswith("# TYPE")]) == 5
    assert sample(lines, "acktree_topology_status_age_seconds", topology="b") == 9
    assert sample(lines, "acktree_topology_lag_records", topology="a", component="count") == 8
    assert not [line for line in lines if 'topology="b"' in line and "status_age" not in line]


@pytest.mark.parametrize("since_s", [FRESH_S, 3600.0])
def test_a_stale_status_exports_only_its_age(since_s):
    assert metrics(since_s=since_s) == [f'acktree_topology_status_age_seconds{{topology="t"}} {since_s}']


def test_every_metric_is_documented_with_a_sample():
    shape = re.compile(r"^(acktree_topology_[a-z_]+)\{([^}]*)\}")
    pages = metrics(), DOCS.read_text().splitlines()
    exported, documented = (
        {
            (found[1], frozenset(re.findall(r'(\w+)="', found[2])))
            for line in page
            if (found := shape.match(line))
        }
        for page in pages
    )
    assert exported == documented
