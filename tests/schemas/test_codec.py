"""Control records: byte for byte what fastavro writes, and any bytes decoded whole or refused."""

import io
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.schemas import avro, codec
from acktree.schemas.avro import zigzag
from acktree.schemas.control_records import (
    BACK_OFF,
    ENTRY,
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

U64 = st.integers(0, 2**64 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
ENTRIES = st.lists(st.tuples(U64, U64), max_size=300)
TEXT = st.text(max_size=40)
RETRY_MS = st.one_of(st.integers(NEVER, MAX_RETRY_MS), st.sampled_from([NEVER, 0, MAX_RETRY_MS]))


def fixed(value: int) -> bytes:
    return value.to_bytes(8, "little")


def by_fastavro(name: str, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, avro.schema(name), datum)
    frames = {"AckInit": codec.ACK_INIT_FRAME, "Ack": codec.ACK_FRAME, "Result": codec.RESULT_FRAME}
    rest = {
        "Absent": codec.ABSENT_FRAME,
        "AbsentInRun": codec.ABSENT_IN_RUN_FRAME,
        "ReplayCommand": codec.REPLAY_COMMAND_FRAME,
        "FailWithRetry": codec.FAIL_WITH_RETRY_FRAME,
        "ResultWithRetry": codec.RESULT_WITH_RETRY_FRAME,
        "FailWithTuple": codec.FAIL_WITH_TUPLE_FRAME,
        "ResultWithTuple": codec.RESULT_WITH_TUPLE_FRAME,
    }
    return {**frames, **rest}[name] + out.getvalue()


@given(INT, INT, ENTRIES)
def test_an_ack_init_is_plain_avro(task: int, version: int, entries: list[tuple[int, int]]) -> None:
    record = AckInit(task, version, np.array(entries, ENTRY))
    data = codec.encode_ack_init(record)
    pairs = [{"root": fixed(r), "value": fixed(v)} for r, v in entries]
    assert data == by_fastavro("AckInit", {"spout_task": task, "version": version, "inits": pairs})
    back = codec.decode_ack_init(data)
    assert (back.spout_task, back.version, back.inits.tolist()) == (task, version, entries)


@given(TEXT, INT, ENTRIES, st.lists(st.tuples(U64, TEXT), max_size=20), st.lists(U64, max_size=50))
def test_an_ack_is_plain_avro(
    task: str, version: int, acks: list[Any], fails: list[Any], resets: list[int]
) -> None:
    failures = tuple(Fail(*fail) for fail in fails)
    data = codec.encode_ack(Ack(task, version, np.array(acks, ENTRY), failures, np.array(resets, "<u8")))
    assert data == by_fastavro(
        "Ack",
        {
            "task": task,
            "version": version,
            "acks": [{"root": fixed(r), "value": fixed(v)} for r, v in acks],
            "fails": [{"root": fixed(r), "reason": reason} for r, reason in fails],
            "resets": [fixed(r) for r in resets],
        },
    )
    back = codec.decode_ack(data)
    assert (back.task, back.version, back.acks.tolist()) == (task, version, acks)
    assert (back.fails, back.resets.tolist()) == (failures, resets)


@given(INT, st.lists(U64, max_size=100), st.lists(st.tuples(U64, st.booleans(), TEXT, TEXT), max_size=20))
def test_a_result_is_plain_avro(acker: int, acked: list[int], failed: list[Any]) -> None:
    failures = tuple(Failure(r, Cause(int(late)), t, why) for r, late, t, why in failed)
    data = codec.encode_result(Result(acker, np.array(acked, "<u8"), failures))
    assert data == by_fastavro(
        "Result",
        {
            "acker": acker,
            "acked": [fixed(r) for r in acked],
            "failed": [
                {"root": fixed(f.root), "cause": f.cause.name, "task": f.task, "reason": f.reason}
                for f in failures
            ],
        },
    )
    back = codec.decode_result(data)
    assert (back.acker, back.acked.tolist(), back.failed) == (acker, acked, failures)


@given(TEXT, INT, st.lists(st.tuples(U64, TEXT, RETRY_MS), max_size=20))
def test_a_fail_with_retry_is_plain_avro(task: str, version: int, fails: list[Any]) -> None:
    failures = tuple(Fail(*fail) for fail in fails)
    data = codec.encode_fail_with_retry(Ack(task, version, fails=failures))
    rows = [{"root": fixed(f.root), "retry_after_ms": f.retry_after_ms, "reason": f.reason} for f in failures]
    assert data == by_fastavro("FailWithRetry", {"task": task, "version": version, "fails": rows})
    back = codec.decode_ack(data)
    assert (back.task, back.version, back.fails) == (task, version, failures)
    assert (len(back.acks), len(back.resets)) == (0, 0)


@given(INT, st.lists(st.tuples(U64, TEXT, TEXT, RETRY_MS), max_size=20))
def test_a_result_with_retry_is_plain_avro(acker: int, failed: list[Any]) -> None:
    failures = tuple(Failure(root, Cause.FAILED, *rest) for root, *rest in failed)
    data = codec.encode_result_with_retry(Result(acker, failed=failures))
    names = ("root", "retry_after_ms", "task", "reason")
    rows = [{name: getattr(f, name) for name in names} | {"root": fixed(f.root)} for f in failures]
    assert data == by_fastavro("ResultWithRetry", {"acker": acker, "failed": rows})
    back = codec.decode_result_record(data)
    assert isinstance(back, Result)
    assert (back.acker, back.failed, len(back.acked)) == (acker, failures, 0)


PLACES = st.tuples(TEXT, st.integers(0, 2**31 - 1), st.integers(0, 2**62))
ANY_RETRY_MS = st.one_of(st.just(BACK_OFF), RETRY_MS)


def place_of(failed: FailedTuple | None) -> dict[str, Any]:
    assert failed is not None
    return {"topic": failed.topic, "partition": failed.partition, "offset": failed.offset}


@given(TEXT, INT, TEXT, st.lists(st.tuples(U64, TEXT, ANY_RETRY_MS, PLACES), min_size=1, max_size=20))
def test_a_fail_with_a_tuple_is_plain_avro(task: str, version: int, stack: str, fails: list[Any]) -> None:
    failures = tuple(Fail(*rest, FailedTuple(*place, stack)) for *rest, place in fails)
    data = codec.encode_fail_with_tuple(Ack(task, version, fails=failures))
    rows = [
        {"root": fixed(f.root), "retry_after_ms": f.retry_after_ms, "reason": f.reason}
        | place_of(f.failed_tuple)
        for f in failures
    ]
    expected = {"task": task, "version": version, "stack": stack, "fails": rows}
    assert data == by_fastavro("FailWithTuple", expected)
    back = codec.decode_ack(data)
    assert (back.task, back.version, back.fails) == (task, version, failures)
    assert (len(back.acks), len(back.resets)) == (0, 0)


@given(INT, TEXT, st.lists(st.tuples(U64, TEXT, TEXT, ANY_RETRY_MS, PLACES), min_size=1, max_size=20))
def test_a_result_with_a_tuple_is_plain_avro(acker: int, stack: str, failed: list[Any]) -> None:
    failures = tuple(
        Failure(root, Cause.FAILED, *rest, FailedTuple(*place, stack)) for root, *rest, place in failed
    )
    data = codec.encode_result_with_tuple(Result(acker, failed=failures))
    names = ("root", "retry_after_ms", "task", "reason")
    rows = [
        {name: getattr(f, name) for name in names} | {"root": fixed(f.root)} | place_of(f.failed_tuple)
        for f in failures
    ]
    assert data == by_fastavro("ResultWithTuple", {"acker": acker, "stack": stack, "failed": rows})
    back = codec.decode_result_record(data)
    assert isinstance(back, Result)
    assert (back.acker, back.failed, len(back.acked)) == (acker, failures, 0)


@pytest.mark.parametrize("wrong", [{"partition": -1}, {"offset": -1}, {"retry_after_ms": -3}])
def test_a_tuple_that_is_no_record_is_refused(wrong: dict[str, int]) -> None:
    row = {
        "root": fixed(1),
        "retry_after_ms": BACK_OFF,
        "reason": "",
        "topic": "t",
        "partition": 0,
        "offset": 0,
    }
    row |= wrong
    fail = by_fastavro("FailWithTuple", {"task": "", "version": 1, "stack": "", "fails": [row]})
    result = by_fastavro("ResultWithTuple", {"acker": 1, "stack": "", "failed": [row | {"task": ""}]})
    for decode, data in ((codec.decode_ack, fail), (codec.decode_result, result)):
        with pytest.raises(MalformedRecord):
            decode(data)


@pytest.mark.parametrize("retry_after_ms", [BACK_OFF, -3, MAX_RETRY_MS + 1, 2**62])
def test_a_retry_that_is_no_delay_is_refused(retry_after_ms: int) -> None:
    row = {"root": fixed(1), "retry_after_ms": retry_after_ms, "reason": ""}
    fail = by_fastavro("FailWithRetry", {"task": "", "version": 1, "fails": [row]})
    result = by_fastavro("ResultWithRetry", {"acker": 1, "failed": [row | {"task": ""}]})
    for decode, data in ((codec.decode_ack, fail), (codec.decode_result, result)):
        with pytest.raises(MalformedRecord, match="retry_after_ms"):
            decode(data)


def test_what_older_processes_read_does_not_say_when_to_retry() -> None:
    fails = (Fail(5, "no", NEVER, FailedTuple("t", 0, 1, "stack")), Fail(6, "no", 9000))
    without = tuple(Fail(fail.root, fail.reason) for fail in fails)
    assert codec.encode_ack(Ack("b", 1, fails=fails)) == codec.encode_ack(Ack("b", 1, fails=without))
    failed = Failure(5, Cause.FAILED, "b", "no", NEVER)
    plain = failed._replace(retry_after_ms=BACK_OFF)
    assert codec.encode_result(Result(0, failed=[failed])) == codec.encode_result(Result(0, failed=[plain]))


@given(INT, st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), max_size=50))
def test_an_absent_of_an_older_version_is_plain_avro(slot: int, pairs: list[tuple[int, int]]) -> None:
    spans = tuple(Span(first, first + length) for first, length in pairs)
    data = codec.encode_absent(Absent(slot, spans))
    assert data == by_fastavro("Absent", {"slot": slot, "spans": [span._asdict() for span in spans]})
    back = codec.decode_result_record(data)
    assert isinstance(back, Absent)
    assert (back.slot, back.spans, back.run) == (slot, spans, None)


