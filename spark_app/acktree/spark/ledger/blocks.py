"""Which offsets of one slot were emitted together, under one root: its blocks.

Invariant: the block returned for a first offset and a run holds only records that are in every tree of that
root emitted in this run or a later one. So an ack may finish all of it. Offsets in no block range are blocks
of one record. Pure.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.schemas.ids import run_at_least
from acktree.spark.ledger.done_set import next_done, set_of


def block_end(first: int, end: int, size: int) -> int:
    """Return where the block that begins at ``first`` ends: at the next multiple of size, or at ``end``.

    >>> block_end(100, 1000, 50), block_end(110, 1000, 50), block_end(110, 120, 50)
    (150, 150, 120)
    """
    return min(end, (first // size + 1) * size)


def block_firsts(offsets: NDArray[np.int64], start: int, size: int) -> NDArray[np.int64]:
    """Return the first offset of each offset's block; blocks are cut at ``start`` and multiples of size.

    >>> block_firsts(np.array([7, 9, 10, 19, 20]), 7, 10).tolist()
    [7, 7, 10, 10, 20]
    """
    return np.maximum(start, offsets // size * size)


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Offsets [start, end) emitted in one run as blocks, cut at start, end and multiples of ``size``."""

    start: int
    end: int
    size: int
    run: int


_START = attrgetter("start")


@dataclass(slots=True)
class Blocks:
    """Ranges of blocks of several records, in order, as far as they may still matter."""

    ranges: list[BlockRange] = field(default_factory=list)

    @property
    def largest(self) -> int:
        """Return an upper bound of a block's length."""
        return max((block_range.size for block_range in self.ranges), default=1)

    def emit(self, start: int, end: int, size: int, run: int) -> None:
        """Record that [start, end), behind all that was emitted before, is emitted as blocks of ``size``."""
        if size == 1 or start >= end:
            return
        last = self.ranges[-1] if self.ranges else None
        if last and (last.end, last.size, last.run) == (start, size, run) and start % size == 0:
            self.ranges[-1] = replace(last, end=end)
        else:
            self.ranges.append(BlockRange(start, end, size, run))

    def _at(self, offset: int) -> BlockRange | None:
        index = bisect_right(self.ranges, offset, key=_START) - 1
        found = self.ranges[index] if index >= 0 else None
        return found if found and offset < found.end else None

    def first_of(self, offset: int) -> int:
        """Return where the block of an offset begins."""
        block_range = self._at(offset)
        return (
            max(block_range.start, offset // block_range.size * block_range.size) if block_range else offset
        )

    def end_of(self, first: int) -> int:
        """Return where the block of an offset ends, exclusive."""
        block_range = self._at(first)
        return block_end(first, block_range.end, block_range.size) if block_range else first + 1

    def cut_at(self, offset: int) -> None:
        """Cut the block of an offset in two, in front of it; all blocks around it stay as they are."""
        index = bisect_right(self.ranges, offset, key=_START) - 1
        whole = self.ranges[index]
        first, end = self.first_of(offset), self.end_of(offset)
        bounds = sorted({whole.start, first, offset, end, whole.end})
        parts = [replace(whole, start=start, end=stop) for start, stop in pairwise(bounds)]
        self.ranges[index : index + 1] = [part for part in parts if part.end - part.start > 1]

    def is_older(self, first: int, run: int) -> bool:
        """Return whether the offset was emitted in a newer run, in other blocks."""
        block_range = self._at(first)
        return block_range is not None and not run_at_least(run, block_range.run)

    def cover(self, firsts: NDArray[np.int64], run: int) -> BitMap64:
        """Return the offsets of the blocks that begin at ``firsts``, in an emission of ``run``.

        Of an emission older than the block as it is known only the first record is sure to be in its tree.
        """
        if not self.ranges:
            return set_of(firsts)
        covered = BitMap64()
        for first in firsts.tolist():
            covered.add_range(first, first + 1 if self.is_older(first, run) else self.end_of(first))
        return covered

    def split(self, offsets: BitMap64) -> Iterator[tuple[int, int]]:
        """Yield the blocks [first, end) that hold some of the offsets."""
        return split(offsets, self.first_of, self.end_of)

    def overlap(self, start: int, end: int) -> bool:
        """Return whether some of [start, end) was emitted in blocks of several records that are known."""
        return any(block_range.start < end and start < block_range.end for block_range in self.ranges)

    def discard(self, is_over: Callable[[int, int], bool]) -> None:
        """Discard the ranges [start, end) whose results no longer matter."""
        if self.ranges:
            self.ranges = [s for s in self.ranges if not is_over(s.start, s.end)]


def split(
    offsets: BitMap64, first_of: Callable[[int], int], end_of: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the blocks [first, end) that hold some of the offsets, in order."""
    offset = next_done(offsets, 0)
    while offset is not None:
        end = end_of(offset)
        yield first_of(offset), end
        offset = next_done(offsets, end)
