"""Both ways to take records of a partition give the same rows; so do both ways to see a bolt's anchors."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError
from confluent_kafka.admin import NewTopic
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.settings import MAX_FETCHED_KBYTES, producer_settings
from acktree.core.topology.registry import History, read_history
from acktree.spark.native import columns_in
from acktree.spark.native.switch import NativeOff
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.reading import bolt_anchors
from acktree.spark.tasks.reading import fetching as fetching_module
from acktree.spark.tasks.reading.bolt_anchors import BoltAnchors
from acktree.spark.tasks.reading.fetching import Fetched, Fetching, fetching
from acktree.spark.tasks.reading.read_range import (
    MAX_ASSIGNED,
    MAX_ROWS,
    SMALL_BATCH,
    ReadRange,
    read_records,
)
from acktree.wire.header import HEADER, Anchor, encode_header
from producers.cluster import WorkerCluster

RECORDS = 300
PARENTS = (b"00-%032x-%016x-01" % (5, 6), b"00-%032x-%016x-00" % (7, 8), b"no trace", None)


@pytest.fixture
def topic(bootstrap: str, unique: str) -> str:
    cluster = WorkerCluster(bootstrap, unique)
    cluster.apply(only=(["a"], ["b"]), other=(["b"], []))
    return cluster.topic("b")


def options(bootstrap: str, topic: str, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "topology": topic.partition(".")[0], "bolt": "other"}
    return SourceOptions.parse(given | more)


def header(version: int, roots: list[int]) -> bytes:
    return encode_header(version, [Anchor(1, root, root * 7) for root in roots])


def fetch(way: Fetching, topic: str) -> Fetched:
    """Return all records of a partition up to its end."""
    place = (topic, 0)
    way.assign({place: (0, RECORDS + 1)})
    parts: list[Fetched] = []
    for _ in range(200):
        parts.append(way.fetch(place, 50, 0.2))
        if parts[-1].errors:
            break
    way.close()
    assert [(error.code(), offset) for error, offset in parts[-1].errors] == [
        (KafkaError._PARTITION_EOF, RECORDS)
    ]
    offsets = np.concatenate([part.offsets for part in parts])
    columns = (
        None if column[0] is None else pa.concat_arrays(column)
        for column in zip(*(p[1:7] for p in parts), strict=True)
    )
    traces = {offset: context for part in parts for offset, context in part.traces.items()}
    return Fetched(offsets, *columns, [], traces)


def read_all(ranges: list[ReadRange]) -> list[tuple[int, int]]:
    """Return (partition, offset) of all rows of ranges, in their order."""
    return [
        (range_.partition, offset)
        for range_, records, _ in read_records(ranges)
        for fetched in records
        for offset in fetched.offsets.tolist()
    ]


def same(one: Fetched, other: Fetched) -> bool:
    assert one.offsets.tolist() == other.offsets.tolist() == list(range(RECORDS))
    assert one.traces == other.traces
    return all(a is b if a is None else a.equals(b) for a, b in zip(one[1:7], other[1:7], strict=True))


def test_both_readers_give_the_same_rows(bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch):
    producer = make_producer(producer_settings(bootstrap, {}))
    for number in range(RECORDS):
        headers = [("u", b"1"), (HEADER, header(1, [number + 1]))][number % 3 : 2]
        headers += [("traceparent", PARENTS[number % 4]), ("tracestate", b"a=%d" % number)][: number % 7 % 3]
        key, value = (None if number % each == 0 else b"%d" % number for each in (2, 5))
        producer.produce(topic, value, key, 0, timestamp=1_700_000_000_000 + number, headers=headers)
    assert producer.flush(30) == 0
    as_columns = Fetching(options(bootstrap, topic))
    fast = fetch(as_columns, topic)
    assert as_columns.reads_columns

    def absent() -> None:
        raise NativeOff("no numba here")

    monkeypatch.setattr(columns_in, "compiled_loops", absent)
    one_by_one = Fetching(options(bootstrap, topic))
    assert same(fast, fetch(one_by_one, topic))
    assert not one_by_one.reads_columns
    assert fast.own is not None
    assert fast.own.null_count == RECORDS // 3
    assert fast.headers is None
    assert len(fast.traces) > RECORDS / 4
    assert {context.state is None for context in fast.traces.values()} == {True, False}
    with_headers = fetch(Fetching(options(bootstrap, topic, includeHeaders="true")), topic)
    assert with_headers.headers is not None
    assert same(fast, with_headers._replace(headers=None))


@pytest.mark.parametrize("include_headers", ["false", "true"])
def test_of_large_records_a_fetch_returns_few(bootstrap: str, topic: str, include_headers: str):
    producer = make_producer(producer_settings(bootstrap, {}))
    count, value = 300, b"x" * 200_000
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    way, place, sizes = Fetching(options(bootstrap, topic, includeHeaders=include_headers)), (topic, 0), []
    way.assign({place: (0, count + 1)})
    while sum(sizes) < count * len(value):
        sizes.append(way.fetch(place, MAX_ROWS, 1.0).values.nbytes)
    way.close()
    assert max(sizes) < 2 * MAX_FETCHED_KBYTES << 10


HEADERS: dict[str, Callable[[int], bytes | None]] = {
    "sound": lambda number: header(1, [number]),
    "two anchors": lambda number: header(1, [number, number + 1]),
    "no anchor": lambda _number: header(1, []),
    "none": lambda _number: None,
    "of a version that is not there": lambda number: header(9, [number]),
    "root 0": lambda _number: header(1, [0]),
    "another format": lambda number: b"\2" + header(1, [number])[1:],
    "cut off": lambda number: header(1, [number])[:-1],
}


def test_anchors_of_many_tuples_equal_those_of_single_ones(bootstrap: str, topic: str):
    anchors = BoltAnchors(bootstrap, topic.partition(".")[0], "other", {})

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @example(["sound", "of a version that is not there"])
    @given(kinds=st.lists(st.sampled_from(["sound", "sound", "sound", *HEADERS]), max_size=6))
    def check(kinds: list[str]) -> None:
        headers = [HEADERS[kind](number) for number, kind in enumerate(kinds, 1)]
        offsets = np.arange(len(headers))
        columns = anchors.of_all(pa.array(headers, pa.binary()), topic, 0, offsets)
        is_tracked = {"sound", "two anchors"}
        wanted = [data[3:] if kind in is_tracked else None for kind, data in zip(kinds, headers, strict=True)]
        assert columns.to_pylist() == wanted
        elsewhere = anchors.of_all(pa.array(headers, pa.binary()), "stranger", 0, offsets)
        assert elsewhere.null_count == len(headers)

    check()


def test_many_tuples_of_unknown_versions_cost_one_registry_lookup(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors = BoltAnchors(bootstrap, topic.partition(".")[0], "other", {})
    looks: list[object] = []

    def counted(*place: object) -> History:
        looks.append(place)
        return read_history(*place)  # type: ignore[arg-type]

    monkeypatch.setattr(bolt_anchors, "read_history", counted)
    headers = pa.array([header(version, [1]) for version in range(7, 27)], pa.binary())
    assert anchors.of_all(headers, topic, 0, np.arange(20)).null_count == 20
    assert len(looks) == 1


def test_a_partition_read_to_its_end_is_released_and_one_with_more_is_kept(
    bootstrap: str, topic: str
) -> None:
    """Who is assigned at the end of a log asks for more fifty times a second while the process lives."""
    of = options(bootstrap, topic)
    producer = make_producer(producer_settings(bootstrap, {}))
    half = SMALL_BATCH + 1
    for _ in range(2 * half):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    source = fetching(of)
    for start, end, is_kept in ((0, half, True), (half, 2 * half, False)):
        range_ = ReadRange(of, topic, 0, 0, 16, 1, False, None, start, end)
        assert read_all([range_]) == [(0, offset) for offset in range(start, end)]
        assert bool(source.consumer.assignment()) is is_kept
        assert source.position == (((topic, 0), end) if is_kept else None)


PARTITIONS = MAX_ASSIGNED + 2


@pytest.mark.parametrize("headers", ["false", "true"], ids=["columns", "one by one"])
def test_one_consumer_reads_any_number_of_partitions(
    bootstrap: str, unique: str, headers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client per partition takes threads, connections and logins at every trigger."""
    admin = make_admin(bootstrap, {})  # must outlive its futures
    admin.create_topics([NewTopic(unique, PARTITIONS)])[unique].result()
    clients: list[Consumer] = []

    def counted(settings: dict[str, object]) -> Consumer:
        clients.append(make_consumer(settings))
        return clients[-1]

    monkeypatch.setattr(fetching_module, "make_consumer", counted)
    of = options(bootstrap, unique, includeHeaders=headers)
    producer = make_producer(producer_settings(bootstrap, {}))
    for start in (0, 5):
        for partition in range(PARTITIONS):
            for _ in range(7):
                producer.produce(unique, b"x", partition=partition)
        assert producer.flush(30) == 0
        ends = [(partition, start + 5) for partition in range(PARTITIONS)]
        ranges = [ReadRange(of, unique, n, n, 16, 1, False, None, start, end) for n, end in ends]
        again = [ReadRange(of, unique, n, n, 17, 1, False, None, 1, 3, (1, 2)) for n in (0, 1, 17)]
        wanted = [(range_.partition, offset) for range_ in ranges for offset in range(start, start + 5)]
        wanted += [(range_.partition, offset) for range_ in again for offset in (1, 2)]
        assert read_all([*ranges, *again]) == wanted
    assert len(clients) == 1
    assert clients[0].assignment() == []