@given(
    INT, st.integers(1, 255), st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), max_size=50)
)
def test_an_absent_is_plain_avro(slot: int, run: int, pairs: list[tuple[int, int]]) -> None:
    spans = tuple(Span(first, first + length) for first, length in pairs)
    data = codec.encode_absent(Absent(slot, spans, run))
    datum = {"slot": slot, "run": run, "spans": [span._asdict() for span in spans]}
    assert data == by_fastavro("AbsentInRun", datum)
    back = codec.decode_result_record(data)
    assert isinstance(back, Absent)
    assert (back.slot, back.spans, back.run) == (slot, spans, run)


def test_an_absent_of_no_run_is_refused() -> None:
    for run in (0, 256):
        with pytest.raises(MalformedRecord, match="run"):
            codec.decode_absent(codec.encode_absent(Absent(0, [Span(5, 6)], run)))


@given(INT, st.lists(st.tuples(st.integers(1, 2**40), st.integers(1, 2**20)), min_size=1, max_size=40))
def test_a_replay_command_is_plain_avro(slot: int, steps: list[tuple[int, int]]) -> None:
    spans, at = [], 0
    for gap, length in steps:
        spans.append(Span(at + gap, at + gap + length))
        at += gap + length
    data = codec.encode_replay_command(ReplayCommand(slot, spans))
    listed = [span._asdict() for span in spans]
    assert data == by_fastavro("ReplayCommand", {"slot": slot, "spans": listed})
    back = codec.decode_result_record(data)
    assert isinstance(back, ReplayCommand)
    assert (back.slot, list(back.spans)) == (slot, spans)


