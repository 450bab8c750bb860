"""Metrics of reports: each has its sample in the docs, and a page says what a report said."""

import re
import urllib.request
from pathlib import Path

import pytest

from acktree.core.errors import NoMetrics
from acktree.core.reports import metrics
from acktree.core.reports.liveness import Executing, Liveness
from acktree.core.reports.metrics import ACKER, BOLT, PARTITION_GAUGES, PROCESS_GAUGES, SPOUT
from acktree.core.reports.metrics_server import LOOPBACK, serve_reports
from acktree.core.reports.stats import Report
from deadlines import ANSWER_S

DOCS = Path(__file__).parents[2] / "docs"
SAMPLE = re.compile(r"^(acktree_(?!topology|traces)[a-z_]+\{[^}]*\}) [0-9.e+]+$", re.MULTILINE)
BOLT_FIGURES = dict.fromkeys([*BOLT.counters, *BOLT.gauges], 1)
SPOUT_FIGURES = {
    **dict.fromkeys([name for name in SPOUT.counters if name != "acked"], 1),
    **dict.fromkeys(SPOUT.gauges, 1),
    **{f"{name}.lines.0": 1 for name in PARTITION_GAUGES},
    "task": 0,
}

ACKER_FIGURES = dict.fromkeys([*ACKER.counters, *ACKER.gauges], 1)


@pytest.fixture
def serve():
    served = []

    def start(*reports, port=0, progress=None):
        served.append(serve_reports("wordcount", lambda: reports, port, progress=progress))
        return served[-1]

    yield start
    for page in served:
        page.close()


def read(served):
    with urllib.request.urlopen(served.url, timeout=ANSWER_S) as answer:
        return answer.read().decode()


def name_and_labels(page):
    """Return what a page has, labels in order of their names, values left out."""
    found = set()
    for sample in SAMPLE.findall(page):
        name, _, labels = sample.rstrip("}").partition("{")
        found.add((name, tuple(sorted(label.partition("=")[0] for label in labels.split(",")))))
    return found


def bolt(**values):
    return Report("bolt", "count", "count@a:1", 1, values)


def acker(**values):
    return Report("acker", "acker", "a:1", 1, values)


def spout(**values):
    return Report("spout", "lines", "lines-0", 1, values)


def test_every_metric_is_documented_with_a_sample_and_no_other_is(serve):
    executing = Executing("words", 2, 19, 0x9C4F6D55B2A4F0E1)
    stuck = Liveness(-1.0, lambda: executing)
    page = read(serve(spout(**SPOUT_FIGURES), acker(**ACKER_FIGURES)))
    page += read(serve(bolt(**BOLT_FIGURES), progress=stuck))
    found = name_and_labels(page)
    with_task = {(name, labels) for name, labels in found if "process" in name and "task" in labels}
    figures = [*BOLT_FIGURES, *SPOUT_FIGURES, *ACKER_FIGURES, *PROCESS_GAUGES]
    assert len(found - with_task) == len(figures) - 1
    documented = "\n".join((DOCS / name).read_text() for name in ("metrics.md", "acker.md"))
    assert found - with_task == name_and_labels(documented)


def test_every_series_has_the_label_topology(serve):
    """Else an alert cannot tell two topologies in one job apart."""
    page = read(serve(bolt(**BOLT_FIGURES), spout(**SPOUT_FIGURES), acker(**ACKER_FIGURES)))
    samples = [line for line in page.splitlines() if line and not line.startswith("#")]
    assert len(samples) > 40
    assert [line for line in samples if 'topology="wordcount"' not in line] == []


def test_a_report_that_is_not_renewed_ages(serve, monkeypatch):
    monkeypatch.setattr(metrics.world, "wall_ms", lambda: 61_001)
    page = read(serve(bolt(executed=1)))
    labels = 'component="count",role="bolt",topology="wordcount"'
    assert f"acktree_process_report_age_seconds{{{labels}}} 61.0" in page
    assert "stall" not in page, "no loop is known"


def test_a_metric_has_the_value_of_the_report(serve):
    page = read(serve(bolt(executed=3, busy_s=0.5)))
    assert 'acktree_bolt_executed_total{bolt="count",topology="wordcount"} 3.0' in page
    assert 'acktree_bolt_busy_seconds_total{bolt="count",topology="wordcount"} 0.5' in page


def test_the_partition_is_split_from_a_topic_with_dots(serve):
    page = read(serve(spout(**{"frontier.a.b.7": 5})))
    assert 'partition="7"' in page
    assert 'topic="a.b"' in page


def test_tasks_of_one_process_have_separate_metrics(serve):
    page = read(serve(spout(emitted=1, task=0), spout(emitted=2, task=1)))
    assert 'acktree_spout_emitted_total{spout="lines",task="0",topology="wordcount"} 1.0' in page
    assert 'acktree_spout_emitted_total{spout="lines",task="1",topology="wordcount"} 2.0' in page


def test_the_acked_messages_of_a_python_spout_are_exported_as_completed(serve):
    assert "acktree_spout_completed_total" in read(serve(spout(acked=4, task=0)))


def test_metrics_are_bound_to_loopback_and_a_port_in_use_is_an_error(serve):
    server = serve().server
    assert server.server_address[0] == LOOPBACK == "127.0.0.1"
    with pytest.raises(NoMetrics, match=r"127\.0\.0\.1:\d+: .*; choose another port"):
        serve(port=server.server_port)
