"""Rows on a real broker: what is sent, and the errors of single rows."""

import pytest
from confluent_kafka import Consumer

from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import producer_settings
from acktree.producers.columns import Rows
from acktree.producers.errors import DeliveryFailed, MissingKey, TooLarge
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.output import BufferedProducer
from acktree.producers.kafka.record_limits import Limits, read_limits
from acktree.wire.header import HEADER, SINGLE, single_headers
from producers.cluster import WorkerCluster


@pytest.fixture
def producer(cluster: WorkerCluster) -> BufferedProducer:
    cluster.apply(only=(["a"], ["b"]))
    return BufferedProducer(producer_settings(cluster.bootstrap, {}))


def test_headers_of_a_fixed_size_are_taken_from_the_array(cluster: WorkerCluster, producer: BufferedProducer):
    edges = EdgeSource().many(5)
    own = single_headers(3, 2, edges, edges)[1:4]
    assert own.dtype == SINGLE
    producer.produce_rows(cluster.topic("b"), Rows(["ä", b"", None], ["k"] * 3, own, [("u", "é")]))
    producer.flush(10)
    read = [(record.value(), record.headers()) for record in cluster.read(cluster.topic("b"))]
    wanted = zip(["ä".encode(), b"", None], (row.tobytes() for row in own), strict=True)
    assert read == [(value, [("u", "é".encode()), (HEADER, header)]) for value, header in wanted]


def test_a_full_queue_makes_the_producer_wait_and_nothing_is_lost_or_repeated(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    producer = BufferedProducer(producer_settings(cluster.bootstrap, {"queue.buffering.max.messages": "20"}))
    producer.produce_rows(cluster.topic("b"), Rows([b"%d" % number for number in range(2000)], ["k"] * 2000))
    producer.flush(10)
    assert [int(record.value()) for record in cluster.read(cluster.topic("b"))] == list(range(2000))


def test_a_row_that_is_too_large_or_has_no_key_is_returned_and_the_others_are_sent(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b", "c"]))
    cluster.set_topic("b", max_message_bytes="1000")
    cluster.set_topic("c", cleanup_policy="compact")
    topics = [cluster.topic("b"), cluster.topic("c")]
    limits = read_limits(cluster.bootstrap, topics, {})
    producer = AtLeastOnce(cluster.bootstrap, {}, limits)
    ((large, too_large),) = producer.produce_rows(topics[0], Rows([b"1", b"x" * 2000, b"3"], ["k"] * 3))
    ((keyless, no_key),) = producer.produce_rows(topics[1], Rows([b"1", b"2"], [None, b"k"]))
    assert (large, keyless) == (1, 0)
    assert (type(too_large), type(no_key)) == (TooLarge, MissingKey)
    producer.flush(10)
    assert [record.value() for record in cluster.read(topics[0])] == [b"1", b"3"]
    assert [record.value() for record in cluster.read(topics[1])] == [b"2"]


def test_a_row_that_the_client_finds_too_large_is_also_returned(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    producer = AtLeastOnce(cluster.bootstrap, {"message.max.bytes": "2000"}, Limits())
    rows = Rows([b"1", b"x" * 5000, b"3", b"x" * 6000], ["k"] * 4)
    assert [row for row, _ in producer.produce_rows(cluster.topic("b"), rows)] == [1, 3]
    producer.flush(10)
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"1", b"3"]


def test_a_row_that_the_broker_rejects_fails_one_flush_and_not_the_next(
    cluster: WorkerCluster, producer: BufferedProducer
):
    cluster.set_topic("b", max_message_bytes="1000")
    producer.produce_rows(cluster.topic("b"), Rows([b"x" * 5000]))
    with pytest.raises(DeliveryFailed, match=rf"for topic {cluster.topic('b')}: .*[Mm]essage size too large"):
        producer.flush(10)
    producer.produce_rows(cluster.topic("b"), Rows([b"small"]))
    producer.flush(10)
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"small"]


def test_an_at_least_once_worker_does_not_commit_past_a_rejected_row(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="1000")
    output = AtLeastOnce(cluster.bootstrap, {})
    output.produce_rows(cluster.topic("b"), Rows([b"1", b"x" * 5000]))
    consumer = make_consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody"})
    with pytest.raises(DeliveryFailed, match="did not accept a record"):
        output.flush_and_commit(consumer, [])


def test_an_exactly_once_worker_stops_at_a_rejected_row_instead_of_retrying_forever(cluster: WorkerCluster):
    cluster.apply(True, only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="1000")
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.only")
    output.produce_rows(cluster.topic("b"), Rows([b"1", b"x" * 5000]))
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{cluster.name}.only"})
    with pytest.raises(DeliveryFailed, match="did not accept a record"):
        output.flush_and_commit(consumer, [])
    assert cluster.read(cluster.topic("b")) == []