@pytest.mark.parametrize(
    "spans",
    [[], [(5, 5)], [(5, 9), (9, 12)], [(5, 9), (1, 3)], [(2 * n, 2 * n + 1) for n in range(201)]],
)
def test_a_replay_command_that_is_empty_out_of_order_or_too_long_is_refused(spans: list[Any]) -> None:
    with pytest.raises(MalformedRecord, match="span"):
        codec.decode_replay_command(codec.encode_replay_command(ReplayCommand(0, [Span(*s) for s in spans])))


def test_a_span_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="ends before"):
        codec.decode_absent(codec.encode_absent(Absent(0, [Span(5, 5)])))


DECODERS = [
    codec.decode_ack_init,
    codec.decode_ack,
    codec.decode_result,
    codec.decode_absent,
    codec.decode_replay_command,
]
SAMPLE_ACK = codec.encode_ack(
    Ack("count-0", 3, np.array([(1, 2), (3, 4)], ENTRY), (Fail(5, "no"),), np.array([6], "<u8"))
)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(MalformedRecord):
            decode(data)


@given(st.integers(0, len(SAMPLE_ACK) - 1), st.binary(min_size=1, max_size=12))
def test_damaged_records_never_raise_anything_else(place: int, noise: bytes) -> None:
    damaged = SAMPLE_ACK[:place] + noise + SAMPLE_ACK[place + len(noise) :]
    try:
        codec.decode_ack(damaged)
    except MalformedRecord:
        pass


