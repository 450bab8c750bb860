"""Sets of offsets: first absent offset, runs, and the bytes that carry them."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap64

from acktree.producers.ledger.partitions.done_set import first_absent, runs, serialized, set_of


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


@given(st.sets(st.integers(0, 2**40), max_size=300))
def test_a_stored_set_is_read_back(offsets: set[int]) -> None:
    assert BitMap64.deserialize(serialized(BitMap64(offsets))) == BitMap64(offsets)


def test_a_hundred_thousand_done_behind_one_hole_are_a_few_bytes() -> None:
    assert len(serialized(BitMap64(range(1, 100_000)))) < 60
