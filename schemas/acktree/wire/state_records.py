"""The records of a spout's state topic, as values and in Avro's single-object encoding.

Invariant: a value is decoded whole or refused, never skipped. A record of a newer version of acktree is
recognized: the first field of every state record, in all versions, is its version.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from acktree.wire.avro import (
    FRAME_BYTES,
    MAGIC,
    Reader,
    boolean_bytes,
    frame_of,
    items_bytes,
    read_varint,
    string_bytes,
    zigzag,
)
from acktree.wire.commit_metadata import seal, unseal
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import MAX_OFFSET, MAX_RUN, run_at_least

VERSION = 1
SPOUT_KEY, START_KEY = b"spout", b"start"
SEAL = "acktree-1"
"""How the metadata of a spout's committed offsets begins."""
MAX_STATE_BYTES = 8 << 20
"""The largest record of a state topic."""

SPOUT_STATE_FRAME, SLOT_STATE_FRAME = frame_of("SpoutState"), frame_of("SlotState")
STATE_START_FRAME, TASK_STATE_FRAME = frame_of("StateStart"), frame_of("TaskState")
_NAMES = {
    SPOUT_STATE_FRAME: "SpoutState",
    SLOT_STATE_FRAME: "SlotState",
    STATE_START_FRAME: "StateStart",
    TASK_STATE_FRAME: "TaskState",
}


class TaskPosition(NamedTuple):
    """A position on a task's result topic: the state holds all below. For ``applied`` see the schema."""

    task: int
    next_offset: int
    applied: Sequence[int] = ()


class SpoutState(NamedTuple):
    """The state of a driver, or of a task of a stage, beside its source partitions; see SpoutState.avsc."""

    term: int
    driver: str
    batch: int = 0
    planned: int = 0
    tasks: Sequence[TaskPosition] = ()
    topology: int = 0


class EmittedBlocks(NamedTuple):
    """Offsets [start, end) first emitted in a run as blocks, cut at start, end and multiples of ``size``."""

    start: int
    end: int
    size: int
    run: int


class Attempts(NamedTuple):
    """Records that have failed and are not done; ``offsets`` is a Roaring bitmap. See SlotState.avsc."""

    generation: int
    emissions: int
    counted: int
    due_ms: int
    is_delayed: bool
    offsets: bytes


class LiveCommand(NamedTuple):
    """A replay command under way; ``offsets`` is a Roaring bitmap."""

    task: int
    position: int
    run: int
    next_offset: int
    offsets: bytes


class LogEpoch(NamedTuple):
    """Whose log was read: the records below ``end`` are those of this leader's log; -1 is not known.

    Where a later leader's log ends this epoch below ``end``, other records stand from there on (KIP-320).
    Behind ``end`` may be offsets that were passed, as they held no record.
    """

    epoch: int
    end: int

    def below(self, end: int) -> "LogEpoch":
        """Return what still holds of a log that has fallen to ``end``."""
        return self._replace(end=min(self.end, end))


UNKNOWN_EPOCH = LogEpoch(-1, 0)
SEVERAL_TASKS = -1
"""The task of a slot whose results are on the result topics of several."""


class SlotState(NamedTuple):
    """The state of a source partition; ``done`` is a Roaring bitmap. See SlotState.avsc."""

    frontier: int
    next_offset: int
    floor: int
    done: bytes
    emitted_ms: int = 0
    is_first: bool = False
    limit: int = 0
    blocks: Sequence[EmittedBlocks] = ()
    attempts: Sequence[Attempts] = ()
    command: LiveCommand | None = None
    run: int = 1
    task: int = SEVERAL_TASKS
    term: int = 0
    epoch: LogEpoch = UNKNOWN_EPOCH

    @property
    def sets(self) -> list[bytes]:
        """All of its bitmaps."""
        command = [self.command.offsets] if self.command is not None else []
        return [self.done, *(each.offsets for each in self.attempts), *command]

    def aged(self, elapsed_ms: int) -> "SlotState":
        """Return the state a while later: everything is older, and what waits is due earlier, or now."""
        attempts = [
            each._replace(due_ms=each.due_ms and max(1, each.due_ms - elapsed_ms)) for each in self.attempts
        ]
        return self._replace(emitted_ms=self.emitted_ms and self.emitted_ms + elapsed_ms, attempts=attempts)


class TaskState(NamedTuple):
    """The state of one task of a spout in Python; see TaskState.avsc."""

    term: int
    driver: str
    run: int
    sequence: int
    next_offset: int = 0


class StateStart(NamedTuple):
    """Begins a driver, or a task in Python, under a version of the topology."""

    token: int
    topology: int = 0


class SlotKey(NamedTuple):
    """The key of a SlotState; ``topic_id`` tells a recreated topic from the one before."""

    topic: str
    partition: int
    topic_id: str

    def encode(self) -> bytes:
        """Return the bytes of the key.

        >>> SlotKey("lines", 3, "vPeOCWypqUOSepEvx0cbog").encode()
        b'lines/3/vPeOCWypqUOSepEvx0cbog'
        """
        return f"{self.topic}/{self.partition}/{self.topic_id}".encode()


