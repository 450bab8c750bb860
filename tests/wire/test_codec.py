"""Control records: byte for byte what fastavro writes, and any bytes decoded whole or refused."""

import io
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.wire import avro, codec
from acktree.wire.avro import zigzag
from acktree.wire.control_records import (
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
    split_by_stack,
)
from acktree.wire.errors import MalformedRecord

U64 = st.integers(0, 2**64 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
ENTRIES = st.lists(st.tuples(U64, U64), max_size=300)
TEXT = st.text(max_size=40)
RETRY_MS = st.integers(BACK_OFF, MAX_RETRY_MS) | st.sampled_from([BACK_OFF, NEVER, 0, MAX_RETRY_MS])


def fixed(value: int) -> bytes:
    return value.to_bytes(8, "little")


def by_fastavro(name: str, datum: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, avro.schema(name), datum)
    frames = {
        "AckInit": codec.ACK_INIT_FRAME,
        "Ack": codec.ACK_FRAME,
        "Result": codec.RESULT_FRAME,
        "Absent": codec.ABSENT_FRAME,
        "ReplayCommand": codec.REPLAY_COMMAND_FRAME,
    }
    return frames[name] + out.getvalue()


@given(INT, INT, ENTRIES)
def test_an_ack_init_is_plain_avro(task: int, version: int, entries: list[tuple[int, int]]) -> None:
    record = AckInit(task, version, np.array(entries, ENTRY))
    data = codec.encode_ack_init(record)
    pairs = [{"root": fixed(r), "value": fixed(v)} for r, v in entries]
    assert data == by_fastavro("AckInit", {"spout_task": task, "version": version, "inits": pairs})
    back = codec.decode_ack_init(data)
    assert (back.spout_task, back.version, back.inits.tolist()) == (task, version, entries)


PLACES = st.tuples(TEXT, st.integers(0, 2**31 - 1), st.integers(0, 2**62))
WHY = st.tuples(U64, TEXT, RETRY_MS, st.none() | PLACES)


def tuple_of(place: Any, stack: str) -> FailedTuple | None:
    return None if place is None else FailedTuple(*place, stack)


def row(fail: Fail | Failure) -> dict[str, Any]:
    """Return a fail as fastavro takes it; of a failure, what it has in common with one."""
    failed = fail.failed_tuple
    place = None
    if failed is not None:
        place = {"topic": failed.topic, "partition": failed.partition, "offset": failed.offset}
    when = {"root": fixed(fail.root), "retry_after_ms": fail.retry_after_ms}
    return when | {"reason": fail.reason, "tuple": place}


def stack_of(fails: Sequence[Fail | Failure]) -> str:
    return next((fail.failed_tuple.stack for fail in fails if fail.failed_tuple is not None), "")


@given(TEXT, INT, TEXT, ENTRIES, st.lists(WHY, max_size=20), st.lists(U64, max_size=50))
def test_an_ack_is_plain_avro(
    task: str, version: int, stack: str, acks: list[Any], fails: list[Any], resets: list[int]
) -> None:
    failures = tuple(Fail(*rest, tuple_of(place, stack)) for *rest, place in fails)
    data = codec.encode_ack(Ack(task, version, np.array(acks, ENTRY), failures, np.array(resets, "<u8")))
    assert data == by_fastavro(
        "Ack",
        {
            "task": task,
            "version": version,
            "stack": stack_of(failures),
            "fails": [row(fail) for fail in failures],
            "acks": [{"root": fixed(r), "value": fixed(v)} for r, v in acks],
            "resets": [fixed(r) for r in resets],
        },
    )
    back = codec.decode_ack(data)
    assert (back.task, back.version, back.acks.tolist()) == (task, version, acks)
    assert (back.fails, back.resets.tolist()) == (failures, resets)


@given(INT, TEXT, st.lists(U64, max_size=100), st.lists(st.tuples(st.booleans(), TEXT, WHY), max_size=20))
def test_a_result_is_plain_avro(acker: int, stack: str, acked: list[int], failed: list[Any]) -> None:
    failures = tuple(
        Failure(root, Cause(int(late)), task, reason, retry, tuple_of(place, stack))
        for late, task, (root, reason, retry, place) in failed
    )
    data = codec.encode_result(Result(acker, np.array(acked, "<u8"), failures))
    assert data == by_fastavro(
        "Result",
        {
            "acker": acker,
            "acked": [fixed(r) for r in acked],
            "stack": stack_of(failures),
            "failed": [row(f) | {"cause": f.cause.name, "task": f.task} for f in failures],
        },
    )
    back = codec.decode_result_record(data)
    assert isinstance(back, Result)
    assert (back.acker, back.acked.tolist(), back.failed) == (acker, acked, failures)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tuple": {"partition": -1}}, {"tuple": {"offset": -1}}),
        *({"retry_after_ms": retry} for retry in (-3, MAX_RETRY_MS + 1, 2**62)),
    ],
    ids=str,
)
def test_a_fail_with_an_invalid_record_or_delay_is_refused(wrong: dict[str, Any]) -> None:
    place = {"topic": "t", "partition": 0, "offset": 0} | wrong.get("tuple", {})
    fail = {"root": fixed(1), "retry_after_ms": BACK_OFF, "reason": ""} | wrong | {"tuple": place}
    ack = {"task": "", "version": 1, "stack": "", "fails": [fail], "acks": [], "resets": []}
    failure = fail | {"cause": "FAILED", "task": ""}
    result = {"acker": 1, "acked": [], "stack": "", "failed": [failure]}
    for decode, name, datum in ((codec.decode_ack, "Ack", ack), (codec.decode_result, "Result", result)):
        with pytest.raises(MalformedRecord, match=r"retry_after_ms|is not a record"):
            decode(by_fastavro(name, datum))


