"""Finds the librdkafka inside confluent-kafka, and its handle inside a client, for compiled loops.

The client stays in charge of everything else (security, transactions, assignment, close), which a separate
handle would have to repeat. The handle's position in the object is not public. So the memory at that address
is first read through the kernel, which reports an error where a process would crash, and then librdkafka must
name the same object as the handle's opaque. If a check fails, confluent-kafka moves the records one by one.
"""

import ctypes
import os
import sys
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

import confluent_kafka

from acktree.spark.native.switch import NativeOff, native_part, why_off

_HANDLE_BYTES = 16_384
"""More than the size of a handle."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rd_kafka_opaque": (ctypes.c_void_p, ctypes.c_void_p),
    "rd_kafka_queue_get_partition": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32),
    "rd_kafka_queue_forward": (None, ctypes.c_void_p, ctypes.c_void_p),
    "rd_kafka_queue_destroy": (None, ctypes.c_void_p),
    "rd_kafka_consume_batch_queue": (
        ctypes.c_ssize_t,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_size_t,
    ),
}


def librdkafka() -> Any:
    """Return the library that confluent-kafka uses. Raises NativeOff."""
    if reason := why_off():
        raise NativeOff(reason)
    return _linked_library()


@cache
def _linked_library() -> Any:
    if sys.platform != "linux" or sys.byteorder != "little":
        raise NativeOff(f"compiled loops need Linux on a little-endian machine, this is {sys.platform}")
    try:
        # The extension module is linked to librdkafka, whose functions are found through it.
        library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError) as error:
        raise NativeOff(f"this build of confluent-kafka does not include librdkafka: {error}") from error
    return library


def find_handle(client: Any) -> int:
    """Return the address of the handle in a Producer or Consumer. Raises NativeOff."""
    library, owner = librdkafka(), id(client)
    handle: int = ctypes.c_void_p.from_address(owner + object.__basicsize__).value or 0
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY)
        try:
            content = os.pread(memory, _HANDLE_BYTES, handle)
        finally:
            os.close(memory)
    except OSError as error:
        raise NativeOff(f"no handle at the expected place in a {type(client).__name__}: {error}") from error
    if owner.to_bytes(8, "little") not in content or library.rd_kafka_opaque(handle) != owner:
        raise NativeOff(f"the pointer in the {type(client).__name__} is not its handle")
    return handle


def load_loops(module: str, functions: Iterable[str]) -> ModuleType:
    """Import a module of compiled loops after making librdkafka's functions that they call known to LLVM.

    Raises:
        NativeOff: librdkafka lacks a function, or numba is missing or has no cache folder.
    """
    library = librdkafka()
    try:
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in functions}
    except AttributeError as error:
        raise NativeOff(f"this librdkafka lacks a function: {error}") from error
    binding = native_part("llvmlite.binding")
    for name, address in addresses.items():
        binding.add_symbol(name, address)
    return native_part(module)
