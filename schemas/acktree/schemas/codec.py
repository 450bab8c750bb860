"""Control records: Avro single-object encoding of AckInit, Ack, Result, Absent and ReplayCommand.

Invariant: any bytes are decoded whole or refused with :class:`MalformedRecord`; no memory is allocated for a
count that the bytes cannot hold. Id arrays are views into the bytes given, no loop per entry.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form
from numpy.typing import NDArray

from acktree.schemas.errors import MalformedRecord
from acktree.schemas.ids import MAX_RUN, IdArray

ID = np.dtype("<u8")
ENTRY = np.dtype([("root", "<u8"), ("value", "<u8")])
EntryArray = NDArray[np.void]

MAGIC = b"\xc3\x01"
FRAME_BYTES = 10
MAX_REPLAY_SPANS = 200
"""This many spans of done offsets always fit into the metadata of a commit."""


class Cause(IntEnum):
    """Why a root failed; the numbers are the Avro enum's."""

    FAILED = 0
    TIMED_OUT = 1


class Fail(NamedTuple):
    root: int
    reason: str


class Failure(NamedTuple):
    root: int
    cause: Cause
    task: str
    reason: str


def no_ids() -> IdArray:
    return np.empty(0, ID)


def no_entries() -> EntryArray:
    return np.empty(0, ENTRY)


