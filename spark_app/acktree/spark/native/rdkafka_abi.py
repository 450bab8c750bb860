"""Reads 64-bit words at an address, for compiled loops that read librdkafka's structures."""

from typing import Any

import llvmlite.binding as typed_llvm
import numba as typed_numba

numba: Any = typed_numba
"""Any, because its type hints do not cover external functions."""
llvm: Any = typed_llvm
types = numba.types

MESSAGE_WORDS = 9
"""64-bit words in a ``rd_kafka_message_t``; error and partition, with their padding, are a word each."""
ERROR, TOPIC, PARTITION, VALUE, VALUE_BYTES, KEY, KEY_BYTES, OFFSET, OPAQUE = range(MESSAGE_WORDS)


def external(name: str, signature: Any) -> Any:
    """Return a C function for compiled loops.

    Raises:
        ImportError: its address is not known; ``load_loops`` adds it and imports the module that calls this.
            Without the address, LLVM would end the process with the first function compiled afterwards.
    """
    if llvm.address_of_symbol(name) is None:
        raise ImportError(f"the address of {name} is not known: import this module with load_loops")
    return types.ExternalFunction(name, signature)


@numba.core.extending.intrinsic  # type: ignore[untyped-decorator]
def pointer(_context: Any, _address: Any) -> Any:
    """Cast an address to a pointer to words."""

    def cast(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _context.get_value_type(types.CPointer(types.int64)))

    return types.CPointer(types.int64)(types.intp), cast
