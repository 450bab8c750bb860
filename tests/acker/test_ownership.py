"""Rebalances that arrive topic by topic, without a broker: the consumer records the calls."""

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from acktree.acker.folding.cut import Positions
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.partition import Partition
from acktree.acker.kafka.ownership import COMMITTED_DEADLINE_S, HALF_GRACE_S, NotCoPartitioned, Ownership
from acktree.core.kafka.log_reader import LogReader

INITS, ACKS = "t.ack-init", "t.ack"


class RecordingConsumer:
    """A consumer that knows committed offsets and records assignments and commits."""

    def __init__(self, **committed):
        self.offsets = {INITS: 0, ACKS: 0} | committed
        self.assigned, self.commits, self.refusals = [], [], 0
        self.refusal = KafkaError.STALE_MEMBER_EPOCH

    def committed(self, places):
        if self.refusals:
            self.refusals -= 1
            raise KafkaException(KafkaError(self.refusal))
        return [TopicPartition(p.topic, p.partition, self.offsets[p.topic] or -1001) for p in places]

    def incremental_assign(self, places):
        self.assigned += [(place.topic, place.partition, place.offset) for place in places]

    def incremental_unassign(self, places):
        pass

    def commit(self, offsets, asynchronous):
        self.commits.append([(place.topic, place.partition, place.offset) for place in offsets])


def reader_of(consumer):
    return LogReader(consumer, "broker:9092", "g", {"group.protocol": "consumer"}, is_member=True)


class Clock:
    time_s = 0.0

    def __call__(self):
        self.time_s += 0.1
        return self.time_s


def places(*topics, number=0):
    return [TopicPartition(topic, number) for topic in topics]


@pytest.fixture
def dropped():
    return []


@pytest.fixture
def flushed():
    """Whether all results are with the broker; a test may change it."""
    return [True]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def own(dropped, flushed, clock):
    return Ownership(
        (INITS, ACKS),
        make_partition=lambda start: Partition(start, AgeLimits(1, 1, 1), seed=1),
        on_drop=dropped.append,
        flush=lambda: flushed[0],
        read_committed=lambda consumer, places: consumer.committed(places),
        now_s=clock,
        pause=lambda _seconds: None,
    )


def test_a_partition_assigned_with_both_topics_starts_at_the_committed_cut(own):
    consumer = RecordingConsumer(**{INITS: 5, ACKS: 7})
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    assert consumer.assigned == [(INITS, 0, 5), (ACKS, 0, 7)]
    assert own.partitions[0].positions == Positions(5, 7)
    assert (own.refolds, own.assignments) == (1, 1)


def test_without_a_commit_it_starts_at_the_earliest_record(own):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    assert {offset for *_, offset in consumer.assigned} == {OFFSET_BEGINNING}
    assert own.refolds == 0


def test_a_half_alone_does_not_fold_and_both_start_at_the_cut_of_the_later_moment(own):
    consumer = RecordingConsumer(**{INITS: 5, ACKS: 7})
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS))
    assert own.partitions == {}
    consumer.offsets = {INITS: 50, ACKS: 70}
    own.on_assign(reader, places(ACKS))
    assert own.begin_other_halves(reader) == {(INITS, 0)}, "what came of it by now is not folded"
    assert own.partitions[0].positions == Positions(50, 70)
    assert consumer.assigned[-2:] == [(ACKS, 0, 70), (INITS, 0, 50)]


def test_losing_one_half_drops_the_state_and_its_return_starts_at_the_cut(own, dropped):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    first = own.partitions[0]
    own.on_revoke(reader, places(ACKS))
    assert own.partitions == {}
    assert dropped == [first]
    consumer.offsets = {INITS: 3, ACKS: 4}
    own.on_assign(reader, places(ACKS))
    own.begin_other_halves(reader)
    assert own.partitions[0].positions == Positions(3, 4)
    assert consumer.assigned[-2:] == [(ACKS, 0, 4), (INITS, 0, 3)]


def test_a_half_that_is_revoked_before_it_is_begun_at_the_cut_is_not_begun(own):
    consumer = RecordingConsumer(**{INITS: 5, ACKS: 7})
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS))
    own.on_assign(reader, places(ACKS))
    own.on_revoke(reader, places(INITS))
    assert not own.begin_other_halves(reader)
    assert reader.places == [(ACKS, 0)]


