"""Metrics of reports: each has its sample in the docs, and a page says what a report said."""

import re
import urllib.request
from pathlib import Path

import pytest

from acktree.schemas.errors import NoMetrics
from acktree.schemas.metrics import BOLT, LOOPBACK, PARTITION_GAUGES, SPOUT, serve_reports
from acktree.schemas.stats import Report

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
SAMPLE = re.compile(r"^(acktree_(?:bolt|spout)_[a-z_]+\{[^}]*\}) [0-9.e+]+$", re.MULTILINE)
BOLT_FIGURES = dict.fromkeys([*BOLT.counters, *BOLT.gauges], 1)
SPOUT_FIGURES = {
    **dict.fromkeys([name for name in SPOUT.counters if name != "acked"], 1),
    **dict.fromkeys(SPOUT.gauges, 1),
    **{f"{name}.lines.0": 1 for name in PARTITION_GAUGES},
    "task": 0,
}


@pytest.fixture
def serve():
    served = []

    def start(*reports, port=0):
        served.append(serve_reports("wordcount", lambda: reports, port))
        return served[-1]

    yield start
    for page in served:
        page.close()


def read(served):
    with urllib.request.urlopen(served.url, timeout=5) as answer:
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


def spout(**values):
    return Report("spout", "lines", "lines-0", 1, values)


def test_every_metric_is_documented_with_a_sample_and_no_other_is(serve):
    page = read(serve(bolt(**BOLT_FIGURES), spout(**SPOUT_FIGURES)))
    assert len(name_and_labels(page)) == len(BOLT_FIGURES) + len(SPOUT_FIGURES) - 1
    assert name_and_labels(page) == name_and_labels(DOCS.read_text())


def test_a_metric_has_the_value_of_the_report(serve):
    page = read(serve(bolt(executed=3, busy_s=0.5)))
    assert 'acktree_bolt_executed_total{bolt="count",topology="wordcount"} 3.0' in page
    assert 'acktree_bolt_busy_seconds_total{bolt="count",topology="wordcount"} 0.5' in page


def test_the_partition_is_split_from_a_topic_with_dots(serve):
    page = read(serve(spout(**{"frontier.a.b.7": 5})))
    assert 'partition="7"' in page
    assert 'topic="a.b"' in page


def test_tasks_of_one_process_have_metrics_of_their_own(serve):
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
