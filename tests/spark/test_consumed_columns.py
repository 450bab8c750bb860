"""Columns of a partition on a real broker: the same as Consumer.consume returns, and errors with offsets."""

import itertools
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.spark.native import columns_in
from acktree.spark.native.columns_in import BytesColumn, ColumnsIn, FetchedColumns
from acktree.spark.native.switch import NativeOff
from acktree.spark.warm_up import warm_up
from acktree.wire.header import HEADER, find_header
from hypothesis_profiles import examples
from producers.cluster import WorkerCluster, until

PAYLOAD = st.none() | st.binary(max_size=40)
NAMES = st.sampled_from((HEADER, "other", HEADER + "s"))
RECORDS = st.lists(st.tuples(PAYLOAD, PAYLOAD, st.lists(st.tuples(NAMES, PAYLOAD), max_size=3)), max_size=20)


def consumer_of(cluster: WorkerCluster, **ours: object) -> Consumer:
    return make_consumer(
        consumer_settings(
            cluster.bootstrap,
            cluster.topic("g"),
            {},
            auto_offset_reset="error",
            enable_partition_eof=True,
            fetch_wait_max_ms=20,
            **ours,
        )
    )


class Reading:
    """A consumer of one topic whose partition comes in columns."""

    def __init__(self, cluster: WorkerCluster, topic: str) -> None:
        self.consumer, self.topic = consumer_of(cluster), topic
        self.columns = ColumnsIn(self.consumer, topic, 0)

    def assign(self, offset: int) -> None:
        self.consumer.assign([TopicPartition(self.topic, 0, offset)])

    def send(self, cluster: WorkerCluster, count: int) -> None:
        producer = make_producer(producer_settings(cluster.bootstrap, {}))
        for number in range(count):
            producer.produce(self.topic, b"%d" % number, partition=0)
        assert producer.flush(30) == 0

    def until_error(
        self, own: bool = False, max_records: int = 1000
    ) -> tuple[list[FetchedColumns], KafkaError, int]:
        taken: list[FetchedColumns] = []
        for _ in range(200):
            taken.append(self.columns.take(max_records, 0.2, own))
            for error, offset in taken[-1].errors:
                return taken, error, offset
        raise AssertionError("no error within 40 s, not even the end of the partition")


@pytest.fixture
def cluster(bootstrap: str, unique: str) -> Iterator[WorkerCluster]:
    made = WorkerCluster(bootstrap, unique)
    yield made
    made.close()


@pytest.fixture
def reading(cluster: WorkerCluster) -> Iterator[Reading]:
    cluster.apply(only=(["a"], ["b"]))
    reading = Reading(cluster, cluster.topic("b"))
    yield reading
    reading.columns.close()
    reading.consumer.close()


def cells(column: BytesColumn | None, count: int) -> list[bytes | None]:
    assert column is not None
    assert len(column.bounds) == count + 1
    present = [True] * count if column.is_there is None else column.is_there.tolist()
    rows = [column.data[start:end].tobytes() for start, end in itertools.pairwise(column.bounds)]
    return [row if is_there else None for row, is_there in zip(rows, present, strict=True)]


def rows_of(taken: FetchedColumns) -> list[tuple]:
    count = len(taken.offsets)
    columns = (cells(column, count) for column in (taken.keys, taken.values, taken.own))
    stamps = zip(taken.kinds.tolist(), taken.stamps_ms.tolist(), strict=True)
    return list(zip(taken.offsets.tolist(), stamps, *columns, strict=True))


def test_columns_hold_what_consume_returns(cluster: WorkerCluster, reading: Reading):
    producer = make_producer(producer_settings(cluster.bootstrap, {}))
    sent: list[int] = []

    @examples(100, suppress_health_check=list(HealthCheck))
    @given(records=RECORDS)
    def send(records: list) -> None:
        for key, value, headers in records:
            producer.produce(reading.topic, value, key, headers=headers, partition=0)
        sent.append(len(records))

    send()
    assert producer.flush(30) == 0
    reading.assign(0)
    taken, error, end = reading.until_error(own=True, max_records=7)
    assert (error.code(), end) == (KafkaError._PARTITION_EOF, sum(sent))
    rows = [row for fetched in taken for row in rows_of(fetched)]
    plain = consumer_of(cluster, group_instance_id="plain")
    plain.assign([TopicPartition(reading.topic, 0, 0)])
    wanted: list[tuple] = []

    def read_all() -> bool:
        wanted.extend(
            (m.offset(), m.timestamp(), m.key(), m.value(), find_header(m.headers()))
            for m in plain.consume(1000, 0.2)
            if m.error() is None
        )
        return len(wanted) >= sum(sent)

    until(read_all)
    plain.close()
    assert len(rows) == sum(sent) > len(sent)
    assert rows == wanted


def test_the_warm_up_compiles_every_loop(cluster: WorkerCluster, reading: Reading):
    assert warm_up() == []
    loops = columns_in.compiled_loops()
    compiled = (loops.read_fields, loops.copy, loops.destroy)
    warm = [list(loop.signatures) for loop in compiled]
    reading.send(cluster, 3)
    for own in (False, True):
        reading.assign(0)
        assert reading.columns.take(3, 5.0, own).offsets.size == 3
    assert [list(loop.signatures) for loop in compiled] == warm
    assert [len(signatures) for signatures in warm] == [1, 1, 1]


def test_headers_are_read_only_on_request(cluster: WorkerCluster, reading: Reading):
    reading.send(cluster, 1)
    reading.assign(0)
    taken, _, _ = reading.until_error()
    assert {fetched.own for fetched in taken} == {None}


def test_an_offset_out_of_range_is_an_error_and_yields_no_rows(reading: Reading):
    reading.assign(100)
    taken, error, _ = reading.until_error()
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert not sum(len(fetched.offsets) for fetched in taken)


def test_a_new_assignment_yields_no_row_of_the_previous_one(cluster: WorkerCluster, reading: Reading):
    reading.send(cluster, 500)
    reading.assign(0)
    first = reading.columns.take(10, 5.0)
    assert first.offsets.tolist() == list(range(10))
    for start in (300, 20, 490):
        reading.assign(start)
        assert reading.columns.take(5, 5.0).offsets.tolist() == list(range(start, start + 5))
    reading.consumer.unassign()
    assert not len(reading.columns.take(5, 0.2).offsets)


def test_the_consumer_itself_gets_none_of_the_columns_records(cluster: WorkerCluster, reading: Reading):
    reading.send(cluster, 1)
    reading.assign(0)
    assert reading.consumer.consume(10, 1.0) == []
    assert reading.columns.take(1, 5.0).offsets.tolist() == [0]


def test_without_numba_there_are_no_columns(monkeypatch: pytest.MonkeyPatch, reading: Reading):
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    monkeypatch.setattr(columns_in, "compiled_loops", columns_in.compiled_loops.__wrapped__)
    with pytest.raises(NativeOff, match=r"\.\[spark\]"):
        ColumnsIn(reading.consumer, reading.topic, 0)
