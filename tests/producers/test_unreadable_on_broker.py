"""A worker of a real broker whose position is not in the log."""

import pytest
from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import make_consumer
from deadlines import ANSWER_S
from producers.cluster import Sink, WorkerCluster, until

PROTOCOLS = {
    "classic": {},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}


@pytest.mark.broker
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_worker_starts_at_the_end_of_a_log_that_ends_below_its_commit(
    cluster: WorkerCluster, protocol: str
):
    cluster.apply(only=(["a"], []))
    cluster.emit(range(20), 0)
    cluster.emit(range(20, 30), 1)
    group = cluster.history.latest.group_of("only")
    operator = make_consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    operator.commit(offsets=[TopicPartition(cluster.topic("a"), 0, 99)], asynchronous=False)
    worker = cluster.start(Sink(), user=PROTOCOLS[protocol])
    until(lambda: worker.executed == 10 or worker.error, "the partition beside it is read")
    until(lambda: committed(operator, cluster) == 20 or worker.error, "the end is committed")
    cluster.emit(range(100, 105), 0)
    until(lambda: worker.executed == 15 or worker.error, "what comes later is read")
    worker.stop()
    assert worker.executed == 15
    operator.close()


def committed(operator, cluster: WorkerCluster) -> int:
    """Return what the bolt's group has committed of partition 0."""
    (place,) = operator.committed([TopicPartition(cluster.topic("a"), 0)], timeout=ANSWER_S)
    return int(place.offset)
