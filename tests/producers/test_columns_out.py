"""Columns on a real broker: the same records as row by row, and the same errors."""

import gc
import logging

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from acktree.producers.errors import DeliveryFailed, MissingKey, TooLarge
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.output import BufferedProducer
from acktree.producers.kafka.record_limits import Limits, read_limits
from acktree.producers.native import columns_out
from acktree.producers.native.columns import Rows
from acktree.producers.native.columns_out import find_cells
from acktree.producers.native.librdkafka import NoColumns
from acktree.producers.native.warm_up import warm_up
from acktree.schemas.client_settings import producer_settings
from acktree.schemas.clients import make_consumer
from acktree.schemas.header import HEADER, SINGLE, single_headers
from acktree.schemas.ids import EdgeSource
from hypothesis_profiles import examples
from producers.cluster import WorkerCluster

PAYLOAD = st.none() | st.binary(max_size=8) | st.text(max_size=4)
TYPES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


@pytest.fixture
def producer(cluster: WorkerCluster) -> BufferedProducer:
    cluster.apply(only=(["a"], ["b"]))
    return BufferedProducer(producer_settings(cluster.bootstrap, {}))


def row_by_row(cluster: WorkerCluster, **user: str) -> BufferedProducer:
    made = BufferedProducer(producer_settings(cluster.bootstrap, user))
    made.may_have_columns = False
    return made


def fields_of(record) -> tuple:
    return record.key(), record.value(), record.headers()


@st.composite
def columns(draw, count: int):
    """A column of ``count`` cells, of any kind that may be sent."""
    cells = draw(st.lists(PAYLOAD, min_size=count, max_size=count))
    kind = draw(st.sampled_from(("list", "none", "arrow", "chunks")))
    if kind == "none":
        return None
    if kind == "list":
        return cells
    type_of = draw(st.sampled_from(TYPES))
    is_text = pa.types.is_string(type_of) or pa.types.is_large_string(type_of)
    texts = [None if cell is None else f"{cell!s}" if is_text else f"{cell!s}".encode() for cell in cells]
    before = draw(st.integers(0, 3))
    array = pa.array([*["x"] * before, *texts, "y"], type_of)[before : before + count]
    return pa.chunked_array([array[: count // 2], array[count // 2 :]]) if kind == "chunks" else array


@st.composite
def some_rows(draw):
    count = draw(st.integers(0, 12))
    values = draw(columns(count))
    own = draw(st.none() | st.lists(st.none() | st.binary(max_size=40), min_size=count, max_size=count))
    headers = draw(st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), PAYLOAD), max_size=3))
    return Rows([None] * count if values is None else values, draw(columns(count)), own, headers)