def test_a_revoked_partition_commits_its_cut_and_a_lost_one_does_not(own):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    for number in (0, 1):
        own.on_assign(reader, places(INITS, ACKS, number=number))
        own.partitions[number].clock.inits.reach(9)
    own.on_lost(reader, places(INITS, ACKS, number=0))
    own.on_revoke(reader, places(INITS, ACKS, number=1))
    assert consumer.commits == [[(INITS, 1, 9), (ACKS, 1, 0)]]
    assert own.partitions == {}


def test_a_partition_assigned_again_without_a_revocation_starts_over(own, dropped):
    """The consumer reads it from the cut again, so the old state would fold twice."""
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    first = own.partitions[0]
    own.on_assign(reader, places(INITS, ACKS))
    assert own.partitions[0] is not first
    assert dropped == [first]


def test_nothing_is_committed_at_a_revocation_while_results_are_in_flight(own, flushed):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    own.partitions[0].clock.inits.reach(9)
    flushed[0] = False
    own.on_revoke(reader, places(INITS, ACKS))
    assert consumer.commits == []
    assert own.partitions == {}


def test_an_unmoved_cut_is_not_committed_again(own):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    own.commit(reader)
    assert consumer.commits == []
    own.partitions[0].clock.acks.reach(2)
    own.commit(reader)
    own.on_commit(None, [TopicPartition(INITS, 0, 0), TopicPartition(ACKS, 0, 2)])
    own.commit(reader)
    assert len(consumer.commits) == 1


def test_a_refused_commit_is_retried(own):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS, ACKS))
    own.partitions[0].clock.acks.reach(2)
    own.commit(reader)
    own.on_commit(KafkaError(KafkaError.ILLEGAL_GENERATION), [])
    own.commit(reader)
    assert len(consumer.commits) == 2
    assert own.failed_commits == 1


def test_reading_the_cut_is_retried_after_a_stale_epoch_but_not_forever(own):
    consumer = RecordingConsumer(**{INITS: 5, ACKS: 7})
    reader = reader_of(consumer)
    consumer.refusals = 3
    own.on_assign(reader, places(INITS, ACKS))
    assert own.partitions[0].positions == Positions(5, 7)
    consumer.refusals = int(COMMITTED_DEADLINE_S / 0.1) + 10
    with pytest.raises(KafkaException):
        own.on_assign(reader, places(INITS, ACKS, number=1))


def test_an_outage_that_begins_between_assignment_and_cut_is_waited_out(own):
    consumer = RecordingConsumer(**{INITS: 5, ACKS: 7})
    consumer.refusal, consumer.refusals = KafkaError._TRANSPORT, int(10 * COMMITTED_DEADLINE_S / 0.1)
    own.on_assign(reader_of(consumer), places(INITS, ACKS))
    assert own.partitions[0].positions == Positions(5, 7)


def test_an_acker_that_is_stopped_while_it_waits_for_the_cut_takes_nothing_over(own):
    consumer = RecordingConsumer()
    consumer.refusal, consumer.refusals = KafkaError._TRANSPORT, 1_000
    own._pause = lambda _seconds: setattr(own, "is_leaving", consumer.refusals < 900)
    own.on_assign(reader_of(consumer), places(INITS, ACKS))
    assert (own.partitions, consumer.assigned, consumer.refusals) == ({}, [], 898)


def test_an_empty_assignment_is_accepted(own):
    own.on_assign(reader_of(RecordingConsumer()), [])
    assert own.partitions == {}
    assert own.assignments == 1


def test_a_half_partition_is_refused_after_a_while_unless_the_topics_differ(own, clock):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.on_assign(reader, places(INITS))
    own.refuse_halves(lambda: {1})
    clock.time_s += HALF_GRACE_S
    own.refuse_halves(lambda: {1, 2})
    with pytest.raises(NotCoPartitioned, match="assignor range"):
        own.refuse_halves(lambda: {1})
    own.on_assign(reader, places(ACKS))
    own.refuse_halves(lambda: {1})


def test_partitions_assigned_while_the_acker_stops_are_not_started(own):
    consumer = RecordingConsumer()
    reader = reader_of(consumer)
    own.is_leaving = True
    own.on_assign(reader, places(INITS, ACKS))
    assert (own.assignments, consumer.assigned, own.partitions) == (0, [], {})
