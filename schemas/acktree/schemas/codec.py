"""Control records: Avro single-object encoding of AckInit, Ack, Result, Absent and ReplayCommand.

FailWithRetry and FailWithTuple are decoded as an Ack, ResultWithRetry and ResultWithTuple as a Result: they
are later versions of a part of these.

Invariant: any bytes are decoded whole or refused with :class:`MalformedRecord`; no memory is allocated for a
count that the bytes cannot hold. Id arrays are views into the bytes given, no loop per entry.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from acktree.schemas.avro import FRAME_BYTES, Reader, array_bytes, frame_of, id_bytes, string_bytes, zigzag
from acktree.schemas.control_records import (
    BACK_OFF,
    ENTRY,
    ID,
    MAX_REPLAY_SPANS,
    MAX_RETRY_MS,
    NEVER,
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
)
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.ids import MAX_RUN

ACK_INIT_FRAME, ACK_FRAME = frame_of("AckInit"), frame_of("Ack")
RESULT_FRAME, ABSENT_FRAME = frame_of("Result"), frame_of("Absent")
ABSENT_IN_RUN_FRAME, REPLAY_COMMAND_FRAME = frame_of("AbsentInRun"), frame_of("ReplayCommand")
FAIL_WITH_RETRY_FRAME, RESULT_WITH_RETRY_FRAME = frame_of("FailWithRetry"), frame_of("ResultWithRetry")
FAIL_WITH_TUPLE_FRAME, RESULT_WITH_TUPLE_FRAME = frame_of("FailWithTuple"), frame_of("ResultWithTuple")
Record = TypeVar("Record")


def encode_ack_init(record: AckInit) -> bytes:
    """Return the framed Avro bytes of an AckInit."""
    head = ACK_INIT_FRAME + zigzag(record.spout_task) + zigzag(record.version)
    return head + array_bytes(record.inits.astype(ENTRY, copy=False))


def encode_ack(record: Ack) -> bytes:
    """Return the framed Avro bytes of an Ack, which does not say when failed roots are emitted again."""
    fails = b"".join(id_bytes(fail.root) + string_bytes(fail.reason) for fail in record.fails)
    return b"".join(
        (
            ACK_FRAME,
            string_bytes(record.task),
            zigzag(record.version),
            array_bytes(record.acks.astype(ENTRY, copy=False)),
            zigzag(len(record.fails)) + fails + b"\0" if record.fails else b"\0",
            array_bytes(record.resets.astype(ID, copy=False)),
        )
    )


def encode_fail_with_retry(record: Ack) -> bytes:
    """Return the framed Avro bytes of a FailWithRetry: fails with a delay or NEVER, no acks and no resets."""
    assert not len(record.acks) + len(record.resets), record
    assert all(fail.retry_after_ms != BACK_OFF for fail in record.fails), record
    fails = b"".join(
        id_bytes(fail.root) + zigzag(fail.retry_after_ms) + string_bytes(fail.reason) for fail in record.fails
    )
    head = FAIL_WITH_RETRY_FRAME + string_bytes(record.task) + zigzag(record.version)
    return head + (zigzag(len(record.fails)) + fails + b"\0" if record.fails else b"\0")


def encode_result_with_retry(record: Result) -> bytes:
    """Return the framed Avro bytes of a ResultWithRetry; each failure has a delay or NEVER, none is acked."""
    assert not len(record.acked), record
    assert all(failure.retry_after_ms != BACK_OFF for failure in record.failed), record
    failed = b"".join(
        id_bytes(f.root) + zigzag(f.retry_after_ms) + string_bytes(f.task) + string_bytes(f.reason)
        for f in record.failed
    )
    head = RESULT_WITH_RETRY_FRAME + zigzag(record.acker)
    return head + (zigzag(len(record.failed)) + failed + b"\0" if record.failed else b"\0")


def encode_fail_with_tuple(record: Ack) -> bytes:
    """Return the framed Avro bytes of a FailWithTuple: fails of tuples with one stack, no acks, no resets."""
    assert not len(record.acks) + len(record.resets), record
    fails = b"".join(
        id_bytes(fail.root)
        + zigzag(fail.retry_after_ms)
        + string_bytes(fail.reason)
        + _place_bytes(fail.failed_tuple)
        for fail in record.fails
    )
    head = FAIL_WITH_TUPLE_FRAME + string_bytes(record.task) + zigzag(record.version)
    items = zigzag(len(record.fails)) + fails + b"\0" if record.fails else b"\0"
    return head + string_bytes(_stack_of(record.fails)) + items


def encode_result_with_tuple(record: Result) -> bytes:
    """Return the framed Avro bytes of a ResultWithTuple: failures of tuples with one stack, none is acked."""
    assert not len(record.acked), record
    failed = b"".join(
        id_bytes(f.root)
        + zigzag(f.retry_after_ms)
        + string_bytes(f.task)
        + string_bytes(f.reason)
        + _place_bytes(f.failed_tuple)
        for f in record.failed
    )
    head = RESULT_WITH_TUPLE_FRAME + zigzag(record.acker) + string_bytes(_stack_of(record.failed))
    return head + (zigzag(len(record.failed)) + failed + b"\0" if record.failed else b"\0")


def _place_bytes(failed: FailedTuple | None) -> bytes:
    assert failed is not None
    return string_bytes(failed.topic) + zigzag(failed.partition) + zigzag(failed.offset)


def _stack_of(fails: Sequence[Fail | Failure]) -> str:
    """Return the one stack that all the fails have."""
    stacks = {fail.failed_tuple.stack for fail in fails if fail.failed_tuple is not None} or {""}
    assert len(stacks) == 1, stacks
    return stacks.pop()


def encode_result(record: Result) -> bytes:
    """Return the framed Avro bytes of a Result, which does not say when failed roots are emitted again."""
    failed = b"".join(
        id_bytes(f.root) + zigzag(f.cause) + string_bytes(f.task) + string_bytes(f.reason)
        for f in record.failed
    )
    return b"".join(
        (
            RESULT_FRAME,
            zigzag(record.acker),
            array_bytes(record.acked.astype(ID, copy=False)),
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
    FAIL_WITH_RETRY_FRAME: "FailWithRetry",
    RESULT_WITH_RETRY_FRAME: "ResultWithRetry",
    FAIL_WITH_TUPLE_FRAME: "FailWithTuple",
    RESULT_WITH_TUPLE_FRAME: "ResultWithTuple",
}


def decode_ack_init(data: bytes) -> AckInit:
    """Return the AckInit in data; raise MalformedRecord for anything else."""
    reader = Reader(data, ACK_INIT_FRAME, _NAMES)
    record = AckInit(reader.int32(), reader.int32(), reader.array(ENTRY))
    reader.end()
    return record


def decode_ack(data: bytes) -> Ack:
    """Return the Ack, FailWithRetry or FailWithTuple in data; raise MalformedRecord for anything else."""
    return _decode(data, _ACK_FORMS, ACK_FRAME)


def _ack(reader: Reader) -> Ack:
    return Ack(reader.string(), reader.int32(), reader.array(ENTRY), reader.items(9, _fail), reader.array(ID))


def _fail_with_retry(reader: Reader) -> Ack:
    return Ack(reader.string(), reader.int32(), fails=reader.items(10, _retry_fail))


def _fail_with_tuple(reader: Reader) -> Ack:
    task, version, stack = reader.string(), reader.int32(), reader.string()
    return Ack(task, version, fails=reader.items(13, lambda reader: _tuple_fail(reader, stack)))


def _fail(reader: Reader) -> Fail:
    return Fail(reader.id(), reader.string())


def _retry_fail(reader: Reader) -> Fail:
    root, retry_after_ms = reader.id(), _retry_after_ms(reader)
    return Fail(root, reader.string(), retry_after_ms)


def _tuple_fail(reader: Reader, stack: str) -> Fail:
    root, retry_after_ms, reason = reader.id(), _retry_after_ms(reader, BACK_OFF), reader.string()
    return Fail(root, reason, retry_after_ms, _failed_tuple(reader, stack))


def _failed_tuple(reader: Reader, stack: str) -> FailedTuple:
    failed = FailedTuple(reader.string(), reader.int32(), reader.long(), stack)
    if failed.partition < 0 or failed.offset < 0:
        raise MalformedRecord(f"{failed.topic}/{failed.partition}/{failed.offset} is no record")
    return failed


def _retry_after_ms(reader: Reader, least: int = NEVER) -> int:
    retry_after_ms = reader.long()
    if not least <= retry_after_ms <= MAX_RETRY_MS:
        raise MalformedRecord(f"retry_after_ms {retry_after_ms} is not between {least} and {MAX_RETRY_MS}")
    return retry_after_ms


_ACK_FORMS = {
    ACK_FRAME: _ack,
    FAIL_WITH_RETRY_FRAME: _fail_with_retry,
    FAIL_WITH_TUPLE_FRAME: _fail_with_tuple,
}


def decode_result(data: bytes) -> Result:
    """Return the Result, or its later version, in data; raise MalformedRecord for anything else."""
    return _decode(data, _RESULT_FORMS, RESULT_FRAME)


def _result(reader: Reader) -> Result:
    return Result(reader.int32(), reader.array(ID), reader.items(11, _failure))


def _result_with_retry(reader: Reader) -> Result:
    return Result(reader.int32(), failed=reader.items(11, _retry_failure))


def _result_with_tuple(reader: Reader) -> Result:
    acker, stack = reader.int32(), reader.string()
    return Result(acker, failed=reader.items(14, lambda reader: _tuple_failure(reader, stack)))


def _failure(reader: Reader) -> Failure:
    root, cause = reader.id(), reader.int32()
    if cause not in (0, 1):
        raise MalformedRecord(f"unknown cause {cause}")
    return Failure(root, Cause(cause), reader.string(), reader.string())


def _retry_failure(reader: Reader) -> Failure:
    root, retry_after_ms = reader.id(), _retry_after_ms(reader)
    return Failure(root, Cause.FAILED, reader.string(), reader.string(), retry_after_ms)


def _tuple_failure(reader: Reader, stack: str) -> Failure:
    root, retry_after_ms = reader.id(), _retry_after_ms(reader, BACK_OFF)
    task, reason = reader.string(), reader.string()
    return Failure(root, Cause.FAILED, task, reason, retry_after_ms, _failed_tuple(reader, stack))


_RESULT_FORMS = {
    RESULT_FRAME: _result,
    RESULT_WITH_RETRY_FRAME: _result_with_retry,
    RESULT_WITH_TUPLE_FRAME: _result_with_tuple,
}


def _decode(data: bytes, forms: Mapping[bytes, Callable[[Reader], Record]], plain: bytes) -> Record:
    """Return a record that has several forms, by its frame; the error for any other names the plain one."""
    frame = bytes(data[:FRAME_BYTES])
    if frame not in forms:
        frame = plain
    reader = Reader(data, frame, _NAMES)
    record = forms[frame](reader)
    reader.end()
    return record


def decode_absent(data: bytes) -> Absent:
    """Return the Absent in data; raise MalformedRecord for anything else."""
    if data[:FRAME_BYTES] != ABSENT_IN_RUN_FRAME:
        reader = Reader(data, ABSENT_FRAME, _NAMES)
        return Absent(reader.int32(), _decode_spans(reader))
    reader = Reader(data, ABSENT_IN_RUN_FRAME, _NAMES)
    slot, run = reader.int32(), reader.int32()
    if not 1 <= run <= MAX_RUN:
        raise MalformedRecord(f"run {run} is not between 1 and {MAX_RUN}")
    return Absent(slot, _decode_spans(reader), run)


def decode_replay_command(data: bytes) -> ReplayCommand:
    """Return the ReplayCommand in data; raise MalformedRecord for anything else."""
    reader = Reader(data, REPLAY_COMMAND_FRAME, _NAMES)
    record = ReplayCommand(reader.int32(), _decode_spans(reader))
    if not 1 <= len(record.spans) <= MAX_REPLAY_SPANS:
        raise MalformedRecord(f"{len(record.spans)} spans; a command has 1 to {MAX_REPLAY_SPANS}")
    if any(before.next >= after.first for before, after in pairwise(record.spans)):
        raise MalformedRecord("spans of a command that are out of order or touch")
    return record


def _decode_spans(reader: Reader) -> tuple[Span, ...]:
    spans = reader.items(2, _span)
    reader.end()
    if any(not 0 <= first < following for first, following in spans):
        raise MalformedRecord("span that ends before it begins")
    return spans


def _span(reader: Reader) -> Span:
    return Span(reader.long(), reader.long())


def decode_result_record(data: bytes) -> Result | Absent | ReplayCommand:
    """Return the content of a record of a result topic; raise MalformedRecord for anything else."""
    if data[:FRAME_BYTES] in (ABSENT_FRAME, ABSENT_IN_RUN_FRAME):
        return decode_absent(data)
    if data[:FRAME_BYTES] == REPLAY_COMMAND_FRAME:
        return decode_replay_command(data)
    return decode_result(data)
