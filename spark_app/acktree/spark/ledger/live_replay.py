"""A replay command that a ledger has applied: offsets of one slot that are emitted once more, done or not.

Invariant: only the command's own emissions finish its offsets: those of runs from ``floor`` on, under
roots of its own blocks. Those follow from its offsets: runs of them, cut at multiples of ``block``. Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.schemas.control_records import Span
from acktree.schemas.ids import run_at_least
from acktree.spark.ledger.blocks import block_end, split
from acktree.spark.ledger.done_set import first_absent, runs, set_of
from acktree.spark.ledger.retries import Retries


@dataclass(slots=True)
class LiveReplay:
    """The command at ``position`` of a task's result topic; emitted below ``next_offset``."""

    task: int
    position: int
    floor: int
    next_offset: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)
    emitted_s: float = inf
    block: int = 1
    retries: Retries = field(default_factory=Retries)

    @classmethod
    def of(
        cls, task: int, position: int, floor: int, spans: Iterable[Span], end: int, block: int = 1
    ) -> "LiveReplay":
        """Return the command with the offsets of its spans below ``end``, none of them emitted.

        What was not emitted yet is left out: it will be emitted anyway.
        """
        made = cls(task, position, floor, block=block)
        for first, following in spans:
            made.offsets.add_range(min(first, end), min(following, end))
        return made

    def resume(self, next_offset: int, block: int, now_s: float) -> None:
        """Treat what was emitted before a restart as emitted now."""
        self.next_offset, self.block, self.emitted_s = next_offset, block, now_s

    def owns(self, first: int, run: int) -> bool:
        """Return whether the root of a run with this first offset is an emission of the command."""
        return run_at_least(run, self.floor) and first in self.offsets

    def owned(self, firsts: NDArray[np.int64], run: int) -> NDArray[np.int64]:
        """Return those of the first offsets that ``owns`` says are the command's, each once."""
        if not run_at_least(run, self.floor):
            return firsts[:0]
        return np.asarray((set_of(firsts) & self.offsets).to_array(), np.int64)

    def first_of(self, offset: int) -> int:
        """Return where the block of one of the offsets begins."""
        aligned = offset // self.block * self.block
        between = BitMap64()
        between.add_range(aligned, offset)
        between -= self.offsets
        return int(between.max()) + 1 if between else aligned

    def end_of(self, first: int) -> int:
        """Return where the block of one of the offsets ends, exclusive."""
        if self.block == 1:
            return first + 1
        return block_end(first, first_absent(self.offsets, first), self.block)

    def block_at(self, first: int) -> BitMap64:
        """Return the offsets of the command's block from one of them on."""
        block = BitMap64()
        block.add_range(first, self.end_of(first))
        return block

    def cover(self, firsts: NDArray[np.int64]) -> BitMap64:
        """Return the offsets of the command's blocks that begin at ``firsts``."""
        if self.block == 1:
            return set_of(firsts)
        covered = BitMap64()
        for first in firsts.tolist():
            covered.add_range(first, self.end_of(first))
        return covered

    def split(self, offsets: BitMap64) -> Iterator[tuple[int, int]]:
        """Yield the command's blocks [first, end) that hold some of the offsets."""
        return split(offsets, self.first_of, self.end_of)

    def is_emitted_before(self, time_s: float) -> bool:
        """Return whether the last of it was emitted before a time."""
        return self.next_offset > self.offsets.max() and self.emitted_s < time_s

    def left(self, frontier: int, done: BitMap64) -> BitMap64:
        """Return the offsets that are not done."""
        if not self.offsets or self.offsets.max() < frontier:
            return BitMap64()
        left = self.offsets - done
        left.remove_range(0, frontier)
        return left

    def reopen(self, frontier: int, done: BitMap64) -> tuple[int, BitMap64]:
        """Return the frontier once the command is applied, and what is left of ``done`` above it."""
        lowest = min(frontier, int(self.offsets.min()))
        done = done.copy()
        done.add_range(lowest, frontier)
        return lowest, done - self.offsets

    def unemitted(self, left: BitMap64) -> int:
        """Return how many of ``left`` wait to be emitted."""
        return int(left.range_cardinality(self.next_offset, 1 << 62))

    def emit_within(self, left: BitMap64, limit: int, max_ranges: int, now_s: float) -> list[tuple[int, int]]:
        """Emit some of ``left`` so that at most ``limit`` of it is in flight; return the ranges to read."""
        waiting = self.unemitted(left)
        in_flight = len(left) - waiting
        if not waiting:
            return []
        return self.emit(left, max(0, limit - in_flight), max_ranges, now_s, is_idle=not in_flight)

    def emit(
        self, left: BitMap64, limit: int, max_ranges: int, now_s: float, *, is_idle: bool = False
    ) -> list[tuple[int, int]]:
        """Emit at most ``limit`` offsets of ``left`` and return the ranges [start, end) to read.

        Blocks are emitted whole, where nothing is in flight (``is_idle``) one that is larger, too.
        """
        ranges: list[tuple[int, int]] = []
        for start, end in runs(left, self.next_offset, max_ranges):
            start, whole = max(self.first_of(start), self.next_offset), self.end_of(end - 1)
            end = min(whole, max((start + limit) // self.block * self.block, start))
            if is_idle and not ranges and end == start:
                end = self.end_of(start)
            if start < end:
                ranges.append((start, end))
                limit -= end - start
                self.next_offset, self.emitted_s = end, now_s
            if end < whole:
                break
        return ranges
