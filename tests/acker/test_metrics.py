"""What the acker reports: every metric has its sample in the docs, and the oldest root is the oldest."""

import re
import urllib.request
from pathlib import Path

import pytest

from acker.cluster import wait_for
from acker.tester import Tester
from acktree.acker.errors import NoMetrics
from acktree.acker.expiry import AgeLimits
from acktree.acker.figures import Figures
from acktree.acker.metrics import COUNTERS, GAUGES, LOOPBACK, serve_metrics

DOCS = Path(__file__).parents[2] / "docs" / "acker.md"
SAMPLE = re.compile(r"^(acktree_acker_[a-z_]+) [0-9.e+]+$", re.MULTILINE)


@pytest.fixture
def serve():
    served = []

    def start(figures, port=0):
        served.append(serve_metrics(lambda: figures, port))
        return served[-1]

    yield start
    for page in served:
        page.close()


def read(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


def test_every_metric_is_documented_with_a_sample_and_no_other_is(serve):
    page = read(serve(dict.fromkeys([*COUNTERS, *GAUGES], 1)).url)
    assert len(SAMPLE.findall(page)) == len(COUNTERS) + len(GAUGES)
    assert set(SAMPLE.findall(page)) == set(SAMPLE.findall(DOCS.read_text()))


def test_a_metric_has_the_value_of_the_report(serve):
    page = read(serve({"acked": 3, "oldest_age_s": 1.5, "oldest_root": "00000000000000ff"}).url)
    assert "\nacktree_acker_acked_total 3.0\n" in page
    assert "\nacktree_acker_oldest_age_seconds 1.5\n" in page
    assert "ff" not in page.replace("acktree", "")


def test_metrics_are_bound_to_loopback(serve):
    assert serve({}).server.server_address[0] == LOOPBACK == "127.0.0.1"


def test_a_port_in_use_is_an_error(serve):
    port = serve({}).server.server_port
    with pytest.raises(NoMetrics, match=f"127.0.0.1:{port}: .*; choose another port"):
        serve({}, port)


def test_the_oldest_pending_root_is_found_by_its_init_or_last_reset():
    tester = Tester(AgeLimits.of_seconds(30, 300, 6000)).observe().ack(99, 1)
    tester.wait(1000).init(0xAB, 1).wait(500).init(0xCD, 1).wait(500)
    figures = Figures().oldest({0: tester.partition, 1: Tester().partition})
    assert figures == {"oldest_root": "00000000000000ab", "oldest_root_age_s": 1.0}
    figures = Figures().oldest({0: tester.reset(0xAB).wait(100).partition})
    assert figures == {"oldest_root": "00000000000000cd", "oldest_root_age_s": 0.6}


def test_without_pending_roots_there_is_no_oldest_one():
    nothing = {"oldest_root": "", "oldest_root_age_s": 0.0}
    assert Figures().oldest({}) == Figures().oldest({0: Tester().ack(1, 1).partition}) == nothing


def test_an_acker_process_serves_every_metric_and_reports_its_oldest_root(make):
    cluster = make(ackers=1)
    acker = cluster.start_process(options=("--metrics-port", "0")).await_ready()
    url = re.search(r"metrics (http://127\.0\.0\.1:\d+/metrics)", acker.log())[1]
    cluster.init(0xBEEF, 1).init(1, 0).await_acked([1])
    wait_for(lambda: "\nacktree_acker_pending 1.0\n" in read(url), "the pending root")
    assert set(SAMPLE.findall(read(url))) == set(SAMPLE.findall(DOCS.read_text()))
    assert cluster.last_report().values["oldest_root"] == f"{0xBEEF:016x}"
