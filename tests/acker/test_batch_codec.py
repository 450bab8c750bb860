"""The compiled decoder against the reference decoder: the same records, the same refusals."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acker.tester import entries
from acktree.wire.avro import zigzag
from acktree.wire.batch_codec import MALFORMED, WHOLE, decode_ack_batch, decode_init_batch
from acktree.wire.codec import (
    ACK_FRAME,
    ACK_INIT_FRAME,
    decode_ack,
    decode_ack_init,
    encode_ack,
    encode_ack_init,
)
from acktree.wire.control_records import (
    BACK_OFF,
    ID,
    MAX_RETRY_MS,
    NEVER,
    Ack,
    AckInit,
    Fail,
    FailedTuple,
)
from acktree.wire.errors import MalformedRecord
from hypothesis_profiles import examples

U64, I32 = st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1)
PAIRS = st.lists(st.tuples(U64, U64), max_size=5)
INITS = st.builds(lambda task, version, pairs: AckInit(task, version, entries(pairs)), I32, I32, PAIRS)
PLACES = st.tuples(st.text(max_size=5), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
FAILS = st.tuples(
    U64,
    st.text(max_size=5),
    st.sampled_from([BACK_OFF, NEVER, 0, 7, MAX_RETRY_MS]) | st.integers(0, 10**6),
    st.none() | PLACES,
)
ACKS = st.builds(
    lambda task, version, stack, fails, acks, resets: Ack(
        task,
        version,
        entries(acks),
        [Fail(*rest, place and FailedTuple(*place, stack)) for *rest, place in fails],
        np.array(resets, ID),
    ),
    st.text(max_size=5),
    I32,
    st.text(max_size=5),
    st.lists(FAILS, max_size=3),
    PAIRS,
    st.lists(U64, max_size=3),
)
VARINTS = [b"\x00", b"\x01", b"\x02", b"\x03", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02"]
VARINTS += [
    b"\xff" * 10,
    b"\xfe\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    zigzag(-1),
    zigzag(-(2**63)),
    zigzag(32),
]
NOISE = st.lists(
    st.one_of(st.sampled_from([*VARINTS, b"", b"\xc3", b"a" * 16]), st.binary(max_size=20)), max_size=8
)


def damaged(encoded, seed):
    """Bytes of a record with a few of them changed, cut off, or added."""
    return st.builds(
        lambda data, at, byte, kind: [
            data[: at % (len(data) + 1)],
            data[: at % len(data)] + bytes([byte]) + data[at % len(data) + 1 :],
            data[: at % len(data)] + bytes([byte]) + data[at % len(data) :],
            data + bytes([byte]),
        ][kind],
        encoded,
        st.integers(0, 500),
        st.integers(0, 255),
        st.integers(0, seed),
    )


def any_bytes(encoded, frame):
    return st.one_of(
        encoded, damaged(encoded, 3), NOISE.map(lambda parts: frame + b"".join(parts)), st.binary()
    )


def reference(decode, data):
    try:
        return decode(data)
    except MalformedRecord:
        return None


@given(st.lists(any_bytes(INITS.map(encode_ack_init), ACK_INIT_FRAME), max_size=6))
@example([ACK_INIT_FRAME + b"\x00\x00\x02" + bytes(16) + b"\x80\x00"])
@example([ACK_INIT_FRAME + b"\x00\x00\x01" + zigzag(17) + bytes(16) + b"\x00"])
@example([ACK_INIT_FRAME + b"\x00\x00" + zigzag(-(2**63)) + b"\x00"])
@examples(1000)
def test_inits_are_decoded_or_refused_as_the_reference_does(values):
    batch = decode_init_batch(values)
    for number, data in enumerate(values):
        expected = reference(decode_ack_init, data)
        assert (batch.faults[number] == WHOLE) == (expected is not None)
        rows = batch.entries[batch.starts[number] : batch.starts[number + 1]]
        if expected is None:
            assert len(rows) == 0
            continue
        assert (batch.tasks[number], batch.versions[number]) == (expected.spout_task, expected.version)
        assert [tuple(row) for row in rows.tolist()] == expected.inits.tolist()


def one_fail(stack, fail):
    """Bytes of an Ack with a stack trace and one fail of root 0."""
    return ACK_FRAME + b"\0\0" + stack + b"\x02" + bytes(8) + fail + b"\0\0\0"


@given(st.lists(any_bytes(ACKS.map(encode_ack), ACK_FRAME), max_size=6))
@example([one_fail(b"\0", zigzag(-2) + b"\0\0"), one_fail(b"\0", zigzag(-3) + b"\0\0")])
@example(
    [one_fail(b"\0", zigzag(MAX_RETRY_MS) + b"\0\0"), one_fail(b"\0", zigzag(MAX_RETRY_MS + 1) + b"\0\0")]
)
@example([one_fail(b"\0", b"\0\0" + zigzag(branch) + b"\0\0\0" * (branch != 0)) for branch in (0, 1, -1, 2)])
@example([one_fail(b"\0", b"\0\x02\xff\0"), one_fail(b"\x02\xff", b"\0\0\0"), one_fail(b"\x02a", b"\0\0\0")])
@example([one_fail(b"\0", b"\0\0\x02\x02\xff\0\0"), one_fail(b"\0", b"\0\0\x02\x02a\0\0")])
@example([one_fail(b"\0", b"\0\0\x02\0\x01\0"), one_fail(b"\0", b"\0\0\x02\0\0\x01")])
@example([ACK_FRAME + b"\x02\xff\0\0\0\0\0"])
@example([ACK_FRAME + b"\0\0\0\0\0\x80\0", ACK_FRAME + b"\0\0\0\0\0\x02" + bytes(8) + b"\x80\x80\0"])
@examples(1500)
def test_acks_are_decoded_or_refused_as_the_reference_does(values):
    batch = decode_ack_batch(values)
    for number, data in enumerate(values):
        expected = reference(decode_ack, data)
        assert (batch.faults[number] == WHOLE) == (expected is not None)
        if expected is None:
            assert batch.faults[number] == MALFORMED
            continue
        acks = batch.acks[batch.ack_starts[number] : batch.ack_starts[number + 1]]
        resets = batch.resets[batch.reset_starts[number] : batch.reset_starts[number + 1]]
        fails = range(batch.fail_starts[number], batch.fail_starts[number + 1])
        assert batch.versions[number] == expected.version
        assert [tuple(row) for row in acks.tolist()] == expected.acks.tolist()
        assert resets.tolist() == expected.resets.tolist()
        found = [
            Fail(
                int(batch.fail_roots[row]),
                batch.reason(row),
                int(batch.retries[row]),
                batch.failed_tuple(row),
            )
            for row in fails
        ]
        assert found == list(expected.fails)
        assert {batch.task(row) for row in fails} <= {expected.task}


@pytest.mark.parametrize("decode", [decode_init_batch, decode_ack_batch])
def test_a_batch_may_be_empty(decode):
    assert len(decode([]).faults) == 0
    assert decode([b""]).faults.tolist() == [MALFORMED]
