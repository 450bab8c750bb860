"""Encodes and decodes control records: AckInit, Ack, Result, Absent and ReplayCommand in Avro.

Invariant: any bytes are decoded whole or refused with :class:`MalformedRecord`; no memory is allocated for a
count that the bytes cannot hold. Id arrays are views into the bytes given, no loop per entry.
"""

from collections.abc import Sequence
from itertools import pairwise

from acktree.wire.avro import (
    FRAME_BYTES,
    Reader,
    array_bytes,
    boolean_bytes,
    frame_of,
    id_bytes,
    items_bytes,
    string_bytes,
    zigzag,
)
from acktree.wire.control_records import (
    BACK_OFF,
    ENTRY,
    ID,
    MAX_RETRY_MS,
    Absent,
    Ack,
    AckInit,
    Cause,
    Fail,
    FailedTuple,
    Failure,
    ReplayCommand,
    Result,
    Span,
    command_end,
)
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import MAX_RUN

ACK_INIT_FRAME, ACK_FRAME = frame_of("AckInit"), frame_of("Ack")
RESULT_FRAME, ABSENT_FRAME = frame_of("Result"), frame_of("Absent")
REPLAY_COMMAND_FRAME = frame_of("ReplayCommand")
SMALLEST_FAIL = 11


def encode_ack_init(record: AckInit) -> bytes:
    """Return the framed Avro bytes of an AckInit."""
    head = ACK_INIT_FRAME + zigzag(record.spout_task) + zigzag(record.version)
    return head + array_bytes(record.inits.astype(ENTRY, copy=False))


def encode_ack(record: Ack) -> bytes:
    """Return the framed Avro bytes of an Ack, whose failed tuples have one stack trace."""
    return b"".join(
        (
            ACK_FRAME,
            string_bytes(record.task),
            zigzag(record.version),
            string_bytes(_stack_of(record.fails)),
            items_bytes([id_bytes(fail.root) + _why_bytes(fail) for fail in record.fails]),
            array_bytes(record.acks.astype(ENTRY, copy=False)),
            array_bytes(record.resets.astype(ID, copy=False)),
        )
    )


def encode_result(record: Result) -> bytes:
    """Return the framed Avro bytes of a Result, whose failed tuples have one stack trace."""
    failed = [
        id_bytes(f.root) + zigzag(f.cause) + string_bytes(f.task) + _why_bytes(f) for f in record.failed
    ]
    return b"".join(
        (
            RESULT_FRAME,
            zigzag(record.acker),
            array_bytes(record.acked.astype(ID, copy=False)),
            string_bytes(_stack_of(record.failed)),
            items_bytes(failed),
        )
    )


def _why_bytes(fail: Fail | Failure) -> bytes:
    """Return what a fail and a failure end with: when it is emitted again, the reason, and the tuple."""
    why, failed = zigzag(fail.retry_after_ms) + string_bytes(fail.reason), fail.failed_tuple
    if failed is None:
        return why + b"\0"
    return why + b"\2" + string_bytes(failed.topic) + zigzag(failed.partition) + zigzag(failed.offset)


def _stack_of(fails: Sequence[Fail | Failure]) -> str:
    """Return the one stack trace that all the failed tuples have."""
    stacks = {fail.failed_tuple.stack for fail in fails if fail.failed_tuple is not None} or {""}
    assert len(stacks) == 1, stacks
    return stacks.pop()


def encode_absent(record: Absent) -> bytes:
    """Return the framed Avro bytes of an Absent."""
    head = ABSENT_FRAME + zigzag(record.slot) + zigzag(record.run)
    return head + _spans(record.spans) + boolean_bytes(record.is_lost)


def encode_replay_command(record: ReplayCommand) -> bytes:
    """Return the framed Avro bytes of a ReplayCommand."""
    return REPLAY_COMMAND_FRAME + zigzag(record.slot) + _spans(record.spans)


def _spans(spans: Sequence[Span]) -> bytes:
    return items_bytes([zigzag(first) + zigzag(following) for first, following in spans])


_NAMES = {
    ACK_INIT_FRAME: "AckInit",
    ACK_FRAME: "Ack",
    RESULT_FRAME: "Result",
    ABSENT_FRAME: "Absent",
    REPLAY_COMMAND_FRAME: "ReplayCommand",
}


