"""Encodes and decodes Avro's single-object encoding, as far as the control records need it.

Invariant: nothing is read past the end, and no memory is allocated for a count that the bytes cannot hold.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form
from numpy.typing import NDArray

from acktree.wire.errors import MalformedRecord

Item = TypeVar("Item")

MAGIC = b"\xc3\x01"
FRAME_BYTES = 10


def schema(name: str) -> dict[str, Any]:
    """Return the Avro schema ``name`` from its .avsc file."""
    parsed: dict[str, Any] = json.loads(files("acktree.wire").joinpath(f"{name}.avsc").read_text())
    return parsed


def frame_of(name: str) -> bytes:
    """Return the first FRAME_BYTES of a record: the magic bytes and the schema's fingerprint."""
    canonical = to_parsing_canonical_form(parse_schema(schema(name)))
    return MAGIC + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def varint(number: int) -> bytes:
    """Return a number >= 0 in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that ``varint`` wrote at a position, and the position behind it.

    Raises:
        MalformedRecord: the bytes end inside it, or it is longer than 64 bits.
    """
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise MalformedRecord("record ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise MalformedRecord("number longer than 64 bits")


def zigzag(number: int) -> bytes:
    """Return an Avro int or long."""
    return varint((number << 1) ^ (number >> 63))


def boolean_bytes(value: bool) -> bytes:
    """Return the Avro bytes of a boolean."""
    return b"\1" if value else b"\0"


def string_bytes(text: str) -> bytes:
    raw = text.encode()
    return zigzag(len(raw)) + raw


def array_bytes(items: NDArray[Any]) -> bytes:
    return b"".join((zigzag(len(items)), items.tobytes(), b"\0")) if len(items) else b"\0"


def items_bytes(items: Sequence[bytes]) -> bytes:
    return b"".join((zigzag(len(items)), *items, b"\0")) if items else b"\0"


def id_bytes(value: int) -> bytes:
    return value.to_bytes(8, "little")


class Reader:
    """A cursor that never reads past the end and never trusts a count."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, frame: bytes, names: Mapping[bytes, str]) -> None:
        """Begin behind the frame; ``names`` are those of all schemas by frame, for the error."""
        if data[:FRAME_BYTES] != frame:
            found = names.get(bytes(data[:FRAME_BYTES]), "not an acktree schema")
            raise MalformedRecord(f"expected a framed {names[frame]}, found {found}")
        self.data = data
        self.position = FRAME_BYTES

    def long(self) -> int:
        position = self.position
        if (
            position < len(self.data) and (value := self.data[position]) < 0x80
        ):  # nearly all counts are one byte
            self.position = position + 1
        else:
            value, self.position = read_varint(self.data, position)
        return (value >> 1) ^ -(value & 1)

    def int32(self) -> int:
        value = self.long()
        if not -(2**31) <= value < 2**31:
            raise MalformedRecord(f"int {value} does not fit 32 bits")
        return value

    def read(self, size: int, what: str) -> bytes:
        if size < 0 or size > len(self.data) - self.position:
            raise MalformedRecord(f"{what} of {size} bytes, {len(self.data) - self.position} left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def boolean(self) -> bool:
        if (byte := self.read(1, "boolean")) not in (b"\0", b"\1"):
            raise MalformedRecord(f"{byte!r} is not a boolean")
        return byte == b"\1"

    def string(self) -> str:
        raw = self.read(self.long(), "string")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"string is not UTF-8: {error.reason}") from error

    def id(self) -> int:
        return int.from_bytes(self.read(8, "id"), "little")

    def count(self, smallest_item: int) -> int:
        """Read a block count, 0 for the empty array; a negative one is followed by the block's size."""
        count = self.long()
        if not count:
            return 0
        left = len(self.data) - self.position
        if count < 0:
            count, size = -count, self.long()
            if size > left:
                raise MalformedRecord(f"block of {size} bytes, {left} left")
        if count * smallest_item > left:
            raise MalformedRecord(f"array of {count} items, {left} bytes left")
        return count

    def items(self, smallest: int, read: Callable[["Reader"], Item]) -> tuple[Item, ...]:
        """Read an array of items of at least ``smallest`` bytes each, reading each with a function."""
        count = self.count(smallest)
        found = tuple(read(self) for _ in range(count))
        self.end_of_array(count)
        return found

    def end_of_array(self, count: int) -> None:
        if count and self.long() != 0:
            raise MalformedRecord("array in more than one block")

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        count = self.count(dtype.itemsize)
        items = np.frombuffer(self.read(count * dtype.itemsize, "array"), dtype)
        self.end_of_array(count)
        return items

    def end(self) -> None:
        if self.position != len(self.data):
            raise MalformedRecord(f"{len(self.data) - self.position} bytes after the record")
