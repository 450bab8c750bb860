"""Encodes columns of records as Kafka's record batches, for a producer that takes whole batches: aiokafka.

librdkafka takes records one by one: it allocates a message, and three pieces a header, and frees them again,
five times the work of laying a record out. A batch here is laid out by a compiled loop, in one piece.

Invariant: a batch holds the rows of one partition in their order; its bytes do not change once it was sent.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
from aiokafka.producer.message_accumulator import BatchBuilder
from numpy.typing import NDArray

from acktree.core import world
from acktree.producers.columns import Pairs
from acktree.spark.native import batch_loop as loop
from acktree.spark.native.cells import Cells, find_cells
from acktree.wire.avro import zigzag
from acktree.wire.header import HEADER

BATCH_BYTES = 786_432
"""A batch's limit, below the broker's default of a megabyte; a larger record gets its own batch.

Each batch costs client and broker about as much as two thousand records in it.
"""
RECORD_BYTES = 64
"""More than a record takes beside its key, its value and what its headers take beside name and value."""
_HEAD = struct.Struct(">qiibI")
_STATE = struct.Struct(">hiqqqhii")
_LENGTH_AND_OFFSET_BYTES, _STATE_AT = 12, 21
_FORMAT, _IN_TRANSACTION = 2, 0x10
_UNKNOWN_LEADER_EPOCH = -1


class EncodedBatch(BatchBuilder):  # type: ignore[misc]
    """A batch of encoded records, in place of one that ``AIOKafkaProducer.send_batch`` has built.

    aiokafka sets the producer and the sequence number before it requests the bytes.
    """

    def __init__(self, memory: NDArray[np.uint8], count: int) -> None:
        """Take records that begin at HEAD_BYTES and fill ``memory``; they belong to a transaction."""
        super().__init__(len(memory), 0)
        self._memory, self._count = memory, count
        self._producer_state = (-1, -1, -1)
        self._bytes: bytes | None = None
        self.close()

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        return len(self._memory)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer_state = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytes:
        if self._bytes is None:
            now_ms = world.wall_ms()
            state = (_IN_TRANSACTION, self._count - 1, now_ms, now_ms, *self._producer_state, self._count)
            _STATE.pack_into(self._memory.data, _STATE_AT, *state)
            checked = self._memory[_STATE_AT:]
            checked.flags.writeable = False  # else it is taken for bytes that may change meanwhile
            following = len(self._memory) - _LENGTH_AND_OFFSET_BYTES
            head = (0, following, _UNKNOWN_LEADER_EPOCH, _FORMAT, google_crc32c.value(checked))
            _HEAD.pack_into(self._memory.data, 0, *head)
            self._bytes = self._memory.tobytes()
        return self._bytes


def record_bytes(columns: Sequence[Cells], others: Cells) -> NDArray[np.int64]:
    """Return how many bytes each record takes at most; ``columns`` as in ``encode``."""
    sizes: NDArray[np.int64] = sum(cells.places[1].clip(0) for cells in (*columns, others))
    return sizes + len(HEADER) + RECORD_BYTES


def no_headers(count: int) -> tuple[Cells, NDArray[np.int64]]:
    """Return what ``encode`` takes for ``count`` rows without user headers."""
    return Cells(np.zeros((2, count), np.int64), None), np.zeros(count, np.int64)


def other_headers(pairs: Sequence[Pairs]) -> tuple[Cells, NDArray[np.int64]]:
    """Return the user's headers of each row, encoded, and how many they are."""
    cells = find_cells([b"".join(map(_encoded, each)) for each in pairs], len(pairs))
    assert cells is not None
    return cells, np.fromiter(map(len, pairs), np.int64, len(pairs))


def _encoded(pair: Any) -> bytes:
    name, value = pair
    return _cell(name) + _cell(value)


def _cell(part: bytes | str | None) -> bytes:
    if part is None:
        return b"\x01"  # -1
    text = part.encode() if isinstance(part, str) else bytes(part)
    return zigzag(len(text)) + text


_NAME = np.frombuffer(_cell(HEADER), np.uint8)


def encode(
    columns: Sequence[Cells],
    others: Cells,
    counts: NDArray[np.int64],
    partitions: int,
    turn: int,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[tuple[int, EncodedBatch]]:
    """Yield batches, each with its partition, of rows of a topic with ``partitions`` partitions.

    ``columns`` are values, keys and own headers; ``others`` and ``counts`` as of ``other_headers``. Rows
    without a key go, batch by batch, to one partition after another, the first to number ``turn``. A batch of
    several rows is no larger than ``max_bytes``.
    """
    keys = columns[1].places
    if (keys[1] < 0).all():
        yield from _batches(np.arange(keys.shape[1]), columns, others, counts, partitions, turn, max_bytes)
        return
    placed = loop.place_keys(keys, partitions, turn % partitions)
    order = np.argsort(placed, kind="stable")
    bounds = np.flatnonzero(np.diff(placed[order])) + 1
    for rows in np.split(order, bounds):
        for _, batch in _batches(rows, columns, others, counts, 1, 0, max_bytes):
            yield int(placed[rows[0]]), batch


def _batches(
    rows: NDArray[np.int64],
    columns: Sequence[Cells],
    others: Cells,
    counts: NDArray[np.int64],
    partitions: int,
    turn: int,
    max_bytes: int,
) -> Iterator[tuple[int, EncodedBatch]]:
    places = tuple(np.ascontiguousarray(cells.places) for cells in (*columns, others))
    largest = record_bytes(columns, others)
    while len(rows):
        sizes = largest[rows]
        room = max(max_bytes, loop.HEAD_BYTES + int(sizes[0]))
        memory = np.empty(min(room, loop.HEAD_BYTES + int(sizes.sum())), np.uint8)
        taken, end = loop.encode_rows(memory, rows, _NAME, places, counts)
        yield turn % partitions, EncodedBatch(memory[:end], taken)
        rows, turn = rows[taken:], turn + 1


def warm_up() -> None:
    """Compile or load the loops."""
    cells = find_cells([b""], 1)
    assert cells is not None
    for _ in encode([cells] * 3, *no_headers(1), partitions=1, turn=0):
        pass
