"""Produces whole columns of records, with no Python object per record.

confluent-kafka makes a call, a list of headers and a state per record, and takes the GIL for each delivery
report. Here a compiled loop calls ``rd_kafka_produceva``, librdkafka's public API, on the handle inside the
Producer (``librdkafka.py``). To learn of rejected rows, it replaces the client's delivery callback by one
that passes on all reports of others, and reads it back from the client to be sure that it is in place.

Invariant: rows are produced in order, with the bytes and the partition that ``Producer.produce`` gives them.
Addresses are used only during a call; librdkafka copies the payloads.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Producer
from numpy.typing import NDArray

from acktree.producers.native.columns import Column, Pairs
from acktree.producers.native.librdkafka import NoColumns, find_handle, librdkafka, load_loops
from acktree.schemas.header import HEADER

FirstError = NDArray[np.int64]

_FOR_THE_LOOP = (
    "rd_kafka_produceva",
    "rd_kafka_error_code",
    "rd_kafka_error_destroy",
    "rd_kafka_topic_name",
)
_OWN_NAME = ctypes.create_string_buffer(HEADER.encode())
_BOUNDS = {"binary": np.int32, "string": np.int32, "large_binary": np.int64, "large_string": np.int64}
_NOTHING = ctypes.create_string_buffer(1)
_client_callbacks: set[int] = set()
"""The client's delivery callback, the same for all producers: compiled code is linked to it."""


class Cells(NamedTuple):
    """A column as (2, n) addresses and sizes, -1 for null, and what holds the memory they point to."""

    places: NDArray[np.int64]
    kept: Any


class ColumnsOut:
    """Produces columns with one Producer, and records the first delivery error of their rows."""

    def __init__(self, producer: Producer) -> None:
        """Replace the delivery callback of a producer; reports of other records are passed on.

        Raises:
            NoColumns: another build of confluent-kafka, another kind of machine, or no numba.
        """
        library = librdkafka()
        self._producer, self._handle = producer, find_handle(producer)
        config = library.rd_kafka_conf(self._handle)
        self._library, self.loop = library, _compiled(_delivery_callback(config, library))
        """The compiled loop, which all producers of a process share."""
        self.first_error: FirstError = np.zeros(self.loop.ERROR_WORDS, np.int64)
        library.rd_kafka_conf_set_dr_msg_cb(config, self.loop.on_delivery.address)
        if _delivery_callback(config, library) != self.loop.on_delivery.address:
            raise NoColumns("librdkafka does not accept another delivery callback")

    def produce(self, topic: str, columns: Sequence[Cells], headers: Pairs, first: int) -> tuple[int, int]:
        """Queue rows from ``first`` on; return the row after the last one taken, and why the next was not.

        ``columns`` are values, keys and acktree's own headers; ``headers`` go to all rows. The reason is
        librdkafka's error code.
        """
        library, loop = self._library, self.loop
        handle = library.rd_kafka_topic_new(self._handle, topic.encode(), None)
        if not handle:
            return first, library.rd_kafka_last_error()
        texts = [[None if part is None else _text(part) for part in pair] for pair in headers]
        buffers = [(loop.HEADER, _address(name), _address(value), _length(value)) for name, value in texts]
        rows = [(loop.TOPIC_HANDLE, handle, 0, 0), (loop.FLAGS, loop.COPY, 0, 0)]
        rows += [(loop.OPAQUE, self.first_error.ctypes.data + 1, 0, 0), *buffers]
        rows += [(loop.VALUE, 0, 0, 0), (loop.KEY, 0, 0, 0), (loop.HEADER, _address(_OWN_NAME), 0, 0)]
        arguments = np.zeros((len(rows), loop.ARGUMENT_WORDS), np.int64)
        arguments[:, :4] = rows
        try:
            places = (cells.places for cells in columns)
            row, code = loop.produce_rows(self._handle, arguments, *places, first)
            return int(row), int(code)
        finally:
            library.rd_kafka_topic_destroy(handle)


def find_cells(column: Column, count: int) -> Cells | None:
    """Return where the cells of a column of ``count`` rows are; None if they are neither bytes nor text."""
    if column is None:
        return Cells(np.array([[0], [-1]]).repeat(count, 1), None)
    if isinstance(column, np.ndarray):
        if column.dtype.kind != "V":
            return _cells_of_list(column.tolist())
        column = np.ascontiguousarray(column)
        starts = column.ctypes.data + np.arange(count) * column.itemsize
        return Cells(np.stack((starts, np.full(count, column.itemsize))), column)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "buffers"):
        return _cells_of_arrow(column)
    return _cells_of_list(column)


def _cells_of_arrow(column: Any) -> Cells | None:
    width = _BOUNDS.get(str(column.type))
    if width is None:
        return None
    if not len(column):
        return Cells(np.zeros((2, 0), np.int64), column)
    _, bounds, data = column.buffers()
    edges = np.frombuffer(bounds, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    starts = edges[:-1] + (data.address if data is not None and data.size else ctypes.addressof(_NOTHING))
    return _nulled(starts, np.diff(edges), column.is_null() if column.null_count else None, column)


def _cells_of_list(column: Sequence[bytes | str | None]) -> Cells:
    try:
        data, absent = b"".join((*column, b"\0")), None  # type: ignore[arg-type]
        sizes = np.fromiter(map(len, column), np.int64, len(column))  # type: ignore[arg-type]
    except TypeError:
        texts = [b"" if part is None else part.encode() if isinstance(part, str) else part for part in column]
        data, absent = b"".join((*texts, b"\0")), [part is None for part in column]
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    memory = np.frombuffer(data, np.uint8)
    ends = np.cumsum(sizes)
    return _nulled(memory.ctypes.data + ends - sizes, sizes, absent, memory)


def _nulled(starts: NDArray[np.int64], sizes: NDArray[np.int64], absent: Any, kept: Any) -> Cells:
    places = np.stack((starts, sizes))
    if absent is not None:
        places[:, np.asarray(absent)] = [[0], [-1]]
    return Cells(places, kept)


@cache
def _compiled(client_callback: int) -> Any:
    """Return the compiled loop, linked to the client's callback. Raises NoColumns."""
    _client_callbacks.add(client_callback)
    if len(_client_callbacks) > 1:
        raise NoColumns("the delivery callback of this producer differs from that of the others")
    module = "acktree.producers.native.produce_loop"
    return load_loops(module, _FOR_THE_LOOP, acktree_client_callback=client_callback)


def _delivery_callback(config: int, library: Any) -> int:
    """Return the address of a client's delivery callback."""
    text, length = ctypes.create_string_buffer(32), ctypes.c_size_t(32)
    library.rd_kafka_conf_get(config, b"dr_msg_cb", text, ctypes.addressof(length))
    return int(text.value, 16) if text.value.startswith(b"0x") else 0


def _text(part: bytes | str) -> Any:
    return ctypes.create_string_buffer(part.encode() if isinstance(part, str) else part)


def _address(text: Any) -> int:
    return 0 if text is None else ctypes.addressof(text)


def _length(text: Any) -> int:
    return 0 if text is None else len(text) - 1
