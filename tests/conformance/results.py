"""Results of operations, as plain values that can be compared.

Texts, times and broker-given names are left out: they differ between two runs on one broker.
"""

from collections.abc import Callable
from typing import Any

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException

Result = Any
"""Strings, numbers, None, lists and dictionaries of them."""
LONG_BYTES = 64
"""Of longer values only the length is kept."""


def error_result(error: KafkaError | None) -> Result:
    """Return an error's name and flags, None for none."""
    if error is None:
        return None
    flags = {
        "fatal": error.fatal(),
        "retriable": error.retriable(),
        "abort": error.txn_requires_abort(),
    }
    return [error.name(), *(flag for flag, is_set in flags.items() if is_set)]


def outcome(call: Callable[[], Result]) -> Result:
    """Return what a call returns, or its error."""
    try:
        return ["ok", call()]
    except KafkaException as error:
        return ["KafkaException", error_result(error.args[0])]
    except (BufferError, RuntimeError, ValueError, TypeError, TimeoutError) as error:
        return [type(error).__name__]


def is_ok(result: Result) -> bool:
    """Return whether a call returned."""
    return bool(result[0] == "ok")


def text(value: bytes | str | None) -> Result:
    """Return bytes as text, or their length."""
    if value is None or len(value) > LONG_BYTES:
        return value if value is None else len(value)
    return value.decode() if isinstance(value, bytes) else value


def timestamp(stamp: tuple[int, int], base_ms: int) -> Result:
    """Return a timestamp's type; its value only where the script has chosen it: an hour or more ago."""
    kind, value_ms = stamp
    ago_ms = base_ms - value_ms
    is_chosen = kind == TIMESTAMP_CREATE_TIME and ago_ms >= 3_000_000 and value_ms > 0
    return [kind, ago_ms] if is_chosen else [kind]
