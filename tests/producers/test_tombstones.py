"""A record without a value is a tombstone, an empty one is not: both are passed on unchanged."""

import sqlite3

import pytest
from confluent_kafka import Message

from acktree.console.view.records.dead_letters import dead_letter_of
from acktree.core import world
from acktree.core.kafka.clients import make_producer
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.idempotency import WriteOnce
from acktree.producers.testing import BoltDouble
from acktree.wire.header import HEADER
from producers.cluster import WorkerCluster, until
from producers.trees import Net, published

pytestmark = pytest.mark.simulated


class BasicCopy(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, headers=tup.headers, timestamp_ms=tup.timestamp_ms)


class ByHandCopy(Bolt):
    def execute(self, tup, collector):
        collector.emit(tup.value, anchors=tup, headers=tup.headers, timestamp_ms=tup.timestamp_ms)
        collector.ack(tup)


class AsyncCopy(AsyncBolt):
    async def execute(self, tup, emit):
        emit(tup.value, headers=tup.headers, timestamp_ms=tup.timestamp_ms)


class BatchCopy(BatchBolt):
    def execute(self, tuples, collector):
        for tup in tuples:
            collector.emit(tup.value, anchors=tup, headers=tup.headers, timestamp_ms=tup.timestamp_ms)


class ColumnsCopy(BatchBolt):
    def execute(self, tuples, collector):
        collector.emit_many(tuples.values, tuples)


class TablesCopy(BatchBolt):
    def execute(self, tuples, collector):
        table = tuples.table()
        collector.emit_many(table["value"], table["row"])


ONE_BY_ONE = [BasicCopy, ByHandCopy, AsyncCopy, BatchCopy]


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", [*ONE_BY_ONE, ColumnsCopy, TablesCopy])
def test_null_stays_null_and_empty_stays_empty(kind, exactly_once):
    double = BoltDouble(kind(), exactly_once=exactly_once)
    double.give(None, b"", b"x")
    double.close()
    assert {emission.anchors: emission.value for emission in double.emitted} == {
        (0,): None,
        (1,): b"",
        (2,): b"x",
    }
    assert double.open == {}


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_a_child_has_the_headers_and_timestamp_that_the_bolt_passes_on(kind, exactly_once):
    double = BoltDouble(kind(), exactly_once=exactly_once)
    double.give(b"x", b"y", headers=[("h", b"1"), ("null", None)])
    double.close()
    passed_on = {emission.anchors: (emission.headers, emission.timestamp_ms) for emission in double.emitted}
    headers = [("h", b"1"), ("null", None)]
    assert passed_on == {(0,): (headers, None), (1,): (headers, 1)}  # the double's first tuple is of time 0


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", [BasicCopy, ByHandCopy, pytest.param(ColumnsCopy, marks=pytest.mark.real)])
def test_a_filter_before_a_compacted_topic_passes_deletes_on(cluster: WorkerCluster, kind, exactly_once):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    earlier_ms = world.wall_ms() - 3_600_000
    producer = make_producer({"bootstrap.servers": cluster.bootstrap})
    for value in (None, b""):
        producer.produce(cluster.topic("a"), value, headers=[("h", None)], timestamp=earlier_ms)
    producer.flush()
    worker = cluster.start(kind())
    until(lambda: worker.acked == 2)
    worker.stop()
    records = cluster.read(cluster.topic("b"))
    assert sorted((record.value() is None, record.value() or b"") for record in records) == [
        (False, b""),
        (True, b""),
    ]
    if kind is not ColumnsCopy:
        assert {record.timestamp()[1] for record in records} == {earlier_ms}
        assert all(("h", None) in record.headers() for record in records)


def test_a_null_is_written_once_as_null():
    net, once = Net(published(one=(["a"], []))), WriteOnce()
    cursor = sqlite3.connect(":memory:").cursor()
    once.create(cursor)
    cursor.execute("create table lines(text)")
    record = net.spout(7)
    net.produce("a", None, None, [(HEADER, dict(record.headers())[HEADER])])
    for _ in range(2):
        tup = net.take("one", net.topics["a"][-1])
        if once.first(cursor, tup, 0):
            cursor.execute("insert into lines values (?)", (tup.value,))
    assert cursor.execute("select text from lines").fetchall() == [(None,)]


@pytest.mark.parametrize(("value", "shown"), [(None, None), (b"", "")])
def test_a_dead_letter_shows_a_tombstone_as_such(value, shown):
    dead_letter = dead_letter_of(
        Message(topic="t.dead-letter", partition=0, offset=0, value=value, timestamp=(1, 1)), {}
    )
    assert dead_letter.value == shown
