"""Record batches laid out by the compiled loop, read back by another implementation of Kafka's format."""

import random

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from acktree.spark.native import batch_loop
from acktree.spark.native.cells import find_cells
from acktree.spark.native.record_batches import BATCH_BYTES, encode, no_headers, other_headers
from acktree.wire.header import HEADER, single_headers

PAYLOAD = st.none() | st.binary(max_size=200)
NAMED = st.lists(st.tuples(st.text(max_size=70), PAYLOAD), max_size=3)
ROW = st.tuples(PAYLOAD, PAYLOAD, PAYLOAD, NAMED)
SENDER = (7, 3, 1 << 30)


def laid_out(rows: list[tuple], partitions: int, turn: int = 0) -> list[tuple[int, bytes, int]]:
    """Return (partition, bytes, records) of each batch of rows (value, key, own header, others)."""
    *columns, others = zip(*rows, strict=True) if rows else ((), (), (), ())
    cells = [found for column in columns if (found := find_cells(column, len(rows)))]
    made = []
    for partition, batch in encode(cells, *other_headers(others), partitions, turn):
        batch._set_producer_state(*SENDER)
        made.append((partition, batch._build(), batch.record_count()))
    return made


def read(data: bytes) -> list[tuple]:
    """Return (value, key, own header, others) of a batch's records."""
    records = MemoryRecords(data)
    batch = records.next_batch()
    assert records.next_batch() is None
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == SENDER
    assert batch.is_transactional
    rows = []
    for number, record in enumerate(batch):
        assert record.offset == number
        headers = list(record.headers)
        own = headers.pop()[1] if headers and headers[-1][0] == HEADER else None
        rows.append((record.value, record.key, own, headers))
    assert batch.next_offset == len(rows)
    return rows


@given(st.lists(ROW, max_size=20), st.integers(1, 5), st.integers(0, 9))
def test_an_independent_reader_gets_the_same_rows_in_order(rows: list[tuple], partitions: int, turn: int):
    found: dict[int, list[tuple]] = {}
    for partition, data, count in laid_out(rows, partitions, turn):
        found.setdefault(partition, []).extend(read(data))
        assert count <= len(found[partition])
    expected: dict[int, list[tuple]] = {}
    for row in rows:
        key = row[1]
        place = turn % partitions if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions
        expected.setdefault(place, []).append(row)
    assert found == expected


def test_keys_get_the_partition_that_java_and_librdkafka_choose():
    rng = random.Random(5)
    keys = [rng.randbytes(size) for size in range(70) for _ in range(20)]
    cells = find_cells(keys, len(keys))
    assert cells is not None
    placed = batch_loop.place_keys(cells.places, 11, 0)
    assert placed.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 11 for key in keys]


def test_batches_stay_small_unless_a_single_record_is_larger():
    large = b"x" * (2 * BATCH_BYTES)
    values = [b"v" * 1000] * 600 + [large] + [b"w" * 1000] * 300
    batches = laid_out([(value, None, None, []) for value in values], 3)
    assert [row[0] for _, data, _ in batches for row in read(data)] == values
    sizes = [len(data) for _, data, _ in batches]
    assert sum(size > BATCH_BYTES for size in sizes) == 1
    assert max(sizes) > len(large)
    assert [partition for partition, _, _ in batches] == [number % 3 for number in range(len(batches))]


def test_arrow_rows_with_single_headers_are_read_back_unchanged():
    words = pa.array([b"a", None, b"ccc"] * 40_000, pa.binary())[1:]
    roots = np.arange(1, len(words) + 1, dtype=np.uint64)
    own = single_headers(2, 1, roots, roots)
    columns = [found for column in (words, None, own) if (found := find_cells(column, len(words)))]
    read_back = []
    for _, batch in encode(columns, *no_headers(len(words)), partitions=1, turn=0):
        batch._set_producer_state(*SENDER)
        read_back += read(batch._build())
    expected = zip(words.to_pylist(), own.tolist(), strict=True)
    assert [(value, header) for value, _, header, _ in read_back] == [
        (value, np.array(header, own.dtype).tobytes()) for value, header in expected
    ]


def test_building_a_batch_twice_gives_the_same_bytes():
    ((_, batch),) = encode(
        [found for column in ([b"v"], None, None) if (found := find_cells(column, 1))], *no_headers(1), 1, 0
    )
    batch._set_producer_state(*SENDER)
    assert batch._build() == batch._build()
    assert batch.closed()


@pytest.mark.parametrize("size", [0, 63, 64, 127, 128, 8191, 8192, 1 << 20])
def test_sizes_around_the_bounds_of_varints(size: int):
    rows = [(b"v" * size, b"k" * size, b"o" * size, [("n" * min(size, 9000), b"h" * size)])]
    ((_, data, _),) = laid_out(rows, 1)
    assert read(data) == rows


@pytest.mark.parametrize("column", [[1, 2], [[b"a"], []]])
def test_columns_of_other_types_have_no_cells(column):
    assert find_cells(pa.array(column), 2) is None
