"""A worker's turn has a limit: commits, a stop and a rebalance wait for one tuple only, a reset for none."""

from collections import Counter

import pytest

from acktree.core import world
from acktree.producers import BasicBolt, Bolt
from acktree.producers.testing import BoltDouble
from producers.cluster import WorkerCluster, until

pytestmark = pytest.mark.simulated

FAST = 1_500
SLOW_S = 0.02


class Slowing:
    """Executes the first FAST tuples quickly, and each other one slowly, until it may hurry."""

    def __init__(self):
        self.executed, self.after_stop = [], []
        self.hurry, self.stopped = world.event(), world.event()

    def work(self, tup):
        (self.after_stop if self.stopped.is_set() else self.executed).append(tup.value)
        if len(self.executed) > FAST:
            self.hurry.wait(SLOW_S)


class SlowBasic(Slowing, BasicBolt):
    def execute(self, tup, emit):
        self.work(tup)
        emit(tup.value)


class SlowByHand(Slowing, Bolt):
    def execute(self, tup, collector):
        self.work(tup)
        collector.emit(tup.value, anchors=tup)
        collector.ack(tup)


@pytest.mark.parametrize(
    ("kind", "exactly_once"), [(SlowBasic, False), (SlowBasic, True), (SlowByHand, True)]
)
def test_fast_tuples_are_committed_and_a_stop_works_while_many_slow_ones_wait(
    cluster: WorkerCluster, kind, exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(12_000), 0)
    bolt = kind()
    worker = cluster.start(bolt)
    until(lambda: worker.error or cluster.committed("only").get(0, 0) >= FAST, "the fast ones are committed")
    bolt.stopped.set()
    worker.stop()
    assert len(bolt.after_stop) <= 2, "the one that was executed at the stop, and one more at most"
    executed = bolt.executed + bolt.after_stop
    assert cluster.committed("only") == {0: len(executed)}
    assert executed == [b"%d" % number for number in range(len(executed))]
    assert {record.value() for record in cluster.read(cluster.topic("b"))} == set(executed)


def test_a_stop_between_two_tuples_leaves_the_second_to_the_next_worker(cluster: WorkerCluster):
    started = world.event()

    class Stops(BasicBolt):
        def execute(self, tup, emit):
            assert started.wait(100)
            if tup.value == b"50":
                worker.worker.stop()

    cluster.apply(only=(["a"], []))
    cluster.emit(range(100), 0)
    worker = cluster.start(Stops())
    started.set()
    worker.join()
    assert (worker.error, worker.executed) == (None, 51)
    assert cluster.committed("only") == {0: 51}


def test_records_read_but_not_executed_go_with_their_partition(cluster: WorkerCluster):
    cluster.apply(only=(["a"], []))
    for partition in range(2):
        cluster.emit(range(partition * 3_000, partition * 3_000 + 3_000), partition)
    first, second = SlowBasic(), SlowBasic()
    one = cluster.start(first)
    until(lambda: len(first.executed) > FAST, "the first one is slow, and has more in hand")
    two = cluster.start(second)
    until(lambda: second.executed, "the second one has a partition")
    first.hurry.set()
    second.hurry.set()
    until(lambda: cluster.committed("only") == cluster.ends(), "all is done")
    one.stop()
    two.stop()
    executed = Counter(first.executed + second.executed)
    assert executed == Counter(b"%d" % number for number in range(6_000))


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_reset_is_sent_while_its_tuple_is_executed(cluster: WorkerCluster, exactly_once: bool):
    class BlockedBolt(Bolt):
        def __init__(self):
            self.may_end = world.event()

        def execute(self, tup, collector):
            collector.reset_timeout(tup)
            assert self.may_end.wait(100)
            collector.ack(tup)

    cluster.apply(exactly_once, only=(["a"], []))
    cluster.emit([7], 0)
    bolt = BlockedBolt()
    worker = cluster.start(bolt)
    until(lambda: any(len(ack.resets) for ack in cluster.acks()), "the reset is in the log")
    assert worker.acked == 0
    bolt.may_end.set()
    until(lambda: cluster.committed("only") == {0: 1})
    worker.stop()
    assert not cluster.open_roots()


def test_the_double_shows_a_reset_before_execute_returns():
    resets = []

    class ResettingBolt(Bolt):
        def execute(self, tup, collector):
            collector.reset_timeout(tup)
            resets.extend(double.resets)
            collector.ack(tup)

    double = BoltDouble(ResettingBolt())
    double.give(b"x")
    assert resets == [0]
