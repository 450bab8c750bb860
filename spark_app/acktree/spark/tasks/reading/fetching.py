"""How a read task fetches the records of a partition: as columns, or one by one where that is impossible.

Invariant: both ways give the same rows. A consumer is kept over tasks where Spark re-uses the Python process,
with its position: a range that continues where the last one ended needs no new assignment.
"""

import logging
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from numpy.typing import NDArray

from acktree.producers.native.librdkafka import NoColumns
from acktree.schemas.client_settings import consumer_settings
from acktree.schemas.clients import make_consumer
from acktree.schemas.errors import AcktreeError, MalformedRecord
from acktree.schemas.header import find_header, read_headers
from acktree.schemas.trace_context import TraceContext, context_of
from acktree.spark.shared.options import SourceOptions
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.reading.columns_in import BytesColumn, ColumnsIn

log = logging.getLogger("acktree.spark")

MAX_CACHED_CONSUMERS = 16
FETCH_WAIT_MS = 20
"""A fetch in progress delays the next assignment of its consumer by this long."""

_STAMP = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class RecordOutOfQueue(AcktreeError):
    """A record did not come through its partition's queue: a defect, here or in librdkafka."""


class Fetched(NamedTuple):
    """Records in the order of their offsets, and the errors that came with them, each with its offset.

    ``own`` holds acktree's headers, ``headers`` all of them; None where they were not asked for. ``traces``
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
    """A consumer of one partition and the way its records are taken; ``position`` None: not assigned."""

    def __init__(self, options: SourceOptions, topic: str, partition: int) -> None:
        settings = consumer_settings(
            options.bootstrap,
            options.group,
            options.kafka,
            auto_offset_reset="error",
            enable_partition_eof=True,
            queued_max_messages_kbytes=16_384,
            fetch_wait_max_ms=FETCH_WAIT_MS,
        )
        self.consumer: Consumer = make_consumer(settings)
        self._place = (topic, partition)
        self._is_for_bolt, self._with_headers = bool(options.bolt), options.include_headers
        self._columns = None if self._with_headers else self._open_columns()
        self.position: int | None = None

    @property
    def reads_columns(self) -> bool:
        """Return whether records are fetched as columns, not one by one."""
        return self._columns is not None

    def _open_columns(self) -> ColumnsIn | None:
        try:
            return ColumnsIn(self.consumer, *self._place)
        except NoColumns as reason:
            log.info("records are read one by one: %s", reason, extra={"action": "no_columns"})
            return None

    def assign(self, offset: int) -> None:
        """Go on at an offset."""
        self.consumer.assign([TopicPartition(*self._place, offset)])

    def is_ahead_of(self, offset: int) -> bool:
        """Return whether the client knows of records from there on, and so has begun to fetch them.

        Where there are none it would ask the broker many times a second, to the end of this process.
        """
        _, next_offset = self.consumer.get_watermark_offsets(TopicPartition(*self._place), cached=True)
        return next_offset > offset

    def fetch(self, max_records: int, timeout_s: float) -> Fetched:
        """Return what has come, at most so many records, waiting so long for the last of them."""
        if self._columns is None:
            return self._fetched_one_by_one(self.consumer.consume(max_records, timeout_s))
        taken = self._columns.take(max_records, timeout_s, own=self._is_for_bolt)
        beside = self.consumer.consume(1, 0)
        of_client = _errors(beside)
        if len(of_client) < len(beside):
            raise RecordOutOfQueue(
                f"a record of {self._place} came by another way; it would be taken for absent"
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
        if self._columns is not None:
            self._columns.close()
        self.consumer.close()


_kept: PerProcess[Fetching] = PerProcess()


def fetching(options: SourceOptions, topic: str, partition: int) -> Fetching:
    """Return this process's consumer of a partition."""
    purpose = (
        options.bootstrap,
        options.group,
        options.bolt,
        options.include_headers,
        topic,
        partition,
        options.kafka,
    )

    def make() -> Fetching:
        for oldest in _kept.pop_oldest(MAX_CACHED_CONSUMERS):
            oldest.close()
        return Fetching(options, topic, partition)

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
        log.warning("%s goes without headers: %s", place, error, extra={"action": "headers_unread"})
        return None


def _header_rows(headers: Any) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value} for key, value in headers] if headers else None
