"""Reads the records of one partition as columns, with no Python object per record.

confluent-kafka makes an object per record, and a call for each of its fields. Here a compiled loop looks into
the messages that librdkafka's public API hands out, and copies them into columns. They come from the
partition's queue: the consumer's queue, to which log lines and errors of the client go, stays with the
Consumer, whose callbacks may only be called from its methods.

Invariant: rows have the order, bytes and offsets that ``Consumer.consume`` gives them; no row is lost: every
row taken is returned. Every message is destroyed.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Consumer, KafkaError
from numpy.typing import NDArray

from acktree.spark.native.librdkafka import find_handle, librdkafka, load_loops
from acktree.spark.native.switch import NativeOff
from acktree.wire.header import HEADER
from acktree.wire.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse_context

_FOR_THE_LOOPS = (
    "rd_kafka_message_timestamp",
    "rd_kafka_message_destroy",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_last",
)
_HEADER_NAME, _PARENT_NAME, _STATE_NAME = (
    ctypes.create_string_buffer(name.encode()) for name in (HEADER, TRACEPARENT, TRACESTATE)
)


class BytesColumn(NamedTuple):
    """A column: row n is ``data[bounds[n]:bounds[n + 1]]``, null if ``is_there`` is given and false."""

    bounds: NDArray[np.int64]
    data: NDArray[np.uint8]
    is_there: NDArray[np.bool_] | None


class FetchedColumns(NamedTuple):
    """Records of one partition, and the errors that came with them, each with its offset.

    ``kinds`` are those of ``rd_kafka_timestamp_type_t``; ``own`` is acktree's header, None if not wanted.
    """

    offsets: NDArray[np.int64]
    stamps_ms: NDArray[np.int64]
    kinds: NDArray[np.int64]
    keys: BytesColumn
    values: BytesColumn
    own: BytesColumn | None
    errors: list[tuple[KafkaError, int]]
    traces: dict[int, TraceContext]
    """Trace contexts by offset, of the records that have one."""


class ColumnsIn:
    """Takes the records that a consumer fetches of one partition; assign it with the consumer."""

    def __init__(self, consumer: Consumer, topic: str, partition: int) -> None:
        """Separate the partition's queue from the consumer's, permanently.

        Raises:
            NativeOff: another build of confluent-kafka, another kind of machine, or no numba.
        """
        self._library, self._loops = librdkafka(), compiled_loops()
        self._consumer = consumer
        handle = find_handle(consumer)
        self._queue = self._library.rd_kafka_queue_get_partition(handle, topic.encode(), partition)
        if not self._queue:
            raise NativeOff(f"librdkafka has no queue for {topic}/{partition}")
        self._library.rd_kafka_queue_forward(self._queue, None)

    def take(self, max_records: int, timeout_s: float, own: bool = False) -> FetchedColumns:
        """Return what has come, at most ``max_records``, or what comes first within ``timeout_s``.

        No more than that: the client bounds what has come in bytes. ``own``: with acktree's header of each.
        """
        messages = np.empty(max_records, np.int64)
        count = self._consume(messages, 0)
        if not count and (count := self._consume(messages[:1], round(timeout_s * 1000))):
            count += self._consume(messages[count:], 0)
        messages = messages[:count]
        try:
            return self._columns(messages, own)
        finally:
            self._loops.destroy(messages)

    def _consume(self, messages: NDArray[np.int64], timeout_ms: int) -> int:
        """Fill an array with the addresses of messages; return how many have come within ``timeout_ms``."""
        consume, place = self._library.rd_kafka_consume_batch_queue, messages.ctypes.data
        return max(0, int(consume(self._queue, timeout_ms, place, len(messages))))

    def _columns(self, messages: NDArray[np.int64], own: bool) -> FetchedColumns:
        loops = self._loops
        found = np.empty((loops.FIELDS, len(messages)), np.int64)
        loops.read_fields(messages, ctypes.addressof(_HEADER_NAME) if own else 0, found)
        errors = [
            (KafkaError(int(code)), int(offset))
            for code, offset in found[[loops.ERROR, loops.OFFSET]][:, found[loops.ERROR] != 0].T
        ]
        has_no_error = found[loops.ERROR] == 0
        if errors:
            found = np.ascontiguousarray(found[:, has_no_error])
        return FetchedColumns(
            found[loops.OFFSET],
            found[loops.STAMP_MS],
            found[loops.STAMP_KIND],
            self._copied(found[loops.KEY], found[loops.KEY_BYTES]),
            self._copied(found[loops.VALUE], found[loops.VALUE_BYTES]),
            self._copied(found[loops.HEADER], found[loops.HEADER_BYTES]) if own else None,
            errors,
            self._traces(messages[has_no_error], found[loops.OFFSET]),
        )

    def _traces(self, messages: NDArray[np.int64], offsets: NDArray[np.int64]) -> dict[int, TraceContext]:
        """Return the trace contexts of records, by offset; one pass over them where there are none."""
        parents, states = np.empty((2, 2, len(messages)), np.int64)
        if not self._loops.read_header(messages, ctypes.addressof(_PARENT_NAME), parents):
            return {}
        self._loops.read_header(messages, ctypes.addressof(_STATE_NAME), states)
        traces = {}
        for row in np.flatnonzero(parents[1] >= 0).tolist():
            context = parse_context(_bytes_at(*parents[:, row]), _bytes_at(*states[:, row]))
            if context is not None:
                traces[int(offsets[row])] = context
        return traces

    def _copied(self, places: NDArray[np.int64], sizes: NDArray[np.int64]) -> BytesColumn:
        is_there = sizes >= 0
        bounds = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(np.maximum(sizes, 0), out=bounds[1:])
        data = np.empty(int(bounds[-1]), np.uint8)
        self._loops.copy(places, sizes, bounds, data.ctypes.data)
        return BytesColumn(bounds, data, None if is_there.all() else is_there)

    def close(self) -> None:
        """Release the queue; call before the consumer is closed."""
        self._library.rd_kafka_queue_destroy(self._queue)


def _bytes_at(place: np.int64, size: np.int64) -> bytes | None:
    return None if size < 0 else ctypes.string_at(int(place), int(size))


@cache
def compiled_loops() -> Any:
    """Return the compiled loops. Raises NativeOff."""
    return load_loops("acktree.spark.native.consume_loop", _FOR_THE_LOOPS)
