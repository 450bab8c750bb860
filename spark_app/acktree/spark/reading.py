"""The executor side of the source: read exactly the offsets a batch names, as Arrow batches.

Invariant: a task ends only when it has read up to the end of its range; offsets that are not there
(compaction, transaction markers) are proven absent by reading past them, and the ledger is told. Clients live
in this module, so they outlast a task where Spark re-uses the Python process.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from acktree.schemas.clients import consumer_settings, make_consumer
from acktree.schemas.codec import Absent, Span, encode_absent
from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import ANCHOR
from acktree.schemas.ids import root_ids
from acktree.schemas.registry import Published
from acktree.spark.batch import Batch, Range, Replays
from acktree.spark.bolt_anchors import bolt_anchors
from acktree.spark.options import SourceOptions
from acktree.spark.outbox import outbox
from acktree.spark.task_notes import add_to_note, begin_note

MAX_ROWS = 10_000
MAX_CACHED_CONSUMERS = 16
STALL_S = 60.0
REPLAY_GAP = 1_000
MAX_SPANS = 20_000
SMALL_BATCH = 2_000
FETCH_WAIT_MS = 20
"""A fetch under way delays the next assignment of its consumer by as much."""

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, anchors binary"
)
HEADERS_COLUMN = ", headers array<struct<key: string, value: binary>>"

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class OffsetOutOfRange(AcktreeError):
    """A planned offset is no longer in the topic."""


class ReadStalled(AcktreeError):
    """The broker delivered nothing for STALL_S seconds though the range is not read."""


@dataclass(frozen=True)
class Piece:
    """Offsets [start, end) of one partition, all of them or only ``only``.

    ``anchored``: rows are roots (of a spout) or carry their tuple's anchors (to a bolt); not where tracking
    is off. ``result_topic`` is where a spout's ledger is told of absent offsets.
    """

    options: SourceOptions
    topic: str
    partition: int
    slot: int
    generation: int
    version: int
    anchored: bool
    result_topic: str | None
    start: int
    end: int
    only: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads."""

    pieces: tuple[Piece, ...]


def shares(options: SourceOptions, published: Published, batch: Batch) -> list[Share]:
    """Return a task per range that is not empty; replays go in one, and so does all of a small batch."""
    fresh, again = _pieces(options, published, batch)
    if batch.records <= SMALL_BATCH:
        return [Share((*fresh, *again))]
    return [Share((piece,)) for piece in fresh] + ([Share(tuple(again))] if again else [])


def _pieces(options: SourceOptions, published: Published, batch: Batch) -> tuple[list[Piece], list[Piece]]:
    """Return pieces for the ranges and for the replays.

    Neighbouring replays are read in one stretch, far ones are sought one by one.
    """
    anchored = published.ackers > 0 or bool(options.bolt)
    topics: dict[int, str] = {}
    if options.spout and anchored:
        slots = published.slots_of(options.spout)
        topics = {slot.slot: published.result_topic(published.task_of(slot)) for slot in slots}

    def piece(of: Range | Replays, generation: int, start: int, end: int, only: list[int] | None) -> Piece:
        place = (of.topic, of.partition, of.slot, generation, batch.version, anchored, topics.get(of.slot))
        return Piece(options, *place, start, end, None if only is None else tuple(only))

    fresh = [piece(r, r.run << 4, r.start, r.end, None) for r in batch.ranges if r.start < r.end]
    again = [
        piece(replays, replays.generation, stretch[0], stretch[-1] + 1, stretch)
        for replays in batch.replays
        for stretch in _stretches(replays.offsets)
    ]
    return fresh, again


def _stretches(offsets: tuple[int, ...]) -> list[list[int]]:
    stretches: list[list[int]] = []
    for offset in offsets:
        if stretches and offset - stretches[-1][-1] <= REPLAY_GAP:
            stretches[-1].append(offset)
        else:
            stretches.append([offset])
    return stretches


