"""What a group does while a worker is in a call: it leaves for a reason it names, and loses no record."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.core.kafka.log_reader import LogReader
from acktree.producers.kafka.inputs import Inputs


class Rebalancing:
    """A consumer whose group assigns a partition while it is closed."""

    def __init__(self):
        self.is_closed = False

    def subscribe(self, topics, *, on_assign, **_):
        self._on_assign = on_assign

    def rebalance(self):
        self._on_assign(self, [TopicPartition("t", 0)])

    def close(self):
        self.rebalance()
        self.is_closed = True


def refuse(_partitions):
    raise KafkaException(KafkaError(KafkaError._DESTROY))


def member(consumer):
    return LogReader(consumer, "broker:9092", "g", {}, is_member=True)


def test_partitions_assigned_while_a_worker_leaves_are_ignored():
    consumer, assigned = Rebalancing(), []
    inputs = Inputs(member(consumer), "broker:9092", refuse)
    inputs.subscribe(["t"], assigned.extend, print, print)
    with pytest.raises(Exception, match="broker:9092"):
        consumer.rebalance()
    inputs.close()
    assert consumer.is_closed
    assert not assigned


class RevokesWhileItReads(Rebalancing):
    """A consumer whose group takes a partition away while it reads a record of another one."""

    def subscribe(self, topics, *, on_revoke, **_):
        self._on_revoke = on_revoke

    def consume(self, _count, _timeout):
        self._on_revoke(self, [TopicPartition("t", 1)])
        return [RecordOfOther()]

    def assign(self, _partitions):
        pass

    def pause(self, _partitions):
        pass

    resume = pause


class RecordOfOther:
    def topic(self):
        return "t"

    def partition(self):
        return 0

    def offset(self):
        return 7

    def error(self):
        return None

    def leader_epoch(self):
        return None


def test_a_record_that_is_read_in_a_rebalance_waits_until_it_is_executed():
    reader = member(RevokesWhileItReads())
    inputs = Inputs(reader, "broker:9092", refuse)
    inputs.subscribe(["t"], print, lambda _: None, print)
    reader.begin({("t", 0): 7})
    inputs.serve()
    assert inputs.first_open(("t", 0), 8) == 7, "a commit would pass it"
