"""Fetches the records of partitions for a read task: as columns, or one by one where that is impossible.

Invariant: both ways give the same rows. One consumer is kept over tasks if Spark reuses the Python process,
with its position: a range that continues where the last one ended needs no new assignment.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from numpy.typing import NDArray

from acktree.core.kafka.clients import consume_ready, make_consumer
from acktree.core.kafka.settings import consumer_settings
from acktree.spark.native.columns_in import BytesColumn, ColumnsIn
from acktree.spark.native.switch import NativeOff
from acktree.spark.shared.options import SourceOptions
from acktree.spark.shared.per_process import PerProcess
from acktree.wire.errors import AcktreeError, MalformedRecord
from acktree.wire.header import find_header, read_headers
from acktree.wire.trace_context import TraceContext, context_of

log = logging.getLogger("acktree.spark")

MAX_CONSUMERS = 16
"""How many a process keeps: one for each component whose records it reads."""
FETCH_WAIT_MS = 20
"""A fetch in progress delays the next assignment of its consumer by this long."""

Place = tuple[str, int]
"""A topic and a partition."""

_OF_A_PARTITION = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)
"""Events that say where a partition's log ends or begins: never those of another partition."""

_STAMP = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class RecordOutOfQueue(AcktreeError):
    """A record did not come through its partition's queue: a bug in acktree or librdkafka."""


