"""Words of 64 bits at an address, for compiled loops that read what librdkafka's structures hold."""

from typing import Any

import numba as typed_numba

numba: Any = typed_numba
"""Its type hints know nothing of functions outside Python."""
types = numba.types

MESSAGE_WORDS = 9
"""Of 64 bits in a ``rd_kafka_message_t``; error, partition and their padding are a word each."""
ERROR, TOPIC, PARTITION, VALUE, VALUE_BYTES, KEY, KEY_BYTES, OFFSET, OPAQUE = range(MESSAGE_WORDS)


@numba.core.extending.intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, _address: Any) -> Any:
    """Return an address as a pointer to words."""

    def cast(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _context.get_value_type(types.CPointer(types.int64)))

    return types.CPointer(types.int64)(types.intp), cast
