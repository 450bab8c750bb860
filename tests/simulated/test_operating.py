"""What an operator finds of a topology that does not move: the cause, the record and its age.

Driver, ledger, workers, ackers and the console are the real ones; broker and time are simulated.
"""

import re

import pytest

from acktree.acker import service
from acktree.console.view.emission_log import EmissionLog
from acktree.console.view.report_log import REPORTS_SPAN_S, read_reports
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import read_snapshot
from acktree.console.view.status import make_status, oldest_pending
from acktree.producers import BasicBolt, Bolt, Spout
from acktree.schemas import world
from acktree.schemas.topology import parse_topology
from acktree.testing import TopologyTester
from looking import look

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


def pending(tester, older_than_s=0.0, log=None):
    """Return what `acktree pending list` shows."""
    found = look(tester, lambda cluster: oldest_pending(read_snapshot(cluster, log), 100, older_than_s))
    return {record.offset: record for record in found}


def describe(tester):
    """Return what `acktree describe` finds stuck."""

    def ask(cluster):
        reports = Reports()
        read_reports(cluster, reports, REPORTS_SPAN_S)
        return make_status(read_snapshot(cluster), reports).stuck

    return look(tester, ask)


def running(**more):
    return TopologyTester(TOPOLOGY, stages={"lines": lambda row: [row.value]}, partitions=1, ackers=1, **more)


def test_what_a_snapshot_has_no_time_to_read_is_said():
    with running(bolts={"upper": ForgetsAll}) as made:
        made.send("lines", "waits")
        made.run_for(5)
        whole = look(made, read_snapshot)
        assert (whole.notes, whole.is_complete) == ([], True)
        part = look(made, lambda cluster: read_snapshot(cluster, limit_s=-1.0))
        assert not part.is_complete
        roots, first = part.notes
    assert re.fullmatch(
        r"the open roots are not complete: 1 of up to 2 control records .*--time-limit", roots
    )
    assert first.startswith("first emissions may be unknown")


@pytest.mark.parametrize("stopped_s", [60, 300], ids=["some replays", "more than 16 replays"])
def test_a_record_that_times_out_keeps_its_age_through_all_replays(stopped_s):
    with running(bolts={"upper": ForgetsAll}) as made:
        for _ in range(20):
            made.send("lines", "fine")
        made.run_until_done()
        line = made.send("lines", "waits")
        log = EmissionLog()
        pending(made, log=log)
        made.run_for(stopped_s)
        for found in (pending(made), pending(made, log=log)):
            record = found[line.offset]
            assert record.age_s == pytest.approx(stopped_s, abs=6)
            assert record.at_least_s is None
            assert record.attempts > 3
            assert record.latest_emission_ms - record.first_emission_ms > 1000 * (stopped_s - 30)
        assert list(pending(made, older_than_s=stopped_s - 6)) == [line.offset]
        assert pending(made, older_than_s=stopped_s + 6) == {}


def test_a_restart_of_the_driver_makes_no_record_younger():
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


def test_a_bolt_that_nobody_serves_comes_before_the_frontier_that_it_holds():
    with running(bolts={"upper": HangsOnce}) as made:
        made.kill("upper", restart_after_s=None)
        made.send("lines", "waits")
        made.run_for(60)
        assert [each.kind for each in describe(made)] == ["no-bolt", "held-frontier"]


def test_a_worker_that_hangs_is_named_with_its_host_and_its_record():
    with running(bolts={"upper": HangsOnce}) as made:
        made.send("lines", "fine")
        made.run_until_done()
        line = made.send("lines", "hang")
        made.run_for(60)
        cause, symptom = describe(made)
        assert (cause.kind, symptom.kind) == ("stuck-worker", "held-frontier")
        assert cause.where.startswith("upper@")
        assert re.search(rf"executes words/0/\d+ of source record lines/0/{line.offset},", cause.text)


def test_an_acker_that_stands_still_is_named(monkeypatch):
    with running(bolts={"upper": HangsOnce}) as made:
        made.send("lines", "fine")
        made.run_until_done()
        monkeypatch.setattr(service, "slice_messages", lambda _: world.event().wait())
        made.send("lines", "waits")
        made.run_for(60)
        monkeypatch.undo()
        cause, *_ = describe(made)
        assert (cause.kind, cause.text[:24]) == ("stuck-worker", "acker acker stands still")


class FailsOnBad(BasicBolt):
    """Raises for one value."""

    def execute(self, tup, emit):
        if tup.value == b"bad":
            raise ValueError("no such\nword")


def test_the_last_failure_of_a_worker_and_of_its_spout_is_seen_with_its_time():
    def ask(cluster):
        reports = Reports()
        read_reports(cluster, reports, REPORTS_SPAN_S)
        return make_status(read_snapshot(cluster), reports)

    with running(bolts={"upper": FailsOnBad}) as tester:
        for value in ("good", "bad"):
            tester.send("lines", value)
        tester.run_for(20)
        status = look(tester, ask)
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


def test_a_python_spout_and_an_acker_report_what_failed_last():
    def ask(cluster):
        reports = Reports()
        read_reports(cluster, reports, REPORTS_SPAN_S)
        return make_status(read_snapshot(cluster), reports)

    with TopologyTester(
        CLICKS, spouts={"clicks": OneBadClick}, bolts={"upper": FailsOnBad}, partitions=1, ackers=1
    ) as tester:
        tester.send("t.ack", b"not a control record", partition=0)
        tester.run_for(20)
        status = look(tester, ask)
    seen = {each.role: each for each in status.processes}
    assert seen["spout"].last_error == "ValueError: no such word"
    assert seen["spout"].task == 0
    assert seen["acker"].last_error.startswith("rejected t.ack/0/0: ")