class OffsetSeal(NamedTuple):
    """The metadata of an offset that a driver has committed for its source partition."""

    term: int
    topic_id: str

    def text(self, offset: int) -> str:
        """Return the metadata of the commit of an offset.

        >>> seal_in(OffsetSeal(3, "vPeOCWypqUOSepEvx0cbog").text(9), 9)
        OffsetSeal(term=3, topic_id='vPeOCWypqUOSepEvx0cbog')
        """
        return seal(SEAL, self.term, self.topic_id, about=str(offset))


def seal_in(metadata: str, offset: int) -> OffsetSeal | None:
    """Return the seal of a committed offset, None if it is somebody else's, or was moved since."""
    parts = unseal(metadata, (SEAL,), 3, about=str(offset))
    return OffsetSeal(int(parts[1]), parts[2]) if parts and parts[1].isdecimal() else None


def encode_spout_state(state: SpoutState) -> bytes:
    """Return the framed Avro bytes of a SpoutState."""
    head = _head(SPOUT_STATE_FRAME) + zigzag(state.term) + string_bytes(state.driver)
    tasks = [
        zigzag(each.task) + zigzag(each.next_offset) + items_bytes([*map(zigzag, each.applied)])
        for each in state.tasks
    ]
    numbers = zigzag(state.batch), zigzag(state.planned)
    return b"".join((head, *numbers, items_bytes(tasks), zigzag(state.topology)))


def encode_slot_state(state: SlotState) -> bytes:
    """Return the framed Avro bytes of a SlotState."""
    return b"".join(
        (
            _head(SLOT_STATE_FRAME),
            *map(zigzag, (state.frontier, state.next_offset, state.floor)),
            _bytes(state.done),
            *(zigzag(state.emitted_ms), boolean_bytes(state.is_first), zigzag(state.limit)),
            items_bytes([b"".join(map(zigzag, blocks)) for blocks in state.blocks]),
            items_bytes([_attempts(each) for each in state.attempts]),
            zigzag(0) if state.command is None else zigzag(1) + _command(state.command),
            *map(zigzag, (state.run, state.task, state.term, *state.epoch)),
        )
    )


def _attempts(of: Attempts) -> bytes:
    numbers = b"".join(map(zigzag, (of.generation, of.emissions, of.counted, of.due_ms)))
    return numbers + boolean_bytes(of.is_delayed) + _bytes(of.offsets)


def _command(command: LiveCommand) -> bytes:
    return b"".join(map(zigzag, command[:-1])) + _bytes(command.offsets)


def _bytes(raw: bytes) -> bytes:
    return zigzag(len(raw)) + raw


def encode_task_state(state: TaskState) -> bytes:
    """Return the framed Avro bytes of a TaskState."""
    head = _head(TASK_STATE_FRAME) + zigzag(state.term) + string_bytes(state.driver)
    return head + b"".join(map(zigzag, (state.run, state.sequence, state.next_offset)))


def encode_state_start(start: StateStart) -> bytes:
    """Return the framed Avro bytes of a StateStart."""
    return _head(STATE_START_FRAME) + zigzag(start.token) + zigzag(start.topology)


def _head(frame: bytes) -> bytes:
    return frame + zigzag(VERSION)


def decode_spout_state(data: bytes) -> SpoutState:
    """Return the SpoutState in data; raise MalformedRecord for anything else."""
    reader = _reader(data, SPOUT_STATE_FRAME)
    head = reader.long(), reader.string(), reader.long(), reader.long()
    state = SpoutState(*head, reader.items(3, _read_task), reader.int32())
    reader.end()
    if state.term < 1 or min(state.batch, state.planned) < 0:
        raise MalformedRecord(f"state of term {state.term}, batches {state.batch} and {state.planned}")
    return state


def _read_task(reader: Reader) -> TaskPosition:
    return TaskPosition(reader.int32(), _offset(reader), reader.items(1, _offset))


def decode_slot_state(data: bytes) -> SlotState:
    """Return the SlotState in data; raise MalformedRecord for anything else."""
    reader = _reader(data, SLOT_STATE_FRAME)
    head = _offset(reader), _offset(reader), _run(reader), _read_bytes(reader)
    more = _offset(reader), reader.boolean(), _offset(reader)
    lists = reader.items(4, _read_blocks), reader.items(6, _read_attempts)
    command, run, task = _read_command(reader), _run(reader), reader.int32()
    state = SlotState(*head, *more, *lists, command, run, task, _offset(reader), _read_epoch(reader))
    reader.end()
    if not run_at_least(state.run, state.floor) or state.task < SEVERAL_TASKS:
        raise MalformedRecord(f"run {state.run} of task {state.task} with the floor {state.floor}")
    if state.next_offset < state.frontier:
        raise MalformedRecord(f"frontier {state.frontier} behind the next offset {state.next_offset}")
    return state


