"""Reads Avro's numbers, arrays and strings by compiled code out of one array of bytes.

Invariant: accepts exactly what :class:`acktree.wire.avro.Reader` accepts. Nothing is read past ``end``; a
position of -1 means that the bytes are malformed. Needs numba, so only the acker imports it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.wire import avro
from acktree.wire.avro import FRAME_BYTES
from acktree.wire.compiled_code import Compiler

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_LEAST, _MOST = -(2**31), 2**31

compiled = Compiler(__file__, avro.__file__)


@compiled
def signed(number: Any) -> Any:
    return np.int64(number)


@compiled
def read_long(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an Avro long and where it ends, or (0, -1)."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(64):
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and (byte & np.uint64(0x7F)) > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return signed(value >> np.uint64(1)) ^ -signed(value & np.uint64(1)), at
        shift += np.uint64(7)
    return signed(0), signed(-1)


@compiled
def read_int(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return an Avro int and where it ends, or (0, -1)."""
    value, at = read_long(data, at, end)
    if value < _LEAST or value >= _MOST:
        return signed(0), signed(-1)
    return value, at


@compiled
def read_count(data: Bytes, at: int, end: int, smallest: int) -> tuple[int, int]:
    """Return an array's count and where its items start, or (0, -1) if the bytes left cannot hold them."""
    count, at = read_long(data, at, end)
    if at < 0:
        return signed(0), signed(-1)
    left = end - at
    if count < 0:
        count = -count
        size, at = read_long(data, at, end)
        if at < 0 or size > left or count < 0:
            return signed(0), signed(-1)
    if count > left // smallest:
        return signed(0), signed(-1)
    return count, at


@compiled
def copy_array(data: Bytes, at: int, end: int, size: int, out: Bytes, row: int) -> tuple[int, int]:
    """Copy an array to row ``row`` of out; return the row behind it and where it ends (-1: malformed)."""
    count, at = read_count(data, at, end, size)
    if at < 0 or count > (end - at) // size:
        return row, signed(-1)
    target = row * size
    for offset in range(count * size):
        out[target + offset] = data[at + offset]
    at += count * size
    if count > 0:
        at = end_of_array(data, at, end)
    return row + count, at


@compiled
def end_of_array(data: Bytes, at: int, end: int) -> int:
    """Return the position after the zero that ends an array, -1 if there is none here."""
    value, at = read_long(data, at, end)
    return at if at >= 0 and value == 0 else signed(-1)


@compiled
def read_string(data: Bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Return where a string starts and ends (-1: malformed) and whether it is plain ASCII."""
    size, at = read_long(data, at, end)
    if at < 0 or size < 0 or size > end - at:
        return signed(0), signed(-1), True
    plain = True
    for offset in range(size):
        plain &= data[at + offset] < 0x80
    return at, at + size, plain


@compiled
def starts_with(data: Bytes, at: int, end: int, frame: Bytes) -> bool:
    if end - at < FRAME_BYTES:
        return False
    same = True
    for offset in range(FRAME_BYTES):
        same &= data[at + offset] == frame[offset]
    return same
