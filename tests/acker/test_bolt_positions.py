"""No tree ages while tuples wait unread for a bolt that its spout can reach, however long that takes."""

from itertools import count

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.acker.kafka.bolt_positions import BoltPositions
from acktree.core import world
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.topology.registry import Registry
from acktree.wire.header import HEADER, Anchor, encode_header

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

    def commit(self, offset=None, topology=None):
        """Commit as the bolt does that has read up to an offset; without one, everything."""
        group = f"{topology or self.cluster.name}.count"
        consumer = make_consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": group})
        place = TopicPartition(self.words, 0)
        end = consumer.get_watermark_offsets(place, 10)[1]
        place.offset = end if offset is None else offset
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def write_in_transaction(self, *outcomes):
        """Write a record in a transaction of its own for each outcome, commit or abort."""
        producer = make_producer(
            {"bootstrap.servers": self.cluster.bootstrap, "transactional.id": f"{self.words}-writer"}
        )
        producer.init_transactions(30)
        for outcome in outcomes:
            producer.begin_transaction()
            producer.produce(self.words, b"untracked", partition=0)
            producer.flush(30)
            (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)(30)

    def read_to_the_end_and_commit(self):
        """Commit the position after everything was read, as a worker does."""
        settings = {"bootstrap.servers": self.cluster.bootstrap, "group.id": f"{self.cluster.name}.count"}
        consumer = make_consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.words, 0, 0)])
        while (message := consumer.poll(30)).error() is None:
            pass
        assert message.error().code() == KafkaError._PARTITION_EOF
        consumer.commit(offsets=consumer.position(consumer.assignment()), asynchronous=False)
        consumer.close()

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
def test_no_tree_times_out_while_its_bolt_is_down_and_lost_ones_do_once_it_is_back(waiting):
    it = waiting()
    it.emit(1, 2)
    it.emit(3)
    it.cluster.init(LOST, LOST).sent()
    it.wait_long()
    assert it.cluster.timed_out == set()
    it.cluster.ack(1, 1).ack(2, 2).ack(3, 3).await_acked([1, 2, 3])
    it.commit()
    it.cluster.await_failed([LOST])
    assert it.cluster.timed_out == {LOST}


def test_trees_time_out_once_their_tuples_are_read(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long()
    it.commit()
    it.cluster.await_failed([1])
    assert it.cluster.timed_out == {1}


def test_acks_of_a_backlog_that_is_processed_quickly_come_before_its_timeouts(waiting):
    it = waiting()
    roots = range(1, 20_001)
    it.cluster.init_many([(root, root) for root in roots])
    for root in roots:
        it.write(root)
    it.cluster.sent()
    it.wait_long()
    it.cluster.ack_many([(root, root) for root in roots]).sent()
    it.commit()
    it.cluster.await_acked(list(roots))
    assert it.cluster.timed_out == set()


def test_the_acker_waits_for_a_bolt_that_is_slower_than_its_backlog(waiting):
    it = waiting()
    for _ in range(2 * LONG_S):
        it.write_record(b"untracked")
    it.emit(1)
    offsets = count(1)
    it.wait_long(lambda: it.commit(next(offsets)))
    assert it.cluster.timed_out == set()


def test_timeouts_wait_for_each_lagging_hop(waiting):
    it = waiting()
    it.cluster.init(1, 7)
    it.write(1)
    it.wait_long()
    it.cluster.ack(1, 8)  # of the first hop, which emits edge 15
    it.commit()
    for _ in range(TIMEOUT_S - 3):
        world.sleep(1)
        it.cluster.collect()
    assert it.cluster.timed_out == set()
    it.cluster.await_failed([1])


@pytest.mark.real
@pytest.mark.parametrize("outcomes", [("commit",), ("abort",), ("commit", "abort")], ids="-".join)
def test_a_topic_that_ends_in_a_transaction_marker_is_read_to_its_end(waiting, outcomes):
    it = waiting()
    it.write_in_transaction(*outcomes)
    it.cluster.init(LOST, LOST).sent()
    it.read_to_the_end_and_commit()
    it.cluster.await_failed([LOST])


def test_the_next_acker_also_waits_for_the_bolt_and_then_times_out_lost_trees(waiting):
    it = waiting()
    it.emit(1)
    it.cluster.init(LOST, LOST).sent()
    it.acker.stop()
    it.cluster.start()
    it.wait_long()
    assert it.cluster.timed_out == set()
    it.cluster.ack(1, 1).await_acked([1])
    it.commit()
    it.cluster.await_failed([LOST])


def test_a_bolt_that_commits_batch_by_batch_keeps_its_batch_waiting_and_nothing_else(waiting):
    """A batch in Spark takes longer than the message timeout; its tuples are acked at its end."""
    it = waiting()
    it.emit(1)
    it.cluster.init(LOST, LOST).sent()
    seconds = count(1)

    def end_batch():
        if next(seconds) % (TIMEOUT_S + 3) == 0:
            it.cluster.ack(1, 1)
            it.cluster.sent()
            it.commit()
            it.write(2)

    it.wait_long(end_batch)
    assert it.cluster.timed_out == {LOST}
    assert 1 in it.cluster.acked


def test_a_bolt_of_another_topology_that_reads_the_same_topic_moves_no_clock(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long(lambda: it.commit(topology="another"))
    assert it.cluster.timed_out == set()


def test_no_tree_times_out_while_a_log_end_is_unknown_and_a_report_names_the_bolt(waiting, monkeypatch):
    """A partition without a leader: what waits in it is not known, and neither is when that will end."""
    it = waiting()
    it.emit(1)
    it.commit()

    def no_leader(*_):
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    with monkeypatch.context() as patches:
        patches.setattr(BoltPositions, "_list_offsets", no_leader)
        it.wait_long()
        assert it.cluster.timed_out == set()
        figures = it.cluster.last_report().values
        assert (figures["limited_by.lines"], figures["limited_at.lines"]) == ("count", "")
        assert figures["behind_s"] > TIMEOUT_S
        assert figures["since_commit_s.lines"] > TIMEOUT_S
    it.cluster.await_failed([1])


def test_trees_time_out_once_the_ends_of_topics_are_known_again(waiting, monkeypatch):
    it = waiting()
    it.emit(1)
    it.commit()

    def no_answer(*_):
        raise TimeoutError

    with monkeypatch.context() as patches:
        patches.setattr(world, "wait_for", no_answer)
        it.wait_long()
        assert it.cluster.timed_out == set()
    it.cluster.await_failed([1])


def test_an_error_that_ends_the_reading_of_bolt_positions_ends_the_acker(waiting, monkeypatch):
    it = waiting()
    registry = Registry(it.cluster.bootstrap, it.cluster.name, {})
    positions = BoltPositions(it.cluster.bootstrap, {}, registry.history, lambda: 0)

    def break_down(*_):
        raise ValueError("a defect")

    monkeypatch.setattr(BoltPositions, "_list_offsets", break_down)
    positions.start()
    positions.want(True)
    positions.join()
    registry.close()
    with pytest.raises(ValueError, match="a defect"):
        list(positions.take())


def test_a_report_names_the_bolt_that_trees_wait_for_until_it_has_caught_up(waiting):
    it = waiting()
    it.emit(1)
    it.wait_long()
    figures = it.cluster.last_report().values
    assert (figures["limited_by.lines"], figures["limited_at.lines"]) == ("count", f"{it.words}/0")
    assert figures["behind_s.lines"] > TIMEOUT_S
    it.cluster.ack(1, 1).await_acked([1])
    it.commit()
    it.wait_long()
    assert it.cluster.last_report().values["behind_s"] == 0.0
