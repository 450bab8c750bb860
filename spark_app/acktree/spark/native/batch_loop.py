"""Compiled loops that lay rows out as Kafka's record batches, and compute the partition of a key.

Invariant: the bytes are those of Kafka's message format v2, the partitions those of Java's producer.
Addresses are read during a call only. Needs numba; holds no GIL.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.spark.native.rdkafka_abi import numba, types
from acktree.wire.batch_codec import Bytes, Integers
from acktree.wire.compiled_code import Compiler

compiled = Compiler(__file__)

HEAD_BYTES = 61
"""Of a batch before its first record."""
_MAX_VARINT_BYTES = 5
_SEED, _MULTIPLIER, _SHIFT = np.uint32(0x9747B28C), np.uint32(0x5BD1E995), np.uint32(24)


@numba.core.extending.intrinsic  # type: ignore[untyped-decorator]
def _bytes_at(_context: Any, _address: Any) -> Any:
    """Return an address as a pointer to bytes."""

    def cast(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _context.get_value_type(types.CPointer(types.uint8)))

    return types.CPointer(types.uint8)(types.intp), cast


@compiled
def _put_varint(out: Bytes, at: int, number: int) -> int:
    rest = (number << 1) ^ (number >> 63)
    while rest >= 128:
        out[at] = (rest & 127) | 128
        at += 1
        rest >>= 7
    out[at] = rest
    return at + 1


@compiled
def _varint_bytes(number: int) -> int:
    rest = (number << 1) ^ (number >> 63)
    count = 1
    while rest >= 128:
        count += 1
        rest >>= 7
    return count


@numba.core.extending.intrinsic  # type: ignore[untyped-decorator]
def _copy(_context: Any, _target: Any, _source: Any, _size: Any) -> Any:
    """Copy bytes from one address to another: several times as fast as a loop over them."""

    def copy(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(types.CPointer(types.uint8))
        target, source = (builder.inttoptr(address, kind) for address in arguments[:2])
        numba.core.cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), copy


@compiled
def _put_bytes(out: Bytes, at: int, address: int, size: int) -> int:
    _copy(out.ctypes.data + at, address, size)
    return at + size


@compiled
def _cell_bytes(size: int) -> int:
    return _varint_bytes(size) + max(size, 0)


@compiled
def _put_cell(out: Bytes, at: int, address: int, size: int) -> int:
    at = _put_varint(out, at, size)
    return _put_bytes(out, at, address, size) if size > 0 else at


@compiled
def encode_rows(
    out: Bytes, rows: Integers, name: Bytes, cells: tuple[Integers, ...], counts: Integers
) -> tuple[int, int]:
    """Lay out records from HEAD_BYTES on until ``out`` is full; return how many rows it took, and its end.

    ``rows`` are indexes into the columns. ``cells`` are value, key, own header (its name, as a cell, is
    ``name``) and headers that are encoded already, each (2, n): addresses and sizes, -1 for null; ``counts``
    (n,) says how many headers the latter are.
    """
    values, keys, own, others = cells
    at = HEAD_BYTES
    for place in range(len(rows)):
        row = rows[place]
        has_own = own[1, row] >= 0
        size = 1 + 1 + _varint_bytes(place) + _cell_bytes(keys[1, row]) + _cell_bytes(values[1, row])
        size += _varint_bytes(counts[row] + has_own) + others[1, row]
        if has_own:
            size += len(name) + _cell_bytes(own[1, row])
        if at + _MAX_VARINT_BYTES + size > len(out):
            return place, at
        at = _put_varint(out, at, size)
        out[at] = 0  # attributes
        out[at + 1] = 0  # after the batch's time
        at = _put_varint(out, at + 2, place)
        at = _put_cell(out, at, keys[0, row], keys[1, row])
        at = _put_cell(out, at, values[0, row], values[1, row])
        at = _put_varint(out, at, counts[row] + has_own)
        at = _put_bytes(out, at, others[0, row], others[1, row])
        if has_own:
            at = _put_bytes(out, at, name.ctypes.data, len(name))
            at = _put_cell(out, at, own[0, row], own[1, row])
    return len(rows), at


@compiled
def place_keys(keys: Integers, partitions: int, of_null: int) -> NDArray[np.int64]:
    """Return the partition of each key of a column (2, n): Kafka's murmur2; a null's is ``of_null``."""
    placed = np.empty(keys.shape[1], np.int64)
    for row in range(keys.shape[1]):
        placed[row] = of_null
        if keys[1, row] >= 0:
            placed[row] = (_murmur2(keys[0, row], keys[1, row]) & 0x7FFFFFFF) % partitions
    return placed


@compiled
def _murmur2(address: int, size: int) -> int:
    data = _bytes_at(address)
    state = _SEED ^ np.uint32(size)
    whole = size // 4 * 4
    for at in range(0, whole, 4):
        word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        word |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        word = np.uint32(word * _MULTIPLIER)
        word = np.uint32((word ^ (word >> _SHIFT)) * _MULTIPLIER)
        state = np.uint32(state * _MULTIPLIER) ^ word
    if size > whole:
        for at in range(size - 1, whole - 1, -1):
            state ^= np.uint32(data[at]) << np.uint32(8 * (at - whole))
        state = np.uint32(state * _MULTIPLIER)
    state = np.uint32((state ^ (state >> np.uint32(13))) * _MULTIPLIER)
    return np.int64(state ^ (state >> np.uint32(15)))  # type: ignore[return-value]
