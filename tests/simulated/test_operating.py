"""What an operator finds of a topology that does not move: the cause, the record and its age.

Driver, ledger, workers, ackers and the console are the real ones; broker and time are simulated.
"""

import re

import pytest

from acktree.acker import service
from acktree.console.view.snapshot import read_with_reports
from acktree.console.view.source_view import oldest_pending
from acktree.console.view.status import make_status, source_views
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, Bolt, Spout
from acktree.testing import TopologyTester
from console_queries import look

TOPOLOGY = parse_topology("""
name = "t"
ackers = 2
message_timeout_s = 10
[spouts.lines]
topics = ["lines"]
emits = ["words"]
retry_max_s = 1
max_attempts = 100
[bolts.upper]
reads = ["words"]
""")


class HangsOnce(BasicBolt):
    """Does not come back from the tuple that it is told to hang on."""

    def execute(self, tup, emit):
        if tup.value == b"hang":
            world.event().wait()


class ForgetsAll(Bolt):
    """Moves on without an ack of what it shall wait for, so that its records time out."""

    def execute(self, tup, collector):
        if tup.value != b"waits":
            collector.ack(tup)


def pending(tester, older_than_s=None):
    """Return what `acktree pending list` shows."""
    views = look(tester, lambda cluster: source_views(*read_with_reports(cluster)))
    return {record.offset: record for record in oldest_pending(views, 100, older_than_s)}


def describe(tester):
    """Return what `acktree describe` finds stuck."""

    return look(tester, lambda cluster: make_status(*read_with_reports(cluster)).stuck)


def running(**more):
    return TopologyTester(TOPOLOGY, stages={"lines": lambda row: [row.value]}, partitions=1, ackers=1, **more)


def test_while_no_acker_reports_roots_are_shown_as_unknown():
    with running(bolts={"upper": ForgetsAll}) as made:
        made.kill("acker", restart_after_s=None)
        made.send("lines", "waits")
        made.run_for(45)
        status = look(made, lambda cluster: make_status(*read_with_reports(cluster)))
    assert [re.sub(r"\d+", "N", each) for each in status.unreported] == [
        "no acker has reported for N s: which roots are pending is not known"
    ]
    assert [each.kind for each in status.stuck] == ["no-acker", "held-frontier"]


@pytest.mark.parametrize("stopped_s", [60, 300], ids=["some replays", "more than 16 replays"])
def test_a_record_that_times_out_keeps_its_age_through_all_replays(stopped_s):
    with running(bolts={"upper": ForgetsAll}) as made:
        for _ in range(20):
            made.send("lines", "fine")
        made.run_until_done()
        line = made.send("lines", "waits")
        made.run_for(stopped_s)
        record = pending(made)[line.offset]
        assert record.age_s == pytest.approx(stopped_s, abs=6)
        assert record.at_least_s is None
        assert record.attempts > 3
        assert list(pending(made, older_than_s=stopped_s - 6)) == [line.offset]
        assert pending(made, older_than_s=stopped_s + 6) == {}


def test_a_restart_of_the_driver_makes_no_record_younger():
    with running(bolts={"upper": HangsOnce}) as made:
        made.kill("upper", restart_after_s=None)
        line = made.send("lines", "waits")
        made.run_for(40)
        made.kill("lines")
        made.run_for(30)
        assert pending(made)[line.offset].age_s == pytest.approx(70, abs=6)


def test_a_driver_that_has_lost_its_checkpoint_keeps_the_age_of_the_record():
    with running(bolts={"upper": HangsOnce}) as made:
        made.kill("upper", restart_after_s=None)
        line = made.send("lines", "waits")
        made.run_for(40)
        made.lose_checkpoint("lines")
        made.run_for(30)
        assert pending(made)[line.offset].age_s == pytest.approx(70, abs=6)


def test_a_replay_command_begins_a_new_age():
    with running(bolts={"upper": HangsOnce}) as made:
        line = made.send("lines", "waits")
        made.run_until_done()
        made.run_for(40)
        made.kill("upper", restart_after_s=None)
        made.replay("lines", 0, line.offset, line.offset + 1)
        made.run_for(30)
        assert pending(made)[line.offset].age_s == pytest.approx(30, abs=6)


