"""Trees stay open while their tuples wait unread for a bolt that stands still, and only those."""

import logging
from itertools import count

import pytest
from confluent_kafka import TopicPartition

from acker.cluster import wait_for
from acktree.acker.standing_bolts import SILENT_AFTER_S
from acktree.schemas import world
from acktree.schemas.clients import make_consumer
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.stats import Report

pytestmark = pytest.mark.simulated

TIMEOUT_S = 12
LONG_S = 3 * TIMEOUT_S
LOST = 99
"""A root that has no tuple in the log."""


class Waiting:
    """A cluster with one acker, and tuples in the topic of a bolt that nobody runs."""

    def __init__(self, make, **settings):
        self.cluster = make(ackers=2, timeout_s=TIMEOUT_S, **settings)
        self.acker = self.cluster.start()
        world.sleep(SILENT_AFTER_S)  # reports count from the start of the acker on
        self.words = f"{self.cluster.name}.words"

    def write(self, *roots, version=1, header=None):
        header = header or encode_header(version, [Anchor(1, root, root) for root in roots])
        self.write_record(b"tuple", headers=[(HEADER, header)])

    def write_record(self, value, **more):
        self.cluster.producer.produce(self.words, value, partition=0, **more)
        self.cluster.producer.poll(0)

    def emit(self, *roots):
        """Send one tuple in the trees of these roots, and their inits."""
        for root in roots:
            self.cluster.init(root, root)
        self.write(*roots)
        self.cluster.sent()

    def commit(self, offset=None):
        """Commit as the bolt does that has read up to an offset; without one, everything."""
        group = f"{self.cluster.name}.count"
        consumer = make_consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": group})
        place = TopicPartition(self.words, 0)
        end = consumer.get_watermark_offsets(place, 10)[1]
        place.offset = end if offset is None else offset
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def report(self, **values):
        """Report as a worker of the bolt does."""
        report = Report("bolt", "count", "count-0", world.wall_ms(), values)
        self.cluster.producer.produce(f"{self.cluster.name}.stats", report.encode(), report.key())
        self.cluster.producer.poll(0)

    def wait_long(self, each_second=lambda: None):
        until_s = world.monotonic_s() + LONG_S
        while world.monotonic_s() < until_s:
            each_second()
            world.sleep(1)
            self.cluster.collect()


@pytest.fixture
def waiting(make):
    return lambda **settings: Waiting(make, **settings)


@pytest.mark.promise("all workers of a bolt")
@pytest.mark.real
def test_trees_of_unread_tuples_stay_open_and_others_time_out(waiting):
    it = waiting()
    it.emit(1, 2)
    it.emit(3)
    it.cluster.init(LOST, LOST).sent()
    it.wait_long()
    assert it.cluster.timed_out == {LOST}
    wait_for(lambda: it.cluster.last_report().values["kept_open"] == 3, "the figure")
    it.cluster.ack(1, 1).ack(2, 2).ack(3, 3).await_acked([1, 2, 3])


def test_trees_time_out_once_their_tuples_are_read(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long()
    it.commit()
    it.cluster.await_failed([1])
    assert it.cluster.timed_out == {1}


def test_a_bolt_that_holds_its_tuples_while_its_loop_moves_is_no_reason_to_wait(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long(lambda: it.report(in_hand=1))
    assert it.cluster.timed_out == {1}


def test_a_bolt_whose_loop_stands_still_is_waited_for(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long(lambda: it.report(in_hand=1, standstill_s=7.0))
    assert it.cluster.timed_out == set()


def test_a_bolt_that_commits_is_no_reason_to_wait(waiting):
    it = waiting()
    for _ in range(2 * LONG_S):
        it.write_record(b"untracked")
    it.emit(1)
    offsets = count(1)
    it.wait_long(lambda: it.commit(next(offsets)))
    assert it.cluster.timed_out == {1}


def test_what_is_no_tuple_of_the_bolt_hides_no_tuple(waiting, caplog):
    it = waiting()
    it.write(header=b"\x01")
    it.write(LOST, version=7)
    it.write_record(b"a record of another producer")
    it.cluster.init(LOST, LOST)
    it.emit(1)
    it.wait_long()
    assert it.cluster.timed_out == {LOST}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_long_queue_is_kept_open_as_a_whole(waiting):
    it = waiting()
    roots = range(1, 20_001)
    it.cluster.init_many([(root, root) for root in roots])
    for root in roots:
        it.write(root)
    it.cluster.sent()
    it.wait_long()
    assert it.cluster.timed_out == set()
    assert it.cluster.last_report().values["kept_open"] == len(roots)


def test_the_next_acker_goes_on(waiting):
    it = waiting()
    it.emit(1)
    it.acker.stop()
    it.cluster.start()
    it.wait_long()
    assert it.cluster.timed_out == set()
