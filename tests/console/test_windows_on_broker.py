"""The windows of the page, cut from a day of reports that lie on the topic with the times of that day."""

import time
from dataclasses import dataclass

import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from acktree.console.page.app import StatusPage
from acktree.console.page.frame import PageSettings
from acktree.schemas.publish import apply_topology
from acktree.schemas.stats import Report
from acktree.schemas.topology import parse_topology

TOPOLOGY = """
name = "{name}"
[spouts.s]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""
DEADLINE_S = 90
MINUTE_S = 60
BEFORE = 5_000
"""Tuples acked before the first report that is read."""
UNREAD_MINUTES, FIRST_MINUTE = 26 * 60, 24 * 60 + 50


@dataclass(frozen=True)
class AckedInWindow:
    """Tuples acked in a window; where reports are kept ten minutes apart it may begin so much earlier."""

    least: int
    most: int


def acked(minutes_ago: int) -> int:
    """Return what was acked until then: 100 a minute, of the last 3 hours 10, of the last 10 minutes 1."""
    done = FIRST_MINUTE - minutes_ago
    fast = min(done, FIRST_MINUTE - 180)
    slow = min(max(0, done - fast), 170)
    return BEFORE + 100 * fast + 10 * slow + (done - fast - slow)


WINDOWS = {
    "10m": AckedInWindow(10, 11 + 10),
    "3h": AckedInWindow(1_710, 1_710 + 11 * 100),
    "1d": AckedInWindow(1_710 + 100 * 1260, 1_710 + 100 * (1260 + 11)),
    "all": AckedInWindow(acked(0), acked(0)),
}


@pytest.fixture
def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def topology(bootstrap: str, unique: str, now_ms: int) -> str:
    """A topology whose bolt has reported once a minute for a day, and long before."""
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=unique)), {})
    producer = Producer({"bootstrap.servers": bootstrap})
    for minutes_ago in (UNREAD_MINUTES, *range(FIRST_MINUTE, -1, -1)):
        done = 7 if minutes_ago == UNREAD_MINUTES else acked(minutes_ago)
        time_ms = now_ms - 1000 * MINUTE_S * minutes_ago
        figures = {"executed": done, "acked": done, "busy_s": done / 1000, "process_s": done / 100}
        report = Report("bolt", "count", "count@there:1", time_ms, figures)
        producer.produce(f"{unique}.stats", report.encode(), timestamp=time_ms)
    assert producer.flush(30) == 0
    return unique


def test_each_window_counts_what_was_reported_in_it_by_the_times_of_the_log(bootstrap: str, topology: str):
    app = StatusPage(PageSettings(bootstrap, topology, {})).make_app()
    with TestClient(app, base_url="http://localhost") as client:
        deadline_s = time.monotonic() + DEADLINE_S
        while (status := client.get("/status.json").json()).get("reports", 0) <= FIRST_MINUTE:
            assert time.monotonic() < deadline_s, status
            time.sleep(0.1)
        (bolt,) = status["bolts"]
        assert status["reports"] == FIRST_MINUTE + 1
        assert status["garbage"] == 0
        for name, window in WINDOWS.items():
            found = bolt["windows"][name]
            assert window.least <= found["acked"] <= window.most, name
            assert found["execute_latency_ms"] == pytest.approx(1.0), name
            assert found["process_latency_ms"] == pytest.approx(10.0), name
            assert f"{found['acked']:,.0f}" in client.get(f"/?window={name}").text.replace(" ", ",")
