"""Locates the cells of a column in memory, for compiled loops that copy them."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.producers.columns import Column

_BOUNDS = {"binary": np.int32, "string": np.int32, "large_binary": np.int64, "large_string": np.int64}
_NOTHING = ctypes.create_string_buffer(1)


class Cells(NamedTuple):
    """A column as (2, n) addresses and sizes, -1 for null, and the owner of the memory they point to."""

    places: NDArray[np.int64]
    kept: Any


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