class Fetched(NamedTuple):
    """Records in the order of their offsets, and the errors that came with them, each with its offset.

    ``own`` holds acktree's headers, ``headers`` all of them; None if they were not requested. ``traces``
    are the trace contexts of the records that have one, by offset.
    """

    offsets: NDArray[np.int64]
    keys: pa.Array
    values: pa.Array
    stamps: pa.Array
    kinds: pa.Array
    own: pa.Array | None
    headers: pa.Array | None
    errors: list[tuple[KafkaError, int]]
    traces: dict[int, TraceContext]

    def where(self, mask: NDArray[np.bool_]) -> "Fetched":
        """Return some of the records."""
        if mask.all():
            return self
        chosen = pa.array(mask)

        def some(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else column.filter(chosen)

        return Fetched(
            self.offsets[mask],
            some(self.keys),
            some(self.values),
            some(self.stamps),
            some(self.kinds),
            some(self.own),
            some(self.headers),
            self.errors,
            self.traces,
        )


class Fetching:
    """Fetches from some partitions at a time, with one consumer.

    ``position`` is where the only assigned partition continues; None: the assignment is of no use.
    """

    def __init__(self, options: SourceOptions) -> None:
        settings = consumer_settings(
            options.bootstrap,
            options.group,
            options.kafka,
            auto_offset_reset="error",
            enable_partition_eof=True,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )
        self.consumer: Consumer = make_consumer(settings)
        self._is_for_bolt, self._with_headers = bool(options.bolt), options.include_headers
        self.reads_columns = not self._with_headers
        """Whether records are fetched as columns, not one by one."""
        self._columns: dict[Place, ColumnsIn] = {}
        self._ends: dict[Place, int] = {}
        self._waiting: dict[Place, list[Message]] = {}
        self.position: tuple[Place, int] | None = None

    def assign(self, bounds: Mapping[Place, tuple[int, int]]) -> None:
        """Fetch partitions, each from its first offset up to its last one, and no others."""
        for place in bounds.keys() - self._columns.keys() if self.reads_columns else ():
            self._open_columns(place)
        self._ends = {place: end for place, (_, end) in bounds.items()}
        self._waiting = {place: [] for place in bounds}
        self.consumer.assign([TopicPartition(*place, start) for place, (start, _) in bounds.items()])

    def _open_columns(self, place: Place) -> None:
        try:
            self._columns[place] = ColumnsIn(self.consumer, *place)
        except NativeOff as reason:
            log.info("records are read one by one: %s", reason, extra={"action": "no_columns"})
            self.reads_columns = False

    def move(self, place: Place, offset: int, end: int) -> None:
        """Go on with a partition at another offset."""
        self.release(place)
        self._ends[place], self._waiting[place] = end, []
        self.consumer.incremental_assign([TopicPartition(*place, offset)])

    def release(self, place: Place) -> None:
        """Fetch no more of a partition."""
        if self._ends.pop(place, None) is not None:
            self.consumer.incremental_unassign([TopicPartition(*place)])

    def is_ahead_of(self, place: Place, offset: int) -> bool:
        """Return whether the client knows of records from there on, and so has begun to fetch them.

        Where there are none it would ask the broker many times a second, to the end of this process.
        """
        _, next_offset = self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        return next_offset > offset

    def fetch(self, place: Place, max_records: int, timeout_s: float) -> Fetched:
        """Return what has come of a partition, at most ``max_records``, or comes within ``timeout_s``.

        The client bounds what has come in bytes; who waited for ``max_records`` would get them at any size.
        """
        if not self.reads_columns:
            return self._fetched_one_by_one(self._consume(place, max_records, timeout_s))
        taken = self._columns[place].take(max_records, timeout_s, own=self._is_for_bolt)
        beside = self.consumer.consume(1, 0)
        of_client = [each for each in _errors(beside) if each[0].code() not in _OF_A_PARTITION]
        if any(message.error() is None for message in beside):
            raise RecordOutOfQueue(
                f"a record of {place} arrived outside its queue; it would be counted as absent"
            )
        return Fetched(
            taken.offsets,
            _binary(taken.keys),
            _binary(taken.values),
            _stamps(taken.stamps_ms),
            _timestamp_types(taken.kinds),
            None if taken.own is None else _binary(taken.own),
            None,
            [*taken.errors, *of_client],
            taken.traces,
        )

    def _consume(self, place: Place, max_records: int, timeout_s: float) -> list[Message]:
        """Return messages of a partition; keep those of others, and release who has come to its end."""
        if not self._waiting[place]:
            ready = consume_ready(self.consumer, max_records, timeout_s)
            for message in ready + self.consumer.consume(max_records - len(ready), 0):
                of = (message.topic() or "", message.partition() or 0)
                if (end := self._ends.get(of)) is not None:
                    self._waiting[of].append(message)
                    if of != place and message.error() is None and (message.offset() or 0) >= end - 1:
                        self.release(of)
                elif of not in self._waiting and message.error() is not None:
                    self._waiting[place].append(message)  # of the client as a whole
        taken = self._waiting[place][:max_records]
        del self._waiting[place][:max_records]
        return taken

    def _fetched_one_by_one(self, messages: list[Message]) -> Fetched:
        errors = _errors(messages)
        rows = [m for m in messages if m.error() is None] if errors else messages
        fields = np.array([(m.offset(), *reversed(m.timestamp())) for m in rows], np.int64).reshape(-1, 3)
        all_headers: list[Any] = list(map(_headers_of, rows))
        own = [find_header(headers) for headers in all_headers] if self._is_for_bolt else None
        contexts = ((m.offset() or 0, context_of(h)) for m, h in zip(rows, all_headers, strict=True) if h)
        return Fetched(
            fields[:, 0],
            pa.array([m.key() for m in rows], pa.binary()),
            pa.array([m.value() for m in rows], pa.binary()),
            _stamps(fields[:, 1]),
            _timestamp_types(fields[:, 2]),
            None if own is None else pa.array(own, pa.binary()),
            pa.array([_header_rows(h) for h in all_headers], _HEADERS) if self._with_headers else None,
            errors,
            {offset: context for offset, context in contexts if context is not None},
        )

    def close(self) -> None:
        """Close the connections."""
        for columns in self._columns.values():
            columns.close()
        self.consumer.close()


_kept: PerProcess[Fetching] = PerProcess()


def fetching(options: SourceOptions) -> Fetching:
    """Return this process's consumer of a component's records."""
    purpose = (options.bootstrap, options.group, options.bolt, options.include_headers, options.kafka)

    def make() -> Fetching:
        for oldest in _kept.pop_oldest(MAX_CONSUMERS):
            oldest.close()
        return Fetching(options)

    return _kept.get(make, *purpose)


def _errors(messages: list[Message]) -> list[tuple[KafkaError, int]]:
    return [(error, m.offset() or 0) for m in messages if (error := m.error()) is not None]


def _binary(cells: BytesColumn) -> pa.Array:
    there = None if cells.is_there is None else pa.py_buffer(np.packbits(cells.is_there, bitorder="little"))
    buffers = [there, pa.py_buffer(cells.bounds), pa.py_buffer(cells.data)]
    return pa.Array.from_buffers(pa.large_binary(), len(cells.bounds) - 1, buffers).cast(pa.binary())


def _stamps(milliseconds: NDArray[np.int64]) -> pa.Array:
    return pa.array(milliseconds * 1000, _STAMP)


def _timestamp_types(kinds: NDArray[np.int64]) -> pa.Array:
    """Return Spark's timestampType: librdkafka counts from 1."""
    return pa.array(kinds - 1, pa.int32())


def _headers_of(message: Message) -> list[Any] | None:
    """Return a record's headers; None if it has none, or if they cannot be read, which is logged."""
    try:
        return read_headers(message) or None
    except MalformedRecord as error:
        place = f"{message.topic()}/{message.partition()}/{message.offset()}"
        log.warning("dropping the headers of %s: %s", place, error, extra={"action": "headers_unread"})
        return None


def _header_rows(headers: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