def test_a_bolt_without_workers_is_named_in_place_of_the_frontier_that_it_holds():
    with running(bolts={"upper": HangsOnce}) as made:
        made.kill("upper", restart_after_s=None)
        made.send("lines", "waits")
        made.run_for(60)
        status = look(made, lambda cluster: make_status(*read_with_reports(cluster)))
        assert [each.kind for each in status.stuck] == ["no-bolt"]
        (limit,) = status.limits
        assert (limit.spout, limit.bolt, limit.partition) == ("lines", "upper", "words/0")
        assert limit.text.startswith("limited by bolt upper (no process runs it, ")


def test_a_worker_that_hangs_is_named_with_its_host_and_its_record():
    with running(bolts={"upper": HangsOnce}) as made:
        made.send("lines", "fine")
        made.run_until_done()
        line = made.send("lines", "hang")
        made.run_for(60)
        (cause,) = describe(made)
        assert cause.kind == "stuck-worker"
        assert cause.where.startswith("upper@")
        assert re.search(rf"executing words/0/\d+ of source record lines/0/{line.offset} ", cause.text)


def test_a_stalled_acker_is_named(monkeypatch):
    with running(bolts={"upper": HangsOnce}) as made:
        made.send("lines", "fine")
        made.run_until_done()
        monkeypatch.setattr(service.Acker, "_fold", lambda *_: world.event().wait())
        made.send("lines", "waits")
        made.run_for(60)
        monkeypatch.undo()
        cause, *_ = describe(made)
        assert (cause.kind, cause.text[:28]) == ("stuck-worker", "acker acker has been stalled")


class FailsOnBad(BasicBolt):
    """Raises for one value."""

    def execute(self, tup, emit):
        if tup.value == b"bad":
            raise ValueError("no such\nword")


def test_the_last_failure_of_a_worker_and_of_its_spout_is_shown_with_its_time():
    with running(bolts={"upper": FailsOnBad}) as tester:
        for value in ("good", "bad"):
            tester.send("lines", value)
        tester.run_for(20)
        status = look(tester, lambda cluster: make_status(*read_with_reports(cluster)))
    seen = {each.role: each for each in status.processes}
    assert seen.keys() == {"spout", "bolt", "acker"}
    for role in ("spout", "bolt"):
        assert seen[role].last_error == "ValueError: no such word", role
        assert seen[role].started_ms < seen[role].last_error_ms <= status.time_ms, role
    assert (seen["acker"].last_error, seen["acker"].partitions) == (None, 2)
    assert seen["bolt"].partitions == 1
    assert len({(each.host, each.pid) for each in seen.values()}) == 3


CLICKS = parse_topology("""
name = "t"
[spouts.clicks]
emits = ["words"]
[bolts.upper]
reads = ["words"]
""")


class OneBadClick(Spout):
    """Emits one value, on which the bolt fails."""

    def __init__(self) -> None:
        self.waiting = ["bad"]

    def next_tuple(self, emitter):
        if self.waiting:
            emitter.emit(self.waiting.pop(), 0)

    def fail(self, message, failure):
        pass


def test_a_python_spout_and_an_acker_report_their_last_failure():
    with TopologyTester(
        CLICKS, spouts={"clicks": OneBadClick}, bolts={"upper": FailsOnBad}, partitions=1, ackers=1
    ) as tester:
        tester.send("t.ack", b"not a control record", partition=0)
        tester.run_for(20)
        status = look(tester, lambda cluster: make_status(*read_with_reports(cluster)))
    seen = {each.role: each for each in status.processes}
    assert seen["spout"].last_error == "ValueError: no such word"
    assert seen["spout"].task == 0
    assert seen["acker"].last_error.startswith("invalid t.ack/0/0: ")


class RetriedClick(OneBadClick):
    """Has its message emitted again until it is done."""

    retry = True


def test_a_retry_makes_no_message_of_a_python_spout_younger():
    with TopologyTester(
        CLICKS, spouts={"clicks": RetriedClick}, bolts={"upper": FailsOnBad}, partitions=1, ackers=1
    ) as tester:
        tester.run_for(20)
        status = look(tester, lambda cluster: make_status(*read_with_reports(cluster)))
    (partition,) = status.partitions
    (spout,) = status.spouts
    assert partition.pending == status.totals.pending == 1
    assert partition.held_s == spout.oldest_pending_s == pytest.approx(20, abs=5)
    assert spout.replayed > 0
