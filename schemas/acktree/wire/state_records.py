"""The records of a spout's state topic as values, and as Avro single-object encoding.

Invariant: a value is decoded whole or refused, never skipped, and one that a newer version of acktree wrote
says so: the first field of every state record, in all versions, is its version.
"""

from collections.abc import Sequence
from typing import NamedTuple

from acktree.wire.avro import (
    FRAME_BYTES,
    MAGIC,
    Reader,
    frame_of,
    items_bytes,
    read_varint,
    string_bytes,
    zigzag,
)
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import MAX_RUN

VERSION = 1
SPOUT_KEY, START_KEY = b"spout", b"start"
MAX_STATE_BYTES = 8 << 20
"""The largest record of a state topic."""

SPOUT_STATE_FRAME, SLOT_STATE_FRAME = frame_of("SpoutState"), frame_of("SlotState")
STATE_START_FRAME = frame_of("StateStart")
_NAMES = {
    SPOUT_STATE_FRAME: "SpoutState",
    SLOT_STATE_FRAME: "SlotState",
    STATE_START_FRAME: "StateStart",
}


class AppliedCommand(NamedTuple):
    """A replay command that was applied; ``run`` and ``end`` are 0 once all of it is done."""

    position: int
    run: int
    end: int


class TaskPosition(NamedTuple):
    """From where on a task's result topic is needed, and the commands there that were applied."""

    task: int
    next_offset: int
    commands: Sequence[AppliedCommand] = ()


class SpoutState(NamedTuple):
    """What a driver knows beside its source partitions; ``batch_term`` has seen ``batch`` logged."""

    term: int
    driver: str
    run: int
    batch: int = 0
    batch_term: int = 0
    tasks: Sequence[TaskPosition] = ()


class SlotState(NamedTuple):
    """What is done of a source partition; ``done`` is a Roaring bitmap of the offsets above the frontier."""

    frontier: int
    floor: int
    done: bytes


class StateStart(NamedTuple):
    """Begins a driver."""

    token: int


class SlotKey(NamedTuple):
    """The key of a SlotState; ``topic_id`` tells a topic that was created anew from the one before."""

    topic: str
    partition: int
    topic_id: str

    def encode(self) -> bytes:
        """Return the bytes of the key.

        >>> SlotKey("lines", 3, "vPeOCWypqUOSepEvx0cbog").encode()
        b'lines/3/vPeOCWypqUOSepEvx0cbog'
        """
        return f"{self.topic}/{self.partition}/{self.topic_id}".encode()


def encode_spout_state(state: SpoutState) -> bytes:
    """Return the framed Avro bytes of a SpoutState."""
    head = _head(SPOUT_STATE_FRAME) + zigzag(state.term) + string_bytes(state.driver) + zigzag(state.run)
    return b"".join((head, zigzag(state.batch), zigzag(state.batch_term), _tasks(state.tasks)))


def _tasks(tasks: Sequence[TaskPosition]) -> bytes:
    return items_bytes([zigzag(each.task) + zigzag(each.next_offset) + _applied(each) for each in tasks])


def _applied(task: TaskPosition) -> bytes:
    return items_bytes([b"".join(map(zigzag, command)) for command in task.commands])


def encode_slot_state(state: SlotState) -> bytes:
    """Return the framed Avro bytes of a SlotState."""
    head = _head(SLOT_STATE_FRAME) + zigzag(state.frontier) + zigzag(state.floor)
    return head + zigzag(len(state.done)) + state.done


def encode_state_start(start: StateStart) -> bytes:
    """Return the framed Avro bytes of a StateStart."""
    return _head(STATE_START_FRAME) + zigzag(start.token)


def _head(frame: bytes) -> bytes:
    return frame + zigzag(VERSION)


def decode_spout_state(data: bytes) -> SpoutState:
    """Return the SpoutState in data; raise MalformedRecord for anything else."""
    reader = _reader(data, SPOUT_STATE_FRAME)
    state = SpoutState(
        reader.long(),
        reader.string(),
        _run(reader, 1),
        reader.long(),
        reader.long(),
        reader.items(3, _task),
    )
    reader.end()
    if state.term < 1 or min(state.batch, state.batch_term) < 0:
        raise MalformedRecord(f"state of term {state.term}, batch {state.batch} of term {state.batch_term}")
    return state


def _task(reader: Reader) -> TaskPosition:
    return TaskPosition(reader.int32(), _offset(reader), reader.items(3, _command))


def _command(reader: Reader) -> AppliedCommand:
    return AppliedCommand(_offset(reader), _run(reader, 0), _offset(reader))


def decode_slot_state(data: bytes) -> SlotState:
    """Return the SlotState in data; raise MalformedRecord for anything else."""
    reader = _reader(data, SLOT_STATE_FRAME)
    state = SlotState(_offset(reader), _run(reader, 1), reader.read(reader.long(), "bytes"))
    reader.end()
    return state


def decode_state_start(data: bytes) -> StateStart:
    """Return the StateStart in data; raise MalformedRecord for anything else."""
    reader = _reader(data, STATE_START_FRAME)
    start = StateStart(reader.long())
    reader.end()
    return start


def decode_slot_key(key: bytes) -> SlotKey:
    """Return the key of a SlotState; raise MalformedRecord for anything else."""
    try:
        topic, partition, topic_id = key.decode().split("/")
        found = SlotKey(topic, int(partition), topic_id)
    except ValueError:
        raise MalformedRecord(f"the key {key[:80]!r} is none of a state topic") from None
    if found.encode() != key or not topic or found.partition < 0:
        raise MalformedRecord(f"the key {key[:80]!r} is none of a state topic")
    return found


def _reader(data: bytes, frame: bytes) -> Reader:
    """Return a reader behind the version. Raises MalformedRecord: it is another one, or no such record."""
    if data[: len(MAGIC)] == MAGIC and len(data) > FRAME_BYTES:
        raw, _ = read_varint(data, FRAME_BYTES)
        if (version := raw >> 1) > VERSION and not raw & 1:
            raise MalformedRecord(f"state of version {version}; this process knows {VERSION}: update it")
    reader = Reader(data, frame, _NAMES)
    if (version := reader.int32()) != VERSION:
        raise MalformedRecord(f"state of version {version}; this process knows {VERSION}")
    return reader


def _run(reader: Reader, lowest: int) -> int:
    if not lowest <= (run := reader.int32()) <= MAX_RUN:
        raise MalformedRecord(f"run {run} is not between {lowest} and {MAX_RUN}")
    return run


def _offset(reader: Reader) -> int:
    if (offset := reader.long()) < 0:
        raise MalformedRecord(f"offset {offset} is negative")
    return offset
