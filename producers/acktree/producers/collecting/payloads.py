"""What may be emitted: bytes, text that has a UTF-8 form, or None; and headers, each a name and such a value.

Invariant: the Kafka client accepts whatever passes these checks. They come before anything is queued, because
the client would fail later, for a whole batch or transaction, or crash (a header's name with a lone surrogate
is a segmentation fault). Pure.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from acktree.producers.columns import Column, plain
from acktree.producers.errors import NotSerializable, ReservedHeader, shown
from acktree.wire.header import HEADER

_PLAIN = (bytes, type(None))
_ARROW_TYPES = frozenset(("binary", "string", "large_binary", "large_string", "null"))
_TIMES_MS = range(-(1 << 63), 1 << 63)


def check_payload(value: Any, key: Any, timestamp_ms: Any = None) -> None:
    """Raise NotSerializable for a value, key or timestamp that cannot be written.

    >>> check_payload(7, None)
    Traceback (most recent call last):
    acktree.producers.errors.NotSerializable: a value must be bytes, str or None, not int: 7; encode it
    """
    if value.__class__ not in _PLAIN:
        _check("value", value)
    if key.__class__ not in _PLAIN:
        _check("key", key)
    if timestamp_ms is not None and not (isinstance(timestamp_ms, int) and timestamp_ms in _TIMES_MS):
        kind = type(timestamp_ms).__name__
        raise NotSerializable(
            f"a timestamp must be an int of 64 bits, milliseconds since 1970, not {kind}: "
            f"{shown(timestamp_ms)}"
        )


def _check(what: str, part: Any) -> None:
    if isinstance(part, str):
        try:
            part.encode()
        except UnicodeEncodeError as error:
            raise NotSerializable(
                f"a {what} cannot be encoded as UTF-8, {shown(part)}: {error.reason} at character "
                f"{error.start}; encode it to bytes as its consumers expect"
            ) from None
    elif part is not None and not isinstance(part, bytes):
        kind = type(part).__name__
        raise NotSerializable(
            f"a {what} must be bytes, str or None, not {kind}: {shown(part)}; encode it"
        ) from None


def check_headers(headers: Any) -> None:
    """Raise NotSerializable for anything but a list of (str, value) pairs, ReservedHeader for ``acktree``."""
    if not isinstance(headers, list | tuple):
        kind = type(headers).__name__
        raise NotSerializable(f"headers must be a list of pairs (name, value), not {kind}: {shown(headers)}")
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise NotSerializable(f"a header must be a pair (name, value), its name a str: {shown(pair)}")
        name, value = pair
        if name == HEADER:
            raise ReservedHeader(f"the header {HEADER!r} is reserved for the anchors: leave it out")
        _check("header's name", name)
        if "\0" in name:
            raise NotSerializable(
                f"the name of a header contains NUL, where Kafka's C client truncates it: {shown(name)}"
            )
        _check("header's value", value)


def bad_cells(values: Column, keys: Column, count: int) -> dict[int, NotSerializable]:
    """Return an error for each row whose value or key cannot be written.

    >>> list(bad_cells([b"a", "b", 3], [None, None, None], 3))
    [2]
    """
    if _is_plain(values, count) and _is_plain(keys, count):
        return {}
    found: dict[int, NotSerializable] = {}
    for row, (value, key) in enumerate(zip(plain(values, count), plain(keys, count), strict=True)):
        try:
            check_payload(value, key)
        except NotSerializable as error:
            found[row] = error
    return found


def _is_plain(column: Column, count: int) -> bool:
    """Return True if a whole column is fine by its types alone; False if each row must be checked."""
    if column is None or str(getattr(column, "type", "")) in _ARROW_TYPES:
        return True
    if isinstance(column, np.ndarray) and column.dtype.kind in "VS":
        return True
    cells = plain(column, count)
    kinds = set(map(type, cells))
    if kinds <= {bytes, type(None)}:
        return True
    return kinds <= {bytes, str, type(None)} and _has_utf8(part for part in cells if part.__class__ is str)


def _has_utf8(texts: Iterable[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True
