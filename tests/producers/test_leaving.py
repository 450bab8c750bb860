"""A worker that leaves its group says why it ends, whatever the group does meanwhile."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

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


def test_partitions_assigned_while_a_worker_leaves_are_ignored():
    consumer, assigned = Rebalancing(), []
    inputs = Inputs(consumer, "broker:9092", refuse)
    inputs.subscribe(["t"], assigned.extend, print, print)
    with pytest.raises(Exception, match="broker:9092"):
        consumer.rebalance()
    inputs.close()
    assert consumer.is_closed
    assert not assigned
