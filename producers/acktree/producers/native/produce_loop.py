"""The compiled loop that passes rows to librdkafka, and the callback for their delivery reports.

Invariant: only functions and structures of ``rdkafka.h`` are used, on memory that the caller keeps alive.
Needs numba, and librdkafka's functions known to LLVM (``columns_out.py``); neither holds the GIL.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.producers.native import rdkafka_abi as abi
from acktree.producers.native.rdkafka_abi import external, numba, pointer, types
from acktree.schemas.batch_codec import Integers
from acktree.schemas.compiled_code import Compiler

compiled = Compiler(__file__, abi.__file__)

ARGUMENT_WORDS = 9
"""64-bit words in a ``rd_kafka_vu_t``: its type, then a union of 64 bytes."""
TYPE, FIRST, SECOND, THIRD = range(4)
TOPIC_HANDLE, VALUE, KEY, OPAQUE, FLAGS, HEADER = 2, 4, 5, 6, 7, 9
"""Values of ``rd_kafka_vtype_t``."""
COPY = 2
"""RD_KAFKA_MSG_F_COPY."""

ERROR_WORDS = 33
"""64-bit words in a ``FirstError``: the error code, 0 for none, then the topic's name."""

_produceva = external("rd_kafka_produceva", types.intp(types.intp, types.intp, types.uintp))
_error_code = external("rd_kafka_error_code", types.int32(types.intp))
_error_destroy = external("rd_kafka_error_destroy", types.void(types.intp))
_topic_name = external("rd_kafka_topic_name", types.intp(types.intp))
_strncpy = external("strncpy", types.intp(types.intp, types.intp, types.uintp))
_client_callback = external(
    "acktree_client_callback", types.void(types.intp, types.CPointer(types.int64), types.intp)
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


@compiled.callback(types.void(types.intp, types.CPointer(types.int64), types.intp))
def on_delivery(handle: int, message: Any, opaque: int) -> None:
    """Handle a delivery report, called by ``poll`` and ``flush``: record our errors, pass the others on.

    The opaque of a record of ours is the address of its producer's ``FirstError`` plus 1, so it is odd;
    those of confluent-kafka are even.
    """
    report = numba.carray(message, abi.MESSAGE_WORDS)
    if report[abi.OPAQUE] & 1 == 0:
        _client_callback(handle, message, opaque)
        return
    code = report[abi.ERROR] << 32 >> 32  # the lower half of the word, with its sign
    if code == 0:
        return
    first_error = numba.carray(pointer(report[abi.OPAQUE] - 1), ERROR_WORDS)
    if first_error[0] == 0:
        first_error[0] = code
        _strncpy(first_error.ctypes.data + 8, _topic_name(report[abi.TOPIC]), (ERROR_WORDS - 2) * 8)
