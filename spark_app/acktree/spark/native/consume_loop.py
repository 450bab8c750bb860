"""The compiled loops that look into librdkafka's messages and copy them into columns.

Invariant: only functions and structures of ``rdkafka.h`` are used, on messages that the caller holds. Needs
numba, and librdkafka's functions known to LLVM (``columns_in.py``); the GIL is not held.
"""

import numpy as np

from acktree.spark.native import rdkafka_abi as abi
from acktree.spark.native.rdkafka_abi import external, numba, pointer, types
from acktree.wire.batch_codec import Integers
from acktree.wire.compiled_code import Compiler

compiled = Compiler(__file__, abi.__file__)

FIELDS = 10
ERROR, OFFSET, STAMP_MS, STAMP_KIND, VALUE, VALUE_BYTES, KEY, KEY_BYTES, HEADER, HEADER_BYTES = range(FIELDS)
"""Rows of ``found``; sizes are -1 for null."""

_timestamp = external("rd_kafka_message_timestamp", types.int64(types.intp, types.intp))
_destroy = external("rd_kafka_message_destroy", types.void(types.intp))
_headers = external("rd_kafka_message_headers", types.int32(types.intp, types.intp))
_last_header = external(
    "rd_kafka_header_get_last", types.int32(types.intp, types.intp, types.intp, types.intp)
)
_memcpy = external("memcpy", types.intp(types.intp, types.intp, types.uintp))


@compiled
def read_fields(messages: Integers, header: int, found: Integers) -> None:
    """Fill ``found`` (FIELDS, n) with the fields of messages, given by their addresses (n,).

    ``header`` is the address of the name of a header that is wanted, 0 for none.
    """
    kind = np.zeros(1, np.int64)
    place = np.zeros(3, np.int64)
    for row in range(len(messages)):
        message = numba.carray(pointer(messages[row]), abi.MESSAGE_WORDS)
        found[ERROR, row] = message[abi.ERROR] << 32 >> 32  # the lower half of the word, with its sign
        found[OFFSET, row] = message[abi.OFFSET]
        found[STAMP_MS, row] = _timestamp(messages[row], kind.ctypes.data)
        found[STAMP_KIND, row] = kind[0]
        found[VALUE, row] = message[abi.VALUE]
        found[VALUE_BYTES, row] = message[abi.VALUE_BYTES] if message[abi.VALUE] != 0 else -1
        found[KEY, row] = message[abi.KEY]
        found[KEY_BYTES, row] = message[abi.KEY_BYTES] if message[abi.KEY] != 0 else -1
        found[HEADER, row], found[HEADER_BYTES, row] = 0, -1
        if header != 0 and found[ERROR, row] == 0:
            at = place.ctypes.data
            if _headers(messages[row], at) == 0 and _last_header(place[0], header, at + 8, at + 16) == 0:
                found[HEADER, row] = place[1]
                found[HEADER_BYTES, row] = place[2] if place[1] != 0 else -1


@compiled
def read_header(messages: Integers, header: int, found: Integers) -> int:
    """Fill ``found`` (2, n) with place and size of a header of messages; return how many have it.

    ``header`` is the address of its name; the size of a null, or of none, is -1.
    """
    place, count = np.zeros(3, np.int64), 0
    for row in range(len(messages)):
        at = place.ctypes.data
        found[0, row], found[1, row] = 0, -1
        is_there = _headers(messages[row], at) == 0 and _last_header(place[0], header, at + 8, at + 16) == 0
        if is_there and place[1] != 0:
            found[0, row], found[1, row] = place[1], place[2]
            count += 1
    return count


@compiled
def copy(places: Integers, sizes: Integers, starts: Integers, into: int) -> None:
    """Copy the bytes at ``places``, of these sizes, to their ``starts`` in the memory at ``into``."""
    for row in range(len(places)):
        if sizes[row] > 0:
            _memcpy(into + starts[row], places[row], sizes[row])


@compiled
def destroy(messages: Integers) -> None:
    """Give messages back to librdkafka."""
    for row in range(len(messages)):
        _destroy(messages[row])