def read_share(share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task's pieces.

    Raises:
        OffsetOutOfRange: the topic no longer holds the start.
        ReadStalled: no progress for STALL_S seconds.
    """
    begin_note()
    for piece in share.pieces:
        yield from _read_piece(piece)


def _read_piece(piece: Piece) -> Iterator[pa.RecordBatch]:
    wanted = np.arange(piece.start, piece.end) if piece.only is None else np.array(piece.only)
    only = None if piece.only is None else frozenset(piece.only)
    seen: list[NDArray[np.int64]] = []
    for messages in _read(piece):
        rows = messages if only is None else [m for m in messages if m.offset() in only]
        if rows:
            offsets = np.fromiter((m.offset() for m in rows), np.int64, len(rows))
            seen.append(offsets)
            batch = _to_arrow(piece, rows, offsets)
            add_to_note(b"".join(filter(None, batch.column("anchors").to_pylist())))
            yield batch
    if piece.result_topic is not None and sum(map(len, seen)) < len(wanted):
        absent = np.setdiff1d(wanted, np.concatenate([np.empty(0, np.int64), *seen]), assume_unique=True)
        _tell_absent(piece, piece.result_topic, absent)


def _tell_absent(piece: Piece, topic: str, absent: NDArray[np.int64]) -> None:
    runs = np.split(absent, np.flatnonzero(np.diff(absent) != 1) + 1)
    spans = [Span(int(run[0]), int(run[-1]) + 1) for run in runs]
    box = outbox(piece.options.bootstrap, piece.options.kafka)
    for at in range(0, len(spans), MAX_SPANS):
        box.send(topic, 0, encode_absent(Absent(piece.slot, spans[at : at + MAX_SPANS])))
    box.settle()


_consumers: dict[tuple[Any, ...], Consumer] = {}
_positions: dict[tuple[Any, ...], int] = {}


def _consumer(piece: Piece) -> tuple[tuple[Any, ...], Consumer]:
    options = piece.options
    place = (
        os.getpid(),
        options.bootstrap,
        piece.topic,
        piece.partition,
        tuple(sorted(options.kafka.items())),
    )
    if place not in _consumers:
        while len(_consumers) >= MAX_CACHED_CONSUMERS:
            oldest = next(iter(_consumers))
            _consumers.pop(oldest).close()
            _positions.pop(oldest, None)
        settings = consumer_settings(
            options.bootstrap,
            options.group,
            options.kafka,
            auto_offset_reset="error",
            enable_partition_eof=True,
            queued_max_messages_kbytes=16_384,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )
        _consumers[place] = make_consumer(settings)
    return place, _consumers[place]


def _read(piece: Piece) -> Iterator[list[Message]]:
    place, consumer = _consumer(piece)
    if _positions.pop(place, None) != piece.start:
        consumer.assign([TopicPartition(piece.topic, piece.partition, piece.start)])
    position, last_progress_s = piece.start, time.monotonic()
    while position < piece.end:
        messages: list[Message] = []
        for message in consumer.consume(min(MAX_ROWS, piece.end - position), 1.0):
            error = message.error()
            if error is None:
                position = (message.offset() or 0) + 1
                if position <= piece.end:
                    messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise OffsetOutOfRange(
                    f"{piece.topic}/{piece.partition} no longer holds offset {position}: it was removed by "
                    "retention, or the topic was re-created; to go on behind the gap, set the offset of "
                    f"group {piece.options.group} with kafka-consumer-groups"
                )
            elif not error.retriable():
                raise KafkaException(error)
            last_progress_s = time.monotonic()
        if messages:
            yield messages
        if time.monotonic() - last_progress_s > STALL_S:
            raise ReadStalled(
                f"{piece.topic}/{piece.partition} delivered nothing from offset {position} "
                f"(of {piece.start} to {piece.end}) for {STALL_S:g} s"
            )
    if piece.end - piece.start <= SMALL_BATCH:
        consumer.unassign()
    elif position == piece.end:
        _positions[place] = position


def _to_arrow(piece: Piece, messages: list[Message], offsets: NDArray[np.int64]) -> pa.RecordBatch:
    count = len(messages)
    stamps = [m.timestamp() for m in messages]
    columns = [
        pa.array([m.key() for m in messages], pa.binary()),
        pa.array([m.value() for m in messages], pa.binary()),
        pa.array([piece.topic], pa.string()).take(pa.array(np.zeros(count, np.int32))),
        pa.array(np.full(count, piece.partition, np.int32)),
        pa.array(offsets),
        pa.array(np.fromiter((s[1] for s in stamps), np.int64, count) * 1000, pa.timestamp("us", tz="UTC")),
        pa.array(np.fromiter((s[0] - 1 for s in stamps), np.int32, count)),
        _anchors(piece, messages, offsets),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "anchors"]
    if piece.options.include_headers:
        columns.append(pa.array([_header_rows(m.headers()) for m in messages], _HEADERS))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names)


def _header_rows(headers: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _anchors(piece: Piece, messages: list[Message], offsets: NDArray[np.int64]) -> pa.Array:
    if not piece.anchored:
        return pa.nulls(len(offsets), pa.binary())
    if piece.options.bolt:
        options = piece.options
        intake = bolt_anchors(options.bootstrap, options.topology, options.bolt, options.kafka)
        return pa.array([intake.of(message) for message in messages], pa.binary())
    rows = np.zeros(len(offsets), ANCHOR)
    rows["version"] = piece.version
    rows["root"] = root_ids(piece.slot, piece.generation, offsets)
    bounds = np.arange(len(offsets) + 1, dtype=np.int32) * ANCHOR.itemsize
    return pa.Array.from_buffers(
        pa.binary(), len(offsets), [None, pa.py_buffer(bounds.tobytes()), pa.py_buffer(rows.tobytes())]
    )
