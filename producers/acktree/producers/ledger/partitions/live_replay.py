"""A replay command that a ledger has applied: offsets of one slot that are emitted once more, done or not.

Invariant: only the command's own emissions finish its offsets: those of runs from ``floor`` on. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from pyroaring import BitMap64

from acktree.producers.ledger.partitions.done_set import EVERYTHING, runs
from acktree.producers.ledger.partitions.emission_times import EmissionTimes, FirstEmission
from acktree.wire.control_records import Span


@dataclass(slots=True)
class LiveReplay:
    """The command at ``position`` of a task's result topic; emitted below ``next_offset``."""

    task: int
    position: int
    floor: int
    next_offset: int = 0
    offsets: BitMap64 = field(default_factory=BitMap64)
    emitted_s: float = inf
    times: EmissionTimes = field(default_factory=EmissionTimes)

    @classmethod
    def of(cls, task: int, position: int, floor: int, spans: Iterable[Span], end: int) -> "LiveReplay":
        """Return the command with the offsets of its spans below ``end``, none of them emitted.

        What was not emitted yet is left out: it will be emitted anyway.
        """
        made = cls(task, position, floor)
        for first, following in spans:
            made.offsets.add_range(min(first, end), min(following, end))
        return made

    def resume(self, next_offset: int, now_s: float) -> None:
        """Treat what was emitted before a restart as emitted now."""
        self.next_offset, self.emitted_s = next_offset, now_s
        self.times.record(next_offset, now_s)
        self.times.known_from = next_offset

    def first_emission(self, frontier: int) -> FirstEmission | None:
        """Return the command's first emission of the record at the frontier, None if there is none yet."""
        return self.times.first(frontier) if frontier < self.next_offset else None

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
        return int(left.range_cardinality(self.next_offset, EVERYTHING))

    def emit(self, left: BitMap64, limit: int, max_ranges: int, now_s: float) -> list[tuple[int, int]]:
        """Emit some of ``left`` so that at most ``limit`` of it is in flight; return the ranges to read."""
        room = limit - (len(left) - self.unemitted(left))
        ranges: list[tuple[int, int]] = []
        for start, end in runs(left, self.next_offset, max_ranges):
            if room <= 0:
                break
            ranges.append((start, min(end, start + room)))
            room -= end - start
            self.next_offset, self.emitted_s = ranges[-1][1], now_s
        if ranges:
            self.times.record(self.next_offset, now_s)
        return ranges
