"""Pause, drain, resume: what a spout emits is stopped live, stays so through restarts, and goes on."""

import pytest

from acktree.console.flow import draining
from acktree.console.view.report_log import REPORTS_SPAN_S, read_reports
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.status import make_status
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.core.topology.flow import Flow
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Spout
from acktree.testing import TopologyTester
from console_queries import look

TOPOLOGY = parse_topology("""
name = "t"
ackers = 1
message_timeout_s = 10
[spouts.lines]
topics = ["lines"]
emits = ["words"]
retry_initial_s = 1
retry_max_s = 1
max_attempts = 100
[spouts.ticks]
emits = ["words"]
[bolts.upper]
reads = ["words"]
emits = ["loud"]
""")


class AwaitedTicks(Spout):
    """Emits a number when the one before is acked."""

    def prepare(self, context):
        self.next, self.acked, self.calls = 0, 0, []

    def next_tuple(self, emitter):
        if self.next == self.acked:
            self.next += 1
            emitter.emit(f"tick {self.next}", self.next)

    def ack(self, message):
        self.acked = message.id

    def deactivate(self):
        self.calls.append("deactivate")

    def activate(self):
        self.calls.append("activate")


class UpperAtLast(BasicBolt):
    """Fails what begins with "fails" until it is told not to."""

    failing = True

    def execute(self, tup, emit):
        if tup.value.startswith(b"fails") and UpperAtLast.failing:
            raise ValueError("not yet")
        emit(tup.value.upper())


@pytest.fixture
def tester():
    UpperAtLast.failing = True
    with TopologyTester(
        TOPOLOGY,
        bolts={"upper": UpperAtLast},
        spouts={"ticks": AwaitedTicks},
        stages={"lines": lambda row: [row.value]},
        partitions=1,
        ackers=1,
    ) as made:
        yield made


def status_of(tester):
    return look(tester, lambda cluster: make_status(*read_with_reports(cluster)))


def how_far(tester, written):
    def ask(cluster):
        reports = Reports()
        read_reports(cluster, reports, REPORTS_SPAN_S)
        return {d.spout: d for d in draining(reports, tester.published, written, world.wall_ms())}

    return look(tester, ask)


def lines_on(tester):
    return [value for value in tester.values("loud") if not value.startswith("TICK")]


def test_a_paused_spout_emits_nothing_until_it_is_resumed_whatever_restarts(tester):
    tester.send("lines", "one")
    tester.run_for(5)
    tester.set_flow("lines", Flow.PAUSED)
    tester.run_for(5)
    tester.send("lines", "two")
    tester.run_for(20)
    assert lines_on(tester) == ["ONE"]
    tester.kill("lines")
    tester.run_for(30)
    tester.lose_checkpoint("lines")
    tester.run_for(30)
    assert lines_on(tester) == ["ONE"]
    assert tester.committed("lines", 0) == 1
    tester.set_flow("lines", Flow.RUNNING)
    tester.run_for(10)
    assert lines_on(tester) == ["ONE", "TWO"]
    assert tester.committed("lines", 0) == 2


def test_a_paused_spout_does_not_replay_and_one_that_drains_does(tester):
    tester.send("lines", "fails")
    tester.run_for(5)
    tester.set_flow("lines", Flow.PAUSED)
    tester.run_for(5)
    (attempts,) = tester.replays("lines").values()
    tester.run_for(30)
    assert list(tester.replays("lines").values()) == [attempts]
    assert not [each for each in status_of(tester).stuck if each.where == "lines/0"]
    tester.send("lines", "new")
    tester.set_flow("lines", Flow.DRAINING)
    tester.run_for(10)
    (now,) = tester.replays("lines").values()
    assert now > attempts
    assert lines_on(tester) == []
    UpperAtLast.failing = False
    tester.run_for(10)
    assert lines_on(tester) == ["FAILS"]
    assert tester.committed("lines", 0) == 1


def test_a_spout_is_drained_when_each_task_reports_it_under_the_drains_record(tester):
    tester.send("lines", "fails")
    tester.run_for(5)
    written = tester.set_flow("lines", Flow.DRAINING)
    assert not how_far(tester, written)["lines"].is_drained
    tester.run_for(10)
    found = how_far(tester, written)["lines"]
    assert (found.obeying, found.pending, found.is_drained) == (1, 1, False)
    UpperAtLast.failing = False
    tester.run_for(10)
    assert how_far(tester, written)["lines"].is_drained
    assert not how_far(tester, {"lines": written["lines"] + 1})["lines"].is_drained
    tester.kill("lines", restart_after_s=None)
    tester.run_for(60)
    assert not how_far(tester, written)["lines"].is_drained, "who no longer reports proves nothing"


def test_a_python_spout_is_not_called_while_it_is_paused(tester):
    tester.run_for(5)
    ticks = tester.handler("ticks")
    written = tester.set_flow("ticks", Flow.PAUSED)
    tester.run_for(10)
    before = ticks.next
    tester.run_for(10)
    assert (ticks.next, ticks.calls) == (before, ["deactivate"])
    assert how_far(tester, written)["ticks"].is_drained
    assert {spout.name: spout.flow for spout in status_of(tester).spouts} == {
        "lines": "running",
        "ticks": "paused",
    }
    tester.kill("ticks")
    tester.run_for(20)
    again = tester.handler("ticks")
    assert (again.next, again.calls) == (0, ["deactivate"])
    tester.set_flow("ticks", Flow.RUNNING)
    tester.run_for(5)
    assert again.next > 0
    assert again.calls == ["deactivate", "activate"]


def test_a_new_version_of_the_topology_changes_no_flow(tester):
    tester.set_flow("lines", Flow.PAUSED)
    tester.run_for(5)
    tester.send("lines", "one")
    newer = TOPOLOGY.model_copy(update={"message_timeout_s": 20.0})
    assert look(tester, lambda cluster: apply_topology(cluster.bootstrap, newer, {})).publish.version == 2
    tester.run_for(20)
    assert lines_on(tester) == []
