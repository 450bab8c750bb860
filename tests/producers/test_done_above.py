"""The metadata of a committed frontier: it lists only offsets that are done, and always fits."""

import zlib
from base64 import b64encode
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from acktree.producers.collecting.arithmetic.done_above import (
    OWNER_BYTES,
    WINDOW_OFFSETS,
    DoneAbove,
    decode_done,
    decode_owner,
    encode_done,
)
from acktree.wire.commit_metadata import seal

METADATA_CHARACTERS = 4_095
OWNER = b"sixteen bytes, 1"
FRONTIERS = st.integers(0, 1 << 40)


@given(
    frontier=FRONTIERS,
    span=st.integers(0, WINDOW_OFFSETS),
    seed=st.integers(),
    owner=st.just(b"") | st.binary(min_size=OWNER_BYTES, max_size=OWNER_BYTES),
)
def test_within_the_window_exactly_the_done_offsets_are_encoded_and_they_fit(frontier, span, seed, owner):
    draw = Random(seed)  # one drawn by hypothesis gives no sample of more than 8,192
    waiting = sorted(frontier + distance for distance in draw.sample(range(span), draw.randint(0, span)))
    text = encode_done(frontier, frontier + span, waiting, owner)
    done = decode_done(text, frontier)
    assert decode_owner(text, frontier) == owner
    assert len(text) <= METADATA_CHARACTERS
    assert text.isascii()
    claimed = set(range(frontier, done.end)) - done.open if done else set()
    assert claimed == set(range(frontier, frontier + span)) - set(waiting)


@given(frontier=FRONTIERS, waiting=st.sets(st.integers(0, 100_000), min_size=1))
def test_offsets_above_the_window_are_not_encoded(frontier, waiting):
    offsets = sorted(frontier + distance for distance in waiting)
    done = decode_done(encode_done(frontier, frontier + 100_001, offsets), frontier)
    assert done is not None
    for offset in range(frontier, frontier + 100_010, 7):
        claimed = offset < frontier + WINDOW_OFFSETS and offset not in offsets
        assert done.holds(offset) == claimed
    assert not any(map(done.holds, offsets))


def test_the_text_is_empty_if_nothing_above_the_frontier_is_done():
    assert encode_done(5, 8, [5, 6, 7]) == ""
    assert encode_done(5, 5, []) == ""
    assert decode_done(encode_done(5, 8, [5, 6, 7], OWNER), 5) is None


@given(at=st.integers(0, 1000), character=st.characters(codec="ascii"))
def test_text_with_one_changed_character_is_ignored(at, character):
    text = encode_done(10, 500, [10, 20, 30], OWNER)
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        assert decode_done(changed, 10) is None
        assert decode_owner(changed, 10) == b""


@pytest.mark.parametrize("text", ["", "x", "1|2|3", "acktree-bolt-1|4|x|00000000", "acktree-bolt-1||"])
def test_foreign_text_is_ignored(text):
    assert decode_done(text, 0) is None
    assert decode_owner(text, 0) == b""


@pytest.mark.parametrize(
    ("span", "packed"),
    [
        (9, "AAAA"),
        (9, "x"),
        ("nine", b64encode(zlib.compress(b"ab")).decode()),
        (-1, b64encode(zlib.compress(b"")).decode()),
        (10**13, b64encode(zlib.compress(b"ab")).decode()),
        (17, b64encode(zlib.compress(b"ab")).decode()),
    ],
)
def test_foreign_text_with_a_valid_checksum_lists_nothing_and_names_no_owner(span, packed):
    text = seal("acktree-bolt-1", span, packed, OWNER.hex(), about="10|")
    assert decode_done(text, 10) is None
    assert decode_owner(text, 10) == b""


def test_text_committed_with_another_offset_is_ignored():
    assert decode_done(encode_done(10, 500, [10]), 11) is None


def test_text_with_a_damaged_owner_lists_nothing_and_names_no_owner():
    _, span, packed, *_ = encode_done(10, 20, [10, 13]).split("|")
    for owner in ("x", OWNER.hex()[1:]):
        text = seal("acktree-bolt-1", span, packed, owner, about="10|")
        assert (decode_done(text, 10), decode_owner(text, 10)) == (None, b"")


def test_the_format_of_a_commit_does_not_change():
    named = "acktree-bolt-1|10|eJybwAAAASIAkQ==|7369787465656e2062797465732c2031|a1949a66"
    assert encode_done(10, 20, [10, 13], OWNER) == named
    assert decode_done(named, 10) == DoneAbove(10, 20, frozenset((10, 13)))
    assert encode_done(10, 20, [10, 13]) == "acktree-bolt-1|10|eJybwAAAASIAkQ==||ecae6063"
