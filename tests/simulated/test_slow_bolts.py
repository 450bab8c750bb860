"""Slow is normal: a bolt with a queue, or none that runs, makes no replays, and what was lost is found.

Times are virtual. A tree that the acker let age while it waits would be emitted again after 30 s.
"""

import pytest

from acktree.acker.folding.expiry import MAX_SCAN_INTERVAL_MS
from acktree.acker.folding.partition import Partition
from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Bolt
from acktree.testing import TopologyTester
from acktree.testing.idle import ACKER_TURN_S

RECORDS, STOPPED_S = 185, 170.0
TOPOLOGY = """
name = "clicks"
ackers = 2
message_timeout_s = 30
[spouts.clicks]
topics = ["clicks"]
emits = ["clicks.parsed"]
[bolts.count]
reads = ["clicks.parsed"]
[bolts.archive]
reads = ["clicks.parsed"]
"""


TIMEOUT_S = 30.0


class Executed(BasicBolt):
    """Keeps what it was given, takes ``takes_s`` for each, and passes it on where its table says so."""

    passes_on = False

    def __init__(self, takes_s=0.0):
        self.values, self.takes_s = [], takes_s

    def execute(self, tup, emit):
        self.values.append(tup.value)
        if self.takes_s:
            world.sleep(self.takes_s)
        if self.passes_on:
            emit(tup.value)


class PassesOn(Executed):
    passes_on = True


class HoldsFirst(Bolt):
    """Holds its first tuple without an ack, as a join does that waits for the other side."""

    held = None

    def execute(self, tup, collector):
        if self.held is None:
            self.held = tup
        else:
            collector.ack(tup)


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY)
    return path


def stage(row):
    yield {"value": row.value}


@pytest.fixture
def started(topology_tester, topology):
    archive = Executed()

    def start(count=Executed) -> tuple[TopologyTester, Executed]:
        bolts = {"count": count, "archive": archive}
        return topology_tester(topology, stages={"clicks": stage}, bolts=bolts), archive

    return start


def test_a_bolt_without_workers_causes_no_replays(started):
    tester, archive = started()
    tester.kill("count", restart_after_s=STOPPED_S)
    sent = [tester.send("clicks", str(number)) for number in range(RECORDS)]
    tester.run_until_done()
    assert tester.now_s > STOPPED_S
    assert tester.replays("clicks") == {}
    assert len(archive.values) == RECORDS
    assert len(tester.acked("clicks")) == len(sent)


def test_a_bolt_whose_worker_hangs_causes_no_replays(started):
    class StandsStill(Executed):
        def execute(self, tup, emit):
            if tup.value == b"7" and world.monotonic_s() < until_s:
                world.sleep(STOPPED_S)
            super().execute(tup, emit)

    until_s = world.monotonic_s() + STOPPED_S
    tester, archive = started(StandsStill)
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert tester.now_s > STOPPED_S
    assert tester.replays("clicks") == {}
    assert len(archive.values) == RECORDS


def test_a_tuple_that_a_moving_bolt_holds_times_out(started):
    tester, _ = started(HoldsFirst)
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert len(tester.replays("clicks")) == 1


def test_anything_lost_while_a_bolt_is_stalled_is_replayed(started):
    tester, _ = started()
    tester.kill("count", restart_after_s=STOPPED_S)
    tester.lose("ack")  # of the other bolt
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert 1 <= len(tester.replays("clicks")) < RECORDS
    assert set(tester.acked("clicks")) == set(tester.records("clicks"))


HOPS = """
name = "clicks"
ackers = 2
message_timeout_s = 30
[spouts.clicks]
topics = ["clicks"]
emits = ["a"]
[bolts.first]
reads = ["a"]
emits = ["b"]
[bolts.second]
reads = ["b"]
emits = ["c"]
exactly_once = true
[bolts.third]
reads = ["c"]
"""


@pytest.fixture
def hops(topology_tester, tmp_path):
    """Return a function that runs three bolts in a row, each of which takes so long for a tuple."""
    path = tmp_path / "topology.toml"

    def start(takes_s, text=HOPS, first=None, partitions=1) -> tuple[TopologyTester, list[Executed]]:
        path.write_text(text)
        made = first or PassesOn(takes_s), PassesOn(takes_s), Executed(takes_s)
        bolts = dict(zip(("first", "second", "third"), made, strict=True))
        return topology_tester(path, stages={"clicks": stage}, bolts=bolts, partitions=partitions), list(made)

    return start