def test_columns_are_read_back_as_if_they_had_been_sent_row_by_row(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b", "c"]))
    fast, slow = BufferedProducer(producer_settings(cluster.bootstrap, {})), row_by_row(cluster)
    fast.open_columns()
    assert fast.columns is not None
    sent: list[int] = []

    @examples(300, suppress_health_check=list(HealthCheck))
    @given(rows=some_rows())
    def send(rows: Rows) -> None:
        assert fast.produce_rows(cluster.topic("b"), rows) == []
        assert slow.produce_rows(cluster.topic("c"), rows) == []
        sent.append(len(rows))

    send()
    gc.collect()
    fast.flush(10)
    slow.flush(10)
    (as_columns, one_by_one) = (list(map(fields_of, cluster.read(cluster.topic(name)))) for name in "bc")
    assert len(as_columns) == sum(sent)
    assert sorted(as_columns, key=repr) == sorted(one_by_one, key=repr)


def test_the_warm_up_compiles_every_loop(cluster: WorkerCluster, producer: BufferedProducer):
    opened = producer.open_columns()
    assert opened is not None
    warm_up()
    loop = opened.loop.produce_rows
    warm = list(loop.signatures)
    edges = EdgeSource().many(4)
    own = single_headers(3, 2, edges, edges)[1:]
    texts = ["a", None, "c"]
    kinds = [["a", None, b"c"], *(pa.array(texts).cast(kind) for kind in TYPES)]
    for values in kinds:
        for keys in (None, *kinds):
            producer.produce_rows(cluster.topic("b"), Rows(values, keys, None, [("u", "v")]))
            producer.produce_rows(cluster.topic("b"), Rows(values, keys, own))
    producer.flush(10)
    assert loop.signatures == warm
    assert len(warm) == 1


def test_keys_go_to_the_same_partition_as_row_by_row(cluster: WorkerCluster):
    cluster.ackers = 7  # the control topics have as many partitions
    cluster.apply(only=(["a"], []))
    fast, slow = BufferedProducer(producer_settings(cluster.bootstrap, {})), row_by_row(cluster)
    keys = [b"key-%d" % number for number in range(300)]
    for producer, short in ((fast, "ack"), (slow, "ack-init")):
        producer.produce_rows(cluster.topic(short), Rows(keys, keys))
        producer.flush(10)
    places = [
        {record.key(): record.partition() for record in cluster.read(cluster.topic(short))}
        for short in ("ack", "ack-init")
    ]
    assert fast.columns is not None
    assert len(places[0]) == 300
    assert len(set(places[0].values())) == 7
    assert places[0] == places[1]


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
    assert producer.columns is not None
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


def test_a_row_that_the_client_finds_too_large_is_returned_too(cluster: WorkerCluster):
    cluster.apply(only=(["a"], ["b"]))
    producer = AtLeastOnce(cluster.bootstrap, {"message.max.bytes": "2000"}, Limits())
    rows = Rows([b"1", b"x" * 5000, b"3", b"x" * 6000], ["k"] * 4)
    assert [row for row, _ in producer.produce_rows(cluster.topic("b"), rows)] == [1, 3]
    assert producer.columns is not None
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
    with pytest.raises(DeliveryFailed, match="did not take a record"):
        output.flush_and_commit(consumer, [])


def test_an_exactly_once_worker_stops_at_a_rejected_row_instead_of_retrying_forever(cluster: WorkerCluster):
    cluster.apply(True, only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="1000")
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.only")
    output.produce_rows(cluster.topic("b"), Rows([b"1", b"x" * 5000]))
    assert output.columns is not None
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"{cluster.name}.only"})
    with pytest.raises(DeliveryFailed, match="did not take a record"):
        output.flush_and_commit(consumer, [])
    assert cluster.read(cluster.topic("b")) == []


def test_single_records_next_to_columns_keep_their_delivery_reports(
    cluster: WorkerCluster, producer: BufferedProducer
):
    cluster.set_topic("b", max_message_bytes="1000")
    producer.produce_rows(cluster.topic("b"), Rows([b"1"]))
    assert producer.columns is not None
    producer.flush(10)
    producer.produce(cluster.topic("b"), b"x" * 5000)
    with pytest.raises(DeliveryFailed, match="did not take a record"):
        producer.flush(10)


def test_memory_may_be_freed_as_soon_as_its_rows_are_queued(
    cluster: WorkerCluster, producer: BufferedProducer
):
    for number in range(50):
        values = [b"%d-%d" % (number, row) * 20 for row in range(100)]
        producer.produce_rows(cluster.topic("b"), Rows(pa.array(values, pa.binary()), ["k"] * 100))
        del values
    gc.collect()
    producer.flush(10)
    read = [record.value() for record in cluster.read(cluster.topic("b"))]
    assert read == [b"%d-%d" % (number, row) * 20 for number in range(50) for row in range(100)]


def test_without_compiled_loops_rows_are_sent_one_by_one_and_one_log_line_says_why(
    cluster: WorkerCluster,
    producer: BufferedProducer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    def missing() -> None:
        raise NoColumns("no librdkafka here")

    monkeypatch.setattr(columns_out, "librdkafka", missing)
    caplog.set_level(logging.INFO, "acktree.bolt")
    for _ in range(3):
        producer.produce_rows(cluster.topic("b"), Rows(["1", None], pa.array([b"k", "k"])))
    producer.flush(10)
    assert producer.columns is None
    messages = [line.message for line in caplog.records if line.name == "acktree.bolt"]
    assert messages == ["columns are sent record by record: no librdkafka here"]
    read = [(record.key(), record.value()) for record in cluster.read(cluster.topic("b"))]
    assert read == [(b"k", b"1"), (b"k", None)] * 3


@pytest.mark.parametrize("column", [pa.array([1, 2]), pa.array([[b"a"], []])])
def test_columns_of_other_types_have_no_cells(column):
    assert find_cells(column, 2) is None
