"""Sets of offsets, such as those done above a frontier, and their form in the state of a spout. Pure."""

from array import array

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

FEW = 10
"""Offsets that are added one by one in the time of a run of them."""
EVERYTHING = 1 << 62


def set_of(offsets: NDArray[np.int64]) -> BitMap64:
    """Return offsets in any order as a set; those that lie together, as a batch's do, are added together."""
    ordered = np.sort(offsets)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    if len(breaks) >= len(ordered) // FEW:
        return BitMap64(array("Q", ordered.astype(np.uint64).tobytes()))
    made = BitMap64()
    for first, last in zip(ordered[[0, *(breaks + 1)]], ordered[[*breaks, -1]], strict=True):
        made.add_range(int(first), int(last) + 1)
    return made


def first_absent(done: BitMap64, start: int) -> int:
    """Return the smallest offset >= start that is not in the set, in O(log n) range look-ups."""
    reach = 1
    while _holds(done, start, start + reach):
        reach *= 2
    low, high = reach // 2, reach
    while low < high:
        middle = (low + high) // 2
        if _holds(done, start, start + middle + 1):
            low = middle + 1
        else:
            high = middle
    return start + low


def _holds(done: BitMap64, start: int, end: int) -> bool:
    """Return whether every offset of [start, end) is in the set.

    By counting: ``contains_range`` of 64-bit bitmaps overlooks a block of 65,536 that is not there at all.
    """
    return bool(done.range_cardinality(start, end) == end - start)


def next_done(done: BitMap64, start: int) -> int | None:
    """Return the smallest offset >= start that is in the set, None if there is none."""
    return done.next_set_bit(start) if done and done.max() >= start else None


def runs(done: BitMap64, start: int, limit: int) -> list[tuple[int, int]]:
    """Return the first ``limit`` runs [begin, end) of the set at or above start."""
    found: list[tuple[int, int]] = []
    while len(found) < limit and (begin := next_done(done, start)) is not None:
        start = first_absent(done, begin)
        found.append((begin, start))
    return found


def serialized(offsets: BitMap64) -> bytes:
    """Return a set in the portable Roaring format, which ``BitMap64.deserialize`` reads."""
    compact = offsets.copy()
    compact.run_optimize()
    return bytes(compact.serialize())