def decode_ack_init(data: bytes) -> AckInit:
    """Return the AckInit in data; raise MalformedRecord for anything else."""
    reader = Reader(data, ACK_INIT_FRAME, _NAMES)
    record = AckInit(reader.int32(), reader.int32(), reader.array(ENTRY))
    reader.end()
    return record


def decode_ack(data: bytes) -> Ack:
    """Return the Ack in data; raise MalformedRecord for anything else."""
    reader = Reader(data, ACK_FRAME, _NAMES)
    task, version, stack = reader.string(), reader.int32(), reader.string()
    fails = reader.items(SMALLEST_FAIL, lambda reader: Fail(reader.id(), *_why(reader, stack)))
    record = Ack(task, version, reader.array(ENTRY), fails, reader.array(ID))
    reader.end()
    return record


def _why(reader: Reader, stack: str) -> tuple[str, int, FailedTuple | None]:
    retry_after_ms = reader.long()
    if not BACK_OFF <= retry_after_ms <= MAX_RETRY_MS:
        raise MalformedRecord(f"retry_after_ms {retry_after_ms} is not between {BACK_OFF} and {MAX_RETRY_MS}")
    return reader.string(), retry_after_ms, _failed_tuple(reader, stack)


def _failed_tuple(reader: Reader, stack: str) -> FailedTuple | None:
    if not (branch := reader.long()):
        return None
    if branch != 1:
        raise MalformedRecord(f"unknown kind of tuple: {branch}")
    failed = FailedTuple(reader.string(), reader.int32(), reader.long(), stack)
    if failed.partition < 0 or failed.offset < 0:
        raise MalformedRecord(f"{failed.topic}/{failed.partition}/{failed.offset} is not a record")
    return failed


def decode_result(data: bytes) -> Result:
    """Return the Result in data; raise MalformedRecord for anything else."""
    reader = Reader(data, RESULT_FRAME, _NAMES)
    acker, acked, stack = reader.int32(), reader.array(ID), reader.string()
    record = Result(acker, acked, reader.items(SMALLEST_FAIL + 2, lambda reader: _failure(reader, stack)))
    reader.end()
    return record


def _failure(reader: Reader, stack: str) -> Failure:
    root, cause = reader.id(), reader.int32()
    if cause not in (0, 1):
        raise MalformedRecord(f"unknown cause {cause}")
    return Failure(root, Cause(cause), reader.string(), *_why(reader, stack))


def decode_absent(data: bytes) -> Absent:
    """Return the Absent in data; raise MalformedRecord for anything else."""
    reader = Reader(data, ABSENT_FRAME, _NAMES)
    slot, run = reader.int32(), reader.int32()
    if not 1 <= run <= MAX_RUN:
        raise MalformedRecord(f"run {run} is not between 1 and {MAX_RUN}")
    absent = Absent(slot, run, _decode_spans(reader), reader.boolean())
    reader.end()
    return absent


def decode_replay_command(data: bytes) -> ReplayCommand:
    """Return the ReplayCommand in data; raise MalformedRecord for anything else."""
    reader = Reader(data, REPLAY_COMMAND_FRAME, _NAMES)
    record = ReplayCommand(reader.int32(), _decode_spans(reader))
    reader.end()
    if not record.spans or command_end(record.spans) < len(record.spans):
        raise MalformedRecord(
            f"{len(record.spans)} spans; at least one is needed, and all must fit into a commit's metadata"
        )
    if any(before.next >= after.first for before, after in pairwise(record.spans)):
        raise MalformedRecord("the spans of a command are out of order or adjacent")
    return record


def _decode_spans(reader: Reader) -> tuple[Span, ...]:
    spans = reader.items(2, _span)
    if any(not 0 <= first < following for first, following in spans):
        raise MalformedRecord("a span ends before it begins")
    return spans


def _span(reader: Reader) -> Span:
    return Span(reader.long(), reader.long())


def decode_result_record(data: bytes) -> Result | Absent | ReplayCommand:
    """Return the content of a record of a result topic; raise MalformedRecord for anything else."""
    if data[:FRAME_BYTES] == ABSENT_FRAME:
        return decode_absent(data)
    if data[:FRAME_BYTES] == REPLAY_COMMAND_FRAME:
        return decode_replay_command(data)
    return decode_result(data)