@pytest.mark.parametrize("cut", range(len(SAMPLE_ACK)))
def test_a_truncated_record_is_refused(cut: int) -> None:
    with pytest.raises(MalformedRecord):
        codec.decode_ack(SAMPLE_ACK[:cut])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(MalformedRecord, match="behind the record"):
        codec.decode_ack(SAMPLE_ACK + b"\0")


@pytest.mark.parametrize("count", [2, 2**31, 2**62, -(2**62)])
def test_a_wrong_count_is_refused_before_anything_is_allocated(count: int) -> None:
    head = codec.ACK_INIT_FRAME + zigzag(0) + zigzag(1) + zigzag(count)
    with pytest.raises(MalformedRecord):
        codec.decode_ack_init(head + (zigzag(16) if count < 0 else b"") + bytes(16) + b"\0")


def test_an_array_in_two_blocks_is_refused() -> None:
    block = zigzag(1) + bytes(16)
    with pytest.raises(MalformedRecord, match="more than one block"):
        codec.decode_ack_init(codec.ACK_INIT_FRAME + zigzag(0) + zigzag(1) + block + block + b"\0")


def test_an_avro_block_with_a_byte_size_is_read() -> None:
    body = zigzag(0) + zigzag(1) + zigzag(-1) + zigzag(16) + fixed(7) + fixed(8) + b"\0"
    assert codec.decode_ack_init(codec.ACK_INIT_FRAME + body).inits.tolist() == [(7, 8)]


def test_the_frames_are_the_fingerprints_of_the_schemas() -> None:
    """Test vectors for other languages: they change only with the wire format."""
    assert codec.ACK_INIT_FRAME.hex() == "c301a46b883c449a2826"
    assert len({codec.ACK_INIT_FRAME, codec.ACK_FRAME, codec.RESULT_FRAME}) == 3
