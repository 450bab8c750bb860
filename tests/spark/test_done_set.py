"""Done sets: first absent offset, runs, and the metadata text that carries them."""

import random
from base64 import b64encode

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from acktree.spark.ledger.partitions.done_set import (
    MAX_METADATA_CHARS,
    decode_metadata,
    encode_metadata,
    first_absent,
    fits,
    runs,
    set_of,
)
from acktree.spark.ledger.partitions.live_replay import LiveReplay
from acktree.wire.avro import varint
from acktree.wire.commit_metadata import seal
from acktree.wire.control_records import SURE_REPLAY_SPANS, Span, command_end

FRONTIERS = st.sampled_from([0, 1, 63, 2**31, 2**40 - 5_000])
SHAPES = st.one_of(
    st.sets(st.integers(1, 3_000)),
    st.sets(st.integers(1, 200_000), max_size=50),
    st.integers(1, 60_000).map(lambda n: set(range(1, n))),
    st.just(set(range(1, 120_000, 2))),
)


@given(st.sets(st.integers(0, 400)), st.integers(0, 420))
def test_first_absent_is_the_smallest_missing_offset(offsets: set[int], start: int) -> None:
    expected = next(offset for offset in range(start, 1_000) if offset not in offsets)
    assert first_absent(BitMap64(offsets), start) == expected


def test_a_bitmap_block_that_is_missing_is_absent() -> None:
    """The bitmap library's own contains_range says otherwise: records would count as done that are not."""
    done = BitMap64([65_535, 131_072])
    assert first_absent(done, 65_535) == 65_536
    assert runs(done, 0, 9) == [(65_535, 65_536), (131_072, 131_073)]


@given(st.sets(st.integers(0, 200)))
def test_runs_cover_exactly_the_set(offsets: set[int]) -> None:
    covered = {offset for begin, end in runs(BitMap64(offsets), 0, 1_000) for offset in range(begin, end)}
    assert covered == offsets


@example([])
@example([*range(5, 900), 3, 5])
@given(st.lists(st.integers(0, 400)) | st.lists(st.integers(0, 2**40), max_size=20))
def test_a_set_holds_the_offsets_it_is_made_of(offsets: list[int]) -> None:
    assert set_of(np.array(offsets, np.int64)) == BitMap64(offsets)


@example(0, {131_072, 65_535}, 0)
@given(FRONTIERS, SHAPES, st.integers(0, 2**31))
def test_encoded_offsets_were_done_and_every_one_below_the_reach_is_encoded(
    frontier: int, above: set[int], epoch: int
) -> None:
    done = BitMap64([frontier + offset for offset in above])
    text, reach, _ = encode_metadata(epoch, "topic-id", frontier, done)
    assert len(text) <= MAX_METADATA_CHARS
    assert text.isascii()
    back = decode_metadata(text, frontier)
    assert back is not None
    assert (back.epoch, back.incarnation) == (epoch, "topic-id")
    assert back.done <= done
    below = BitMap64(done)
    if reach <= int(done.max() if done else 0):
        below.remove_range(reach, 1 << 62)
    assert below <= back.done


@pytest.mark.parametrize("room", [69, 100, 700])
@pytest.mark.parametrize("seed", range(8))
def test_offsets_encoded_once_stay_encoded_though_there_is_no_room_for_new_ones(room: int, seed: int) -> None:
    choose = random.Random(seed)
    frontier, done, encoded = 0, BitMap64(), BitMap64()
    for _ in range(60):
        begin = frontier + 1 + choose.randrange(30 * room)
        done.add_range(begin, begin + choose.choice([1, 1, 1, 2, 9, 300]))
        if choose.random() < 0.1:
            done |= BitMap64(range(frontier + 1, frontier + choose.randrange(8 * room) + 2, 2))
        if choose.random() < 0.2:
            frontier = first_absent(done, frontier + choose.randrange(room))
            for each in (done, encoded):
                each.remove_range(0, frontier)
        text, reach, now = encode_metadata(choose.randrange(2**40), "x" * 22, frontier, done, encoded, room)
        assert len(text) <= room
        back = decode_metadata(text, frontier)
        assert back is not None
        assert (back.done == now, encoded <= now, now <= done) == (True, True, True)
        assert done.range_cardinality(frontier, reach) == now.range_cardinality(frontier, reach)
        encoded = now


def test_metadata_of_a_release_with_more_room_is_read_and_encoded_again_as_far_as_it_fits() -> None:
    done = BitMap64(range(1, 2_000, 3))
    text, reach, encoded = encode_metadata(1, "x" * 22, 0, done, done, 100)
    back = decode_metadata(text, 0)
    assert back is not None
    assert back.done == encoded
    assert done.range_cardinality(0, reach) == encoded.range_cardinality(0, reach) == len(encoded)


def test_every_other_offset_of_twenty_thousand_fits() -> None:
    done = BitMap64(range(1, 20_000, 2))
    text = encode_metadata(1, "x" * 22, 0, done).text
    back = decode_metadata(text, 0)
    assert back is not None
    assert back.done == done


@given(
    st.lists(st.tuples(st.integers(1, 1 << 14), st.integers(1, 1 << 9)), min_size=1, max_size=900),
    st.integers(1, 1 << 20),
)
@example([(1 << 14, 1 << 14)] * 300, 1)
@example([(1, 1)] * 900, 1)
def test_what_one_replay_command_reopens_of_what_is_done_always_fits(
    spans: list[tuple[int, int]], behind: int
) -> None:
    at, found = 0, []
    for gap, length in spans:
        found.append(Span(at + gap, at + gap + length))
        at = found[-1].next
    command = found[: command_end(found)]
    assert len(command) >= min(len(found), SURE_REPLAY_SPANS)
    live = LiveReplay.of(0, 0, 1, command, at + behind)
    assert fits(*live.reopen(at + behind, BitMap64()))


def test_a_hundred_thousand_done_behind_one_hole_are_a_few_characters() -> None:
    text = encode_metadata(1, "x" * 22, 0, BitMap64(range(1, 100_000))).text
    assert len(text) < 60


def test_one_flipped_character_makes_the_metadata_ignored() -> None:
    text = encode_metadata(7, "topic-id", 10, BitMap64([12, 13, 40])).text
    for place in range(len(text)):
        damaged = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        assert decode_metadata(damaged, 10) is None, damaged


@pytest.mark.parametrize("length", [2**33, 2**62, 2**64 - 1])
def test_runs_that_nobody_has_done_are_not_read(length: int) -> None:
    text = seal("1", 1, "topic-id", "R" + b64encode(varint(1) + varint(length)).decode())
    assert decode_metadata(text, 10) is None


def test_foreign_metadata_is_recognised() -> None:
    for text in (None, "", "1", "1|2|3", "hello", "1|x|y|Rz|00000000", "ü|1|2|R|0", "|" * 4):
        assert decode_metadata(text, 0) is None


def test_an_empty_done_set_is_encoded_too() -> None:
    text = encode_metadata(3, "t", 5, BitMap64()).text
    back = decode_metadata(text, 5)
    assert back is not None
    assert len(back.done) == 0