def test_a_fail_with_an_unknown_branch_for_its_tuple_is_refused() -> None:
    head = codec.ACK_FRAME + b"\0\0\0" + zigzag(1) + fixed(5) + zigzag(BACK_OFF) + b"\0"
    assert codec.decode_ack(head + zigzag(0) + b"\0\0\0").fails == (Fail(5, ""),)
    for branch in (-1, 2):
        with pytest.raises(MalformedRecord, match="kind"):
            codec.decode_ack(head + zigzag(branch) + b"\0\0\0\0\0\0")


def test_fails_are_split_so_that_each_record_has_one_stack_trace() -> None:
    places = [FailedTuple("t", 0, offset, stack) for offset, stack in enumerate("aabba")]
    fails = [Fail(root, "", failed_tuple=place) for root, place in enumerate([*places, None])]
    lists = split_by_stack(fails, 2)
    assert [[fail.root for fail in each] for each in lists] == [[0, 1], [4], [2, 3], [5]]
    back = [codec.decode_ack(codec.encode_ack(Ack("b", 1, fails=each))).fails for each in lists]
    assert [list(each) for each in back] == lists


@given(
    INT,
    st.integers(1, 255),
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)), max_size=50),
    st.booleans(),
)
def test_an_absent_is_plain_avro(slot: int, run: int, pairs: list[tuple[int, int]], is_lost: bool) -> None:
    spans = tuple(Span(first, first + length) for first, length in pairs)
    data = codec.encode_absent(Absent(slot, run, spans, is_lost))
    datum = {"slot": slot, "run": run, "spans": [span._asdict() for span in spans], "is_lost": is_lost}
    assert data == by_fastavro("Absent", datum)
    back = codec.decode_result_record(data)
    assert isinstance(back, Absent)
    assert (back.slot, back.spans, back.run, back.is_lost) == (slot, spans, run, is_lost)


def test_an_absent_with_an_invalid_run_is_refused() -> None:
    for run in (0, 256):
        with pytest.raises(MalformedRecord, match="run"):
            codec.decode_absent(codec.encode_absent(Absent(0, run, [Span(5, 6)])))


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
    [[], [(5, 5)], [(5, 9), (9, 12)], [(5, 9), (1, 3)], [(2 * n, 2 * n + 1) for n in range(701)]],
)
def test_a_replay_command_that_is_empty_out_of_order_or_too_long_is_refused(spans: list[Any]) -> None:
    with pytest.raises(MalformedRecord, match="span"):
        codec.decode_replay_command(codec.encode_replay_command(ReplayCommand(0, [Span(*s) for s in spans])))


def test_a_span_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="ends before"):
        codec.decode_absent(codec.encode_absent(Absent(0, 1, [Span(5, 5)])))


DECODERS = [
    codec.decode_ack_init,
    codec.decode_ack,
    codec.decode_result,
    codec.decode_absent,
    codec.decode_replay_command,
]
SAMPLE_ACK = codec.encode_ack(
    Ack(
        "count-0",
        3,
        np.array([(1, 2), (3, 4)], ENTRY),
        (Fail(5, "no"), Fail(6, "", 7, FailedTuple("t", 1, 2, "s"))),
        np.array([6], "<u8"),
    )
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
    with pytest.raises(MalformedRecord, match="after the record"):
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
