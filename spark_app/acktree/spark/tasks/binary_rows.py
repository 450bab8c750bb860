"""Converts binary columns of Arrow, whose cells are records of one size, to numpy arrays and back."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def rows_of(column: pa.Array, dtype: np.dtype[Any]) -> NDArray[np.void] | None:
    """Return the cells as an (n,) array without a copy; None unless there are some and each is one record."""
    _, bounds, data = column.buffers()
    if column.null_count or column.type != pa.binary() or data is None or not len(column):
        return None
    starts = np.frombuffer(bounds, np.int32, len(column) + 1, 4 * column.offset)
    if not (np.diff(starts) == dtype.itemsize).all():
        return None
    return np.frombuffer(data, dtype, len(column), int(starts[0]))


def binary_of(rows: NDArray[Any]) -> pa.Array:
    """Return rows of equal size, (n,) or (n, size), as a column of their bytes."""
    data = np.ascontiguousarray(rows)
    size = data.nbytes // max(len(data), 1)
    bounds = np.arange(len(data) + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
