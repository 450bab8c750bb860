"""Encodes the tuple header ``acktree``: the roots that a record belongs to, and its edges in their trees.

Layout, little-endian: u8 format=1, u16 version of this emission, then per root: u16 version, u64 root,
u64 edge.
Invariant: no header and a header without anchors both mean untracked. Broken bytes raise MalformedRecord.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import IdArray

HEADER = "acktree"
FORMAT = 1
MAX_VERSION = (1 << 16) - 1

_headers_of: Callable[[Any], Any] = methodcaller("headers")
"""Calls ``Message.headers`` so that its errors are raised, as ``map`` does.

For a name that is not UTF-8 confluent-kafka sets an error, and returns a list with a null pointer all the
same. It keeps that list: to look at it again ends the process. Where the call is written in Python code, its
interpreter may take the list and miss the error.
"""
_UNREADABLE_ERRORS = (SystemError, UnicodeDecodeError)
_UNREADABLE: list[Any] = []
"""Replaces headers that could not be read, so that nobody looks again."""
_HEAD = struct.Struct("<BH")
_ANCHOR = struct.Struct("<HQQ")
ANCHOR_BYTES = _ANCHOR.size
ANCHOR = np.dtype([("version", "<u2"), ("root", "<u8"), ("edge", "<u8")])
SINGLE = np.dtype(
    [("format", "u1"), ("emission", "<u2"), ("version", "<u2"), ("root", "<u8"), ("edge", "<u8")]
)


class Anchor(NamedTuple):
    """A tuple's place in one tree: the root, the version it was emitted in, and the edge to this tuple."""

    version: int
    root: int
    edge: int


class TupleHeader(NamedTuple):
    """The decoded header: ``version`` names the readers of this record, ``anchors`` its trees."""

    version: int
    anchors: tuple[Anchor, ...]


def encode_header(version: int, anchors: Iterable[Anchor]) -> bytes:
    """Return the header bytes, 3 + 18 per anchor."""
    return _HEAD.pack(FORMAT, version) + b"".join(_ANCHOR.pack(*anchor) for anchor in anchors)


def decode_header(data: bytes) -> TupleHeader:
    """Return the header in data; raise MalformedRecord for any other bytes."""
    if len(data) < _HEAD.size or (len(data) - _HEAD.size) % ANCHOR_BYTES:
        raise MalformedRecord(f"tuple header of {len(data)} bytes, expected 3 + 18 per anchor")
    number, version = _HEAD.unpack_from(data)
    if number != FORMAT:
        raise MalformedRecord(f"tuple header of format {number}, this code reads format {FORMAT}")
    anchors = tuple(map(Anchor._make, _ANCHOR.iter_unpack(data[_HEAD.size :])))
    if any(anchor.root == 0 for anchor in anchors):
        raise MalformedRecord("tuple header with root id 0")
    return TupleHeader(version, anchors)


def first_anchor(anchors: bytes) -> Anchor:
    """Return the first of the anchors, at least one, of a header that was decoded before."""
    return Anchor._make(_ANCHOR.unpack_from(anchors))


def single_headers(version: int, root_version: Any, roots: IdArray, edges: IdArray) -> NDArray[np.void]:
    """Return the headers of many single-anchored tuples, an (n,) array of SINGLE."""
    rows = np.empty(len(roots), SINGLE)
    rows["format"], rows["emission"], rows["version"] = FORMAT, version, root_version
    rows["root"], rows["edge"] = roots, edges
    return rows


def read_headers(record: Any) -> list[tuple[str, Any]]:
    """Return all headers of a record, in order; null is also a value.

    Raises:
        MalformedRecord: the name of one is not UTF-8, as another tool may write it. Then none can be read.
    """
    try:
        headers = _headers_of(record)
    except _UNREADABLE_ERRORS:
        record.set_headers(_UNREADABLE)
        headers = _UNREADABLE
    if headers is _UNREADABLE:
        raise MalformedRecord("a header whose name is not UTF-8")
    return headers or []


def headers_of_all(records: Sequence[Any]) -> list[list[tuple[str, Any]] | None] | None:
    """Return the headers of records of one class; None if some cannot be read: ask for those of each then."""
    found: list[list[tuple[str, Any]] | None] = []
    try:
        if records:
            found.extend(map(type(records[0]).headers, records))
    except _UNREADABLE_ERRORS:
        records[len(found)].set_headers(_UNREADABLE)
        return None
    return found


def is_reserved(name: str) -> bool:
    r"""Return whether a header of this name would be read as ours: clients in C end a name at a NUL.

    >>> is_reserved("acktree"), is_reserved("acktree\0x"), is_reserved("acktreex")
    (True, True, False)
    """
    return name.split("\0", 1)[0] == HEADER


def find_header(headers: Sequence[tuple[str, bytes | None]] | None) -> bytes | None:
    """Return the value of the last ``acktree`` header, or None."""
    for key, value in reversed(headers or ()):
        if key == HEADER:
            return value
    return None