@dataclass(frozen=True, slots=True, eq=False)
class AckInit:
    """Roots just emitted by one spout task; ``inits`` is an (n,) array of ENTRY."""

    spout_task: int
    version: int
    inits: EntryArray


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """The updates of one task for roots of one version; ``acks`` (n,) of ENTRY, ``resets`` (m,) of ID."""

    task: str
    version: int
    acks: EntryArray = field(default_factory=no_entries)
    fails: Sequence[Fail] = ()
    resets: IdArray = field(default_factory=no_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Finished roots that one acker reports to one spout task; ``acked`` (n,) of ID."""

    acker: int
    acked: IdArray = field(default_factory=no_ids)
    failed: Sequence[Failure] = ()


class Span(NamedTuple):
    """Offsets [first, next)."""

    first: int
    next: int


@dataclass(frozen=True, slots=True, eq=False)
class Absent:
    """Offsets of a slot that hold no record, reported to the spout's ledger by the task that read past them.

    ``run`` is that of the emission that was read, None in records of older versions. It is needed because
    the offsets of a truncated log are assigned again.
    """

    slot: int
    spans: Sequence[Span]
    run: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReplayCommand:
    """Offsets of a slot to emit again; 1 to MAX_REPLAY_SPANS spans in order, not adjacent."""

    slot: int
    spans: Sequence[Span]


def schema(name: str) -> dict[str, Any]:
    """Return the Avro schema ``name`` from its .avsc file."""
    parsed: dict[str, Any] = json.loads(files("acktree.schemas").joinpath(f"{name}.avsc").read_text())
    return parsed


def _frame(name: str) -> bytes:
    canonical = to_parsing_canonical_form(parse_schema(schema(name)))
    return MAGIC + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


ACK_INIT_FRAME, ACK_FRAME = _frame("AckInit"), _frame("Ack")
RESULT_FRAME, ABSENT_FRAME = _frame("Result"), _frame("Absent")
ABSENT_IN_RUN_FRAME, REPLAY_COMMAND_FRAME = _frame("AbsentInRun"), _frame("ReplayCommand")


def varint(number: int) -> bytes:
    """Return a number >= 0 in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Return an Avro int or long."""
    return varint((number << 1) ^ (number >> 63))


def _string(text: str) -> bytes:
    raw = text.encode()
    return zigzag(len(raw)) + raw


def _array(items: NDArray[Any]) -> bytes:
    return b"".join((zigzag(len(items)), items.tobytes(), b"\0")) if len(items) else b"\0"


def _id(value: int) -> bytes:
    return value.to_bytes(8, "little")


def encode_ack_init(record: AckInit) -> bytes:
    """Return the framed Avro bytes of an AckInit."""
    head = ACK_INIT_FRAME + zigzag(record.spout_task) + zigzag(record.version)
    return head + _array(record.inits.astype(ENTRY, copy=False))


def encode_ack(record: Ack) -> bytes:
    """Return the framed Avro bytes of an Ack."""
    fails = b"".join(_id(fail.root) + _string(fail.reason) for fail in record.fails)
    return b"".join(
        (
            ACK_FRAME,
            _string(record.task),
            zigzag(record.version),
            _array(record.acks.astype(ENTRY, copy=False)),
            zigzag(len(record.fails)) + fails + b"\0" if record.fails else b"\0",
            _array(record.resets.astype(ID, copy=False)),
        )
    )


def encode_result(record: Result) -> bytes:
    """Return the framed Avro bytes of a Result."""
    failed = b"".join(
        _id(f.root) + zigzag(f.cause) + _string(f.task) + _string(f.reason) for f in record.failed
    )
    return b"".join(
        (
            RESULT_FRAME,
            zigzag(record.acker),
            _array(record.acked.astype(ID, copy=False)),
            zigzag(len(record.failed)) + failed + b"\0" if record.failed else b"\0",
        )
    )


def encode_absent(record: Absent) -> bytes:
    """Return the framed Avro bytes of an Absent."""
    if record.run is None:
        return ABSENT_FRAME + zigzag(record.slot) + _spans(record.spans)
    return ABSENT_IN_RUN_FRAME + zigzag(record.slot) + zigzag(record.run) + _spans(record.spans)


def encode_replay_command(record: ReplayCommand) -> bytes:
    """Return the framed Avro bytes of a ReplayCommand."""
    return REPLAY_COMMAND_FRAME + zigzag(record.slot) + _spans(record.spans)


def _spans(spans: Sequence[Span]) -> bytes:
    items = b"".join(zigzag(first) + zigzag(following) for first, following in spans)
    return zigzag(len(spans)) + items + b"\0" if spans else b"\0"


_NAMES = {
    ACK_INIT_FRAME: "AckInit",
    ACK_FRAME: "Ack",
    RESULT_FRAME: "Result",
    ABSENT_FRAME: "Absent",
    ABSENT_IN_RUN_FRAME: "AbsentInRun",
    REPLAY_COMMAND_FRAME: "ReplayCommand",
}


class _Reader:
    """A cursor that never reads past the end and never trusts a count."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, frame: bytes) -> None:
        if data[:FRAME_BYTES] != frame:
            found = _NAMES.get(bytes(data[:FRAME_BYTES]), "no schema of ours")
            raise MalformedRecord(f"expected a framed {_NAMES[frame]}, found {found}")
        self.data = data
        self.position = FRAME_BYTES

    def long(self) -> int:
        value = shift = 0
        while shift < 70:
            if self.position >= len(self.data):
                raise MalformedRecord("record ends inside a number")
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise MalformedRecord("number longer than 64 bits")

    def int32(self) -> int:
        value = self.long()
        if not -(2**31) <= value < 2**31:
            raise MalformedRecord(f"int {value} does not fit 32 bits")
        return value

    def take(self, size: int, what: str) -> bytes:
        if size < 0 or size > len(self.data) - self.position:
            raise MalformedRecord(f"{what} of {size} bytes, {len(self.data) - self.position} left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def string(self) -> str:
        raw = self.take(self.long(), "string")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"string is not UTF-8: {error.reason}") from error

    def id(self) -> int:
        return int.from_bytes(self.take(8, "id"), "little")

    def count(self, smallest_item: int) -> int:
        """Read a block count, 0 for the empty array; a negative one is followed by the block's size."""
        count = self.long()
        left = len(self.data) - self.position
        if count < 0:
            count, size = -count, self.long()
            if size > left:
                raise MalformedRecord(f"block of {size} bytes, {left} left")
        if count * smallest_item > left:
            raise MalformedRecord(f"array of {count} items, {left} bytes left")
        return count

    def end_of_array(self, count: int) -> None:
        if count and self.long() != 0:
            raise MalformedRecord("array in more than one block")

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        count = self.count(dtype.itemsize)
        items = np.frombuffer(self.take(count * dtype.itemsize, "array"), dtype)
        self.end_of_array(count)
        return items

    def end(self) -> None:
        if self.position != len(self.data):
            raise MalformedRecord(f"{len(self.data) - self.position} bytes behind the record")


def decode_ack_init(data: bytes) -> AckInit:
    """Return the AckInit in data; raise MalformedRecord for anything else."""
    reader = _Reader(data, ACK_INIT_FRAME)
    record = AckInit(reader.int32(), reader.int32(), reader.array(ENTRY))
    reader.end()
    return record


def decode_ack(data: bytes) -> Ack:
    """Return the Ack in data; raise MalformedRecord for anything else."""
    reader = _Reader(data, ACK_FRAME)
    task, version, acks = reader.string(), reader.int32(), reader.array(ENTRY)
    count = reader.count(9)
    fails = tuple(Fail(reader.id(), reader.string()) for _ in range(count))
    reader.end_of_array(count)
    record = Ack(task, version, acks, fails, reader.array(ID))
    reader.end()
    return record


def decode_result(data: bytes) -> Result:
    """Return the Result in data; raise MalformedRecord for anything else."""
    reader = _Reader(data, RESULT_FRAME)
    acker, acked = reader.int32(), reader.array(ID)
    count = reader.count(11)
    failed = tuple(_failure(reader) for _ in range(count))
    reader.end_of_array(count)
    reader.end()
    return Result(acker, acked, failed)


def _failure(reader: _Reader) -> Failure:
    root, cause = reader.id(), reader.int32()
    if cause not in (0, 1):
        raise MalformedRecord(f"unknown cause {cause}")
    return Failure(root, Cause(cause), reader.string(), reader.string())


def decode_absent(data: bytes) -> Absent:
    """Return the Absent in data; raise MalformedRecord for anything else."""
    if data[:FRAME_BYTES] != ABSENT_IN_RUN_FRAME:
        reader = _Reader(data, ABSENT_FRAME)
        return Absent(reader.int32(), _decode_spans(reader))
    reader = _Reader(data, ABSENT_IN_RUN_FRAME)
    slot, run = reader.int32(), reader.int32()
    if not 1 <= run <= MAX_RUN:
        raise MalformedRecord(f"run {run}; it is 1 to {MAX_RUN}")
    return Absent(slot, _decode_spans(reader), run)


def decode_replay_command(data: bytes) -> ReplayCommand:
    """Return the ReplayCommand in data; raise MalformedRecord for anything else."""
    reader = _Reader(data, REPLAY_COMMAND_FRAME)
    record = ReplayCommand(reader.int32(), _decode_spans(reader))
    if not 1 <= len(record.spans) <= MAX_REPLAY_SPANS:
        raise MalformedRecord(f"{len(record.spans)} spans; a command has 1 to {MAX_REPLAY_SPANS}")
    if any(before.next >= after.first for before, after in pairwise(record.spans)):
        raise MalformedRecord("spans of a command that are out of order or touch")
    return record


def _decode_spans(reader: _Reader) -> tuple[Span, ...]:
    count = reader.count(2)
    spans = tuple(Span(reader.long(), reader.long()) for _ in range(count))
    reader.end_of_array(count)
    reader.end()
    if any(not 0 <= first < following for first, following in spans):
        raise MalformedRecord("span that ends before it begins")
    return spans


def decode_result_record(data: bytes) -> Result | Absent | ReplayCommand:
    """Return the content of a record of a result topic; raise MalformedRecord for anything else."""
    if data[:FRAME_BYTES] in (ABSENT_FRAME, ABSENT_IN_RUN_FRAME):
        return decode_absent(data)
    if data[:FRAME_BYTES] == REPLAY_COMMAND_FRAME:
        return decode_replay_command(data)
    return decode_result(data)
