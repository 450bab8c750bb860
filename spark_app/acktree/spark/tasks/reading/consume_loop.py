"""The compiled loops that look into librdkafka's messages and copy them into columns.

Invariant: only functions and structures of ``rdkafka.h`` are used, on messages that the caller holds. Needs
numba, and librdkafka's functions known to LLVM (``columns_in.py``); the GIL is not held.
"""

import numpy as np

from acktree.producers.native import rdkafka_abi as words
from acktree.producers.native.rdkafka_abi import numba, pointer, types
from acktree.schemas.batch_codec import Integers, compiled

FIELDS = 10
ERROR, OFFSET, STAMP_MS, STAMP_KIND, VALUE, VALUE_BYTES, KEY, KEY_BYTES, HEADER, HEADER_BYTES = range(FIELDS)
"""Of what is found in a message; sizes are -1 for null."""

_timestamp = types.ExternalFunction("rd_kafka_message_timestamp", types.int64(types.intp, types.intp))
_destroy = types.ExternalFunction("rd_kafka_message_destroy", types.void(types.intp))
_headers = types.ExternalFunction("rd_kafka_message_headers", types.int32(types.intp, types.intp))
_last_header = types.ExternalFunction(
    "rd_kafka_header_get_last", types.int32(types.intp, types.intp, types.intp, types.intp)
)
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))


@compiled
def read_fields(messages: Integers, header: int, found: Integers) -> None:
    """Fill ``found`` (FIELDS, n) with what stands in messages, given by their addresses (n,).

    ``header`` is the address of the name of a header that is wanted, 0 for none.
    """
    kind = np.zeros(1, np.int64)
    place = np.zeros(3, np.int64)
    for row in range(len(messages)):
        message = numba.carray(pointer(messages[row]), words.MESSAGE_WORDS)
        found[ERROR, row] = message[words.ERROR] << 32 >> 32  # the lower half of the word, with its sign
        found[OFFSET, row] = message[words.OFFSET]
        found[STAMP_MS, row] = _timestamp(messages[row], kind.ctypes.data)
        found[STAMP_KIND, row] = kind[0]
        found[VALUE, row] = message[words.VALUE]
        found[VALUE_BYTES, row] = message[words.VALUE_BYTES] if message[words.VALUE] != 0 else -1
        found[KEY, row] = message[words.KEY]
        found[KEY_BYTES, row] = message[words.KEY_BYTES] if message[words.KEY] != 0 else -1
        found[HEADER, row], found[HEADER_BYTES, row] = 0, -1
        if header != 0 and found[ERROR, row] == 0:
            at = place.ctypes.data
            if _headers(messages[row], at) == 0 and _last_header(place[0], header, at + 8, at + 16) == 0:
                found[HEADER, row] = place[1]
                found[HEADER_BYTES, row] = place[2] if place[1] != 0 else -1


@compiled
def copy(places: Integers, sizes: Integers, starts: Integers, into: int) -> None:
    """Copy what stands at places, of such sizes, to where it starts in the memory at ``into``."""
    for row in range(len(places)):
        if sizes[row] > 0:
            _memcpy(into + starts[row], places[row], sizes[row])


@compiled
def destroy(messages: Integers) -> None:
    """Give messages back to librdkafka."""
    for row in range(len(messages)):
        _destroy(messages[row])