def _read_blocks(reader: Reader) -> EmittedBlocks:
    blocks = EmittedBlocks(_offset(reader), _offset(reader), _offset(reader), _run(reader))
    if blocks.size < 1 or blocks.start >= blocks.end:
        raise MalformedRecord(f"blocks of {blocks.size} from {blocks.start} to {blocks.end}")
    return blocks


def _read_attempts(reader: Reader) -> Attempts:
    generation, emissions, counted = reader.int32(), reader.int32(), reader.int32()
    if not 0 <= generation < (MAX_RUN + 1) << 4 or min(emissions + 1, counted) < 0:
        raise MalformedRecord(f"attempts of generation {generation}, {counted} of {emissions} emissions")
    due_ms, is_delayed = _offset(reader), reader.boolean()
    return Attempts(generation, emissions, counted, due_ms, is_delayed, _read_bytes(reader))


def _read_command(reader: Reader) -> LiveCommand | None:
    if (branch := reader.long()) not in (0, 1):
        raise MalformedRecord(f"branch {branch} of a union of two")
    if branch == 0:
        return None
    head = reader.int32(), _offset(reader), _run(reader), _offset(reader)
    return LiveCommand(*head, _read_bytes(reader))


def _read_epoch(reader: Reader) -> LogEpoch:
    epoch = LogEpoch(reader.int32(), _offset(reader))
    if epoch.epoch < -1:
        raise MalformedRecord(f"leader epoch {epoch.epoch} is negative")
    return epoch


def _read_bytes(reader: Reader) -> bytes:
    return bytes(reader.read(reader.long(), "bytes"))


def decode_task_state(data: bytes) -> TaskState:
    """Return the TaskState in data; raise MalformedRecord for anything else."""
    reader = _reader(data, TASK_STATE_FRAME)
    state = TaskState(reader.long(), reader.string(), _run(reader), _offset(reader), _offset(reader))
    reader.end()
    if state.term < 1 or state.sequence > MAX_OFFSET + 1:
        raise MalformedRecord(f"state of term {state.term}, message number {state.sequence}")
    return state


def decode_task_record(data: bytes) -> SpoutState | TaskState:
    """Return the state of a task of either kind of spout; raise MalformedRecord for anything else."""
    if data[: len(SPOUT_STATE_FRAME)] == SPOUT_STATE_FRAME:
        return decode_spout_state(data)
    return decode_task_state(data)


def decode_state_start(data: bytes) -> StateStart:
    """Return the StateStart in data; raise MalformedRecord for anything else."""
    reader = _reader(data, STATE_START_FRAME)
    start = StateStart(reader.long(), reader.int32())
    reader.end()
    return start


def task_key(task: int) -> bytes:
    """Return the key of a task's state; a task is the number of its result topic."""
    return b"task/%d" % task


def task_start_key(task: int) -> bytes:
    """Return the key of the StateStart of a task in Python."""
    return b"start/%d" % task


def task_in(key: bytes) -> int | None:
    """Return the task of a key that ``task_key`` or ``task_start_key`` has made, None for any other.

    >>> task_in(task_key(3)), task_in(task_start_key(0)), task_in(b"task/03")
    (3, 0, None)
    """
    found = re.fullmatch(rb"(?:task|start)/(0|[1-9][0-9]*)", key)
    return int(found[1]) if found else None


def decode_slot_key(key: bytes) -> SlotKey:
    """Return the key of a SlotState; raise MalformedRecord for anything else."""
    try:
        topic, partition, topic_id = key.decode().split("/", 2)
        found = SlotKey(topic, int(partition), topic_id)
    except ValueError:
        raise MalformedRecord(f"the key {key[:80]!r} is not a key of a state topic") from None
    if found.encode() != key or not topic or found.partition < 0:
        raise MalformedRecord(f"the key {key[:80]!r} is not a key of a state topic")
    return found


def _reader(data: bytes, frame: bytes) -> Reader:
    """Return a reader behind the version. Raises MalformedRecord: it is another one, or no such record."""
    if data[: len(MAGIC)] == MAGIC and len(data) > FRAME_BYTES:
        raw, _ = read_varint(data, FRAME_BYTES)
        if (version := raw >> 1) > VERSION and not raw & 1:
            raise MalformedRecord(
                f"state has version {version}, but this process supports {VERSION}: upgrade it"
            )
    reader = Reader(data, frame, _NAMES)
    if (version := reader.int32()) != VERSION:
        raise MalformedRecord(f"state has version {version}, but this process supports {VERSION}")
    return reader


def _run(reader: Reader) -> int:
    if not 1 <= (run := reader.int32()) <= MAX_RUN:
        raise MalformedRecord(f"run {run} is not between 1 and {MAX_RUN}")
    return run


def _offset(reader: Reader) -> int:
    if (offset := reader.long()) < 0:
        raise MalformedRecord(f"offset {offset} is negative")
    return offset