def executed(bolts):
    return [len(bolt.values) for bolt in bolts]


def test_bolts_in_a_row_slower_than_their_backlogs_execute_each_tuple_once(hops):
    tester, bolts = hops(takes_s=1.0)
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert tester.now_s > 3 * TIMEOUT_S
    assert executed(bolts) == [RECORDS] * 3
    assert tester.replays("clicks") == {}


def test_a_lost_ack_is_found_behind_fast_bolts_whose_topics_end_in_a_transaction(hops):
    tester, _ = hops(takes_s=0.0)
    tester.lose("ack", number=2)
    for number in range(3):
        tester.send("clicks", str(number))
    tester.run_until_done()
    assert len(tester.replays("clicks")) >= 1
    assert tester.now_s < 2 * TIMEOUT_S


def test_a_lost_ack_is_found_four_turns_of_the_acker_after_its_timeout(hops, monkeypatch):
    """Log time passes the timeout, then the acker looks at the bolts, then it has folded what was there."""
    turn_s = MAX_SCAN_INTERVAL_MS / 1000 + ACKER_TURN_S
    timed_out_s, expire = [], Partition.expire

    def watched(self, *times):
        found = expire(self, *times)
        if found is not None and len(found.roots):
            timed_out_s.append(world.monotonic_s())
        return found

    monkeypatch.setattr(Partition, "expire", watched)
    tester, bolts = hops(takes_s=0.0)
    tester.lose("ack")
    tester.send("clicks", "a")
    tester.run_until(lambda: bool(bolts[2].values), what="the last bolt")
    executed_s = tester.now_s
    tester.run_until_done()
    assert len(timed_out_s) == 1
    assert TIMEOUT_S <= timed_out_s[0] - executed_s < TIMEOUT_S + 4 * turn_s


def test_a_worker_that_dies_between_ack_and_commit_costs_its_tuples_one_replay_each(hops):
    """They are acked twice before the next bolt has come to them, and two equal acks cancel each other."""
    tester, bolts = hops(takes_s=0.5, first=PassesOn(0.1))
    for number in range(RECORDS):
        tester.send("clicks", str(number))
    tester.run_for(8.0)
    tester.kill("first", when="between ack and commit")
    tester.run_until_done()
    replays = tester.replays("clicks")
    assert 1 <= len(replays) < RECORDS
    assert set(replays.values()) == {1}
    assert len(bolts[2].values) <= RECORDS + 2 * len(replays)


def test_a_spout_with_fewer_tasks_replays_nothing_of_a_removed_task_while_a_bolt_is_slow(hops):
    text = HOPS.replace('emits = ["a"]', 'emits = ["a"]\ntasks = 2')
    tester, bolts = hops(0.0, text, first=PassesOn(0.5), partitions={"clicks": 2, "a": 1})
    for number in range(RECORDS):
        tester.send("clicks", str(number), partition=number % 2)
    tester.run_until(lambda: bool(bolts[0].values), what="the first tuple")
    tester._as_operator(lambda: apply_topology("simulated", parse_topology(HOPS), {}))
    tester.run_until_done()
    assert tester.now_s > 2 * TIMEOUT_S
    assert tester.replays("clicks") == {}
    assert executed(bolts) == [RECORDS] * 3


class Loops(Bolt):
    """Writes to the topic that it reads, for ever; passes on what it did not write itself."""

    def execute(self, tup, collector):
        if tup.tracked:
            collector.emit(tup.value, topic="b", anchors=tup)
        else:
            world.sleep(0.1)
        collector.emit(b"again", topic="a", anchors=())
        collector.ack(tup)


def test_losses_are_found_even_if_a_bolt_keeps_writing_to_its_own_topic(hops):
    tester, _ = hops(0.0, HOPS.replace('emits = ["b"]', 'emits = ["a", "b"]'), first=Loops())
    tester.lose("ack", number=2)
    for number in range(3):
        tester.send("clicks", str(number))
    tester.run_for(2 * TIMEOUT_S)  # it is never done
    assert len(tester.replays("clicks")) >= 1
    assert set(tester.acked("clicks")) == set(tester.records("clicks"))
