"""Tracks the first emissions of one slot, and which offsets shared a root in them: its blocks.

Invariant: a block is returned only for the root of its first emission, so an ack of that root may finish all
of it. A record that is emitted again has a root to itself. Pure.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.producers.ledger.partitions.done_set import set_of
from acktree.wire.ids import ATTEMPT_MASK, generation_of

MAX_BLOCK_RANGES = 300
"""Ranges of blocks in flight in a slot; one that has this many emits records alone until some are done."""


def block_firsts(offsets: NDArray[np.int64], start: int, size: int) -> NDArray[np.int64]:
    """Return the first offset of each offset's block; blocks are cut at ``start`` and multiples of size.

    >>> block_firsts(np.array([7, 9, 10, 19, 20]), 7, 10).tolist()
    [7, 7, 10, 10, 20]
    """
    return np.maximum(start, offsets // size * size)


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Offsets [start, end) first emitted in a run as blocks, cut at start, end and multiples of ``size``."""

    start: int
    end: int
    size: int
    run: int

    def block_of(self, offset: int) -> range:
        """Return the block that holds one of the offsets.

        >>> BlockRange(7, 25, 10, 1).block_of(8), BlockRange(7, 25, 10, 1).block_of(21)
        (range(7, 10), range(20, 25))
        """
        first = offset // self.size * self.size
        return range(max(self.start, first), min(self.end, first + self.size))


_START = attrgetter("start")


@dataclass(slots=True)
class Blocks:
    """Ranges of first emissions, in order, as far as they may still matter."""

    ranges: list[BlockRange] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Return whether no more ranges of blocks of several records may be emitted."""
        return len(self.ranges) >= MAX_BLOCK_RANGES

    def emit(self, start: int, end: int, size: int, run: int) -> None:
        """Record that [start, end), behind all that was emitted before, is emitted as blocks of ``size``.

        What lies between records alone is done, so they make one range.
        """
        if start >= end:
            return
        last = self.ranges[-1] if self.ranges else None
        is_next = last is not None and (size == 1 or (last.end == start and start % size == 0))
        if last is not None and is_next and (last.size, last.run) == (size, run):
            self.ranges[-1] = replace(last, end=end)
        else:
            self.ranges.append(BlockRange(start, end, size, run))

    def range_at(self, offset: int) -> BlockRange | None:
        """Return the range that holds an offset."""
        index = bisect_right(self.ranges, offset, key=_START) - 1
        found = self.ranges[index] if index >= 0 else None
        return found if found and offset < found.end else None

    def find(self, generation: int, offset: int) -> range | None:
        """Return the block of a root, None if that is not known as the root of a first emission."""
        found = self.range_at(offset)
        if found is None or generation != generation_of(found.run, 0):
            return None
        block = found.block_of(offset)
        return block if block.start == offset else None

    def cover(self, generations: NDArray[np.int64], offsets: NDArray[np.int64]) -> BitMap64:
        """Return the offsets that were in the trees of some roots, as far as that is known."""
        covered = set_of(offsets)
        if all(block_range.size == 1 for block_range in self.ranges):
            return covered
        may_be_first = generations & ATTEMPT_MASK == 0
        for generation, offset in zip(
            generations[may_be_first].tolist(), offsets[may_be_first].tolist(), strict=True
        ):
            if (block := self.find(generation, offset)) is not None:
                covered.add_range(block.start, block.stop)
        return covered

    def discard(self, is_over: Callable[[int, int], bool]) -> int:
        """Discard the ranges [start, end) whose results no longer matter, and return how many."""
        before = len(self.ranges)
        self.ranges = [each for each in self.ranges if not is_over(each.start, each.end)]
        return before - len(self.ranges)
