"""The compiled loop that gives rows to librdkafka, and the ear for records that it could not deliver.

Invariant: only functions and structures of ``rdkafka.h`` are used, on memory that the caller keeps. Needs
numba, and librdkafka's functions known to LLVM (``columns_out.py``); neither holds the GIL.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.producers.native import rdkafka_abi as words
from acktree.producers.native.rdkafka_abi import numba, pointer, types
from acktree.schemas.batch_codec import Integers, compiled

ARGUMENT_WORDS = 9
"""Of 64 bits in a ``rd_kafka_vu_t``: its type, then a union of 64 bytes."""
TYPE, FIRST, SECOND, THIRD = range(4)
TOPIC_HANDLE, VALUE, KEY, OPAQUE, FLAGS, HEADER = 2, 4, 5, 6, 7, 9
"""Of ``rd_kafka_vtype_t``."""
COPY = 2
"""RD_KAFKA_MSG_F_COPY."""

NOTE_WORDS = 33
"""Of 64 bits in the note of the first refusal: its error code, 0 for none, then the topic's name."""
_PURGED_QUEUE, _PURGED_IN_FLIGHT = -152, -151

_produceva = types.ExternalFunction("rd_kafka_produceva", types.intp(types.intp, types.intp, types.uintp))
_error_code = types.ExternalFunction("rd_kafka_error_code", types.int32(types.intp))
_error_destroy = types.ExternalFunction("rd_kafka_error_destroy", types.void(types.intp))
_topic_name = types.ExternalFunction("rd_kafka_topic_name", types.intp(types.intp))
_strncpy = types.ExternalFunction("strncpy", types.intp(types.intp, types.intp, types.uintp))
_their_report = types.ExternalFunction(
    "acktree_their_report", types.void(types.intp, types.CPointer(types.int64), types.intp)
)


@compiled
def produce_rows(
    handle: int,
    arguments: Integers,
    values: NDArray[np.int64],
    keys: NDArray[np.int64],
    own: NDArray[np.int64],
    first: int,
) -> tuple[int, int]:
    """Produce rows from ``first`` on; return the row after the last one taken, and why the next was not.

    ``arguments`` (n, ARGUMENT_WORDS) end with those of value, key and own header, which are filled in here.
    The columns are (2, rows): addresses and sizes, -1 for null.
    """
    value, key, header = len(arguments) - 3, len(arguments) - 2, len(arguments) - 1
    for row in range(first, values.shape[1]):
        arguments[value, FIRST] = values[0, row]
        arguments[value, SECOND] = max(values[1, row], 0)
        arguments[key, FIRST] = keys[0, row]
        arguments[key, SECOND] = max(keys[1, row], 0)
        arguments[header, SECOND] = own[0, row]
        arguments[header, THIRD] = own[1, row]
        count = len(arguments) - (own[1, row] < 0)
        error = _produceva(handle, arguments.ctypes.data, count)
        if error != 0:
            code = _error_code(error)
            _error_destroy(error)
            return row, code
    return values.shape[1], 0


@numba.cfunc(types.void(types.intp, types.CPointer(types.int64), types.intp), nopython=True, cache=True)  # type: ignore[untyped-decorator]
def hear(handle: int, message: Any, opaque: int) -> None:
    """Take a delivery report, called by ``poll`` and ``flush``: note our refusals, pass the others on.

    A record of ours has the address of its note in its opaque, made odd; confluent-kafka's are even.
    """
    told = numba.carray(message, words.MESSAGE_WORDS)
    if told[words.OPAQUE] & 1 == 0:
        _their_report(handle, message, opaque)
        return
    code = told[words.ERROR] << 32 >> 32  # the lower half of the word, with its sign
    if code in (0, _PURGED_QUEUE, _PURGED_IN_FLIGHT):
        return
    note = numba.carray(pointer(told[words.OPAQUE] - 1), NOTE_WORDS)
    if note[0] == 0:
        note[0] = code
        _strncpy(note.ctypes.data + 8, _topic_name(told[words.TOPIC]), (NOTE_WORDS - 2) * 8)
