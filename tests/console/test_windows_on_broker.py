"""The windows of the page, cut from a day of reports that lie on the topic with the times of that day."""

from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from acktree.console.page.serving.frame import PageSettings
from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.reports.stats import Report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from console.page_visitor import visit
from producers.cluster import until

pytestmark = pytest.mark.simulated

TOPOLOGY = """
name = "{name}"
[spouts.s]
emits = ["{name}.words"]
[bolts.count]
reads = ["{name}.words"]
"""
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


def publish_with_reports(bootstrap: str, name: str) -> None:
    """Publish a topology whose bolt has reported once a minute for a day, and long before.

    The reports are written first: those of a published topology get the broker's time.
    """
    admin, topic = make_admin(bootstrap, {}), f"{name}.stats"
    world.wait_for(admin.create_topics([NewTopic(topic, 1)])[topic], 30)
    producer, now_ms = make_producer({"bootstrap.servers": bootstrap}), world.wall_ms()
    for minutes_ago in (UNREAD_MINUTES, *range(FIRST_MINUTE, -1, -1)):
        done = 7 if minutes_ago == UNREAD_MINUTES else acked(minutes_ago)
        time_ms = now_ms - 1000 * MINUTE_S * minutes_ago
        figures = {"executed": done, "acked": done, "busy_s": done / 1000, "process_s": done / 100}
        report = Report("bolt", "count", "count@there:1", time_ms, figures)
        producer.produce(topic, report.encode(), timestamp=time_ms)
    assert producer.flush(30) == 0
    apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})


def test_each_window_counts_what_was_reported_in_it_by_the_times_of_the_log(kafka: str, unique: str):
    publish_with_reports(kafka, unique)
    with visit(PageSettings(kafka, unique, {})) as client:

        def status_of() -> Any:
            return client.get("/status.json").json()

        until(lambda: status_of().get("reports", 0) > FIRST_MINUTE, "every report")
        status = status_of()
        (bolt,) = status["bolts"]
        assert status["reports"] == FIRST_MINUTE + 1
        assert status["invalid_reports"] == 0
        for name, window in WINDOWS.items():
            found = bolt["windows"][name]
            assert window.least <= found["acked"] <= window.most, name
            assert found["execute_latency_ms"] == pytest.approx(1.0), name
            assert found["process_latency_ms"] == pytest.approx(10.0), name
            assert f"{found['acked']:,.0f}" in client.get(f"/?window={name}").text.replace(" ", ",")
