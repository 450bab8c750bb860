"""The ledger of one source partition: which offsets are emitted, done, failed and due again.

Invariant: frontier <= the smallest offset not done, and a bit in ``done`` is an offset that is done. Double
and late verdicts are no-ops. Pure: time, jitter and verdicts are arguments; nothing here knows Kafka.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.schemas.ids import generation_of, run_at_least
from acktree.spark.done_set import first_absent, next_done, runs

MAX_BACKOFF_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off and the end of patience of one spout; seconds."""

    initial_s: float
    most_s: float
    max_attempts: int

    def delay_s(self, attempts: int, jitter: float) -> float:
        """Return the wait after the given number of failed attempts; jitter in [0, 1) adds up to a tenth."""
        doubled = self.initial_s * 2.0 ** min(attempts - 1, MAX_BACKOFF_DOUBLINGS)
        return min(self.most_s, doubled) * (1 + jitter / 10)


class Verdict(Enum):
    """What a reported failure led to."""

    IGNORED = "ignored"
    RETRY = "retry"
    EXHAUSTED = "exhausted"


@dataclass(slots=True)
class Attempt:
    """An offset that failed: its newest emission, and how many emissions counted as failed."""

    generation: int
    emissions: int
    attempts: int
    in_flight: bool
    emitted_s: float


class Replay(NamedTuple):
    """An offset to emit again, under a generation of its own."""

    offset: int
    generation: int
    attempts: int


@dataclass(slots=True)
class PartitionLedger:
    """State of one slot. ``next_offset`` is the next offset to emit for the first time, exclusive end."""

    frontier: int
    next_offset: int
    floor: int
    policy: RetryPolicy
    done: BitMap64 = field(default_factory=BitMap64)
    retries: dict[int, Attempt] = field(default_factory=dict)
    _due: list[tuple[float, int, int]] = field(default_factory=list)
    _emitted: deque[tuple[int, float]] = field(default_factory=deque)
    _overdue_end: int = 0

    @property
    def pending(self) -> int:
        """Return how many offsets are emitted and not done."""
        emitted = self.next_offset - self.frontier
        return emitted - self.done.range_cardinality(self.frontier, self.next_offset)

    def emit(self, end: int, most_ranges: int, now_s: float) -> list[tuple[int, int]]:
        """Emit up to ``end`` and return the ranges [start, end) to read, those done already left out."""
        ranges: list[tuple[int, int]] = []
        before = self.next_offset
        while self.next_offset < end and len(ranges) < most_ranges:
            start = first_absent(self.done, self.next_offset)
            following = next_done(self.done, start)
            stop = min(end, following if following is not None else end)
            if start < stop:
                ranges.append((start, stop))
            self.next_offset = max(self.next_offset, min(max(start, stop), end))
        if self.next_offset > before:
            self._emitted.append((self.next_offset, now_s))
        self._advance()
        return ranges

    def acked(self, generations: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        """Note offsets as done, whatever emission of them was acked; return how many are newly done.

        Offsets below the frontier, never emitted, or of a run below the floor are ignored.
        """
        wanted = (offsets >= self.frontier) & (offsets < self.next_offset)
        runs_of = generations >> 4
        for run in np.unique(runs_of[wanted]).tolist():
            if not run_at_least(run, self.floor):
                wanted &= runs_of != run
        return self._finish(BitMap64(offsets[wanted].astype(np.uint64)))

    def finish(self, start: int, end: int) -> int:
        """Note every emitted offset of [start, end) as done; return how many are newly done."""
        span = BitMap64()
        span.add_range(max(start, self.frontier), max(min(end, self.next_offset), self.frontier))
        return self._finish(span)

    def _finish(self, offsets: BitMap64) -> int:
        before = len(self.done)
        self.done |= offsets
        newly = len(self.done) - before
        if self.retries:
            for offset in [offset for offset in self.retries if offset in offsets]:
                del self.retries[offset]
        self._advance()
        return newly

    def _advance(self) -> None:
        frontier = min(first_absent(self.done, self.frontier), self.next_offset)
        if frontier > self.frontier:
            self.done.remove_range(self.frontier, frontier)
            self.frontier = frontier

    def resume(self, now_s: float) -> None:
        """Count what is in flight at a restart as emitted at that time."""
        self._emitted.append((self.next_offset, now_s))

    def is_open(self, offset: int) -> bool:
        """Tell whether an offset is emitted and not done."""
        return self.frontier <= offset < self.next_offset and offset not in self.done

    def failed(
        self, generation: int, offset: int, now_s: float, *, counts: bool, jitter: float = 0.0
    ) -> Verdict:
        """Note one failed emission; ``counts`` is False where it says nothing about the record itself.

        Ignored unless the offset is open and the generation its newest. A generation is counted once.
        """
        if not self.is_open(offset) or not run_at_least(generation >> 4, self.floor):
            return Verdict.IGNORED
        attempt = self.retries.get(offset)
        if attempt is None:
            emitted = generation & 0xF
            attempt = self.retries[offset] = Attempt(generation, emitted, emitted, True, now_s)
        if attempt.generation != generation or not attempt.in_flight:
            return Verdict.IGNORED
        attempt.in_flight = False
        attempt.attempts += counts
        if attempt.attempts >= self.policy.max_attempts:
            return Verdict.EXHAUSTED
        due_s = now_s + self.policy.delay_s(max(attempt.attempts, 1), jitter)
        heapq.heappush(self._due, (due_s, offset, generation))
        return Verdict.RETRY

    def take_due(self, now_s: float, run: int, most: int) -> list[Replay]:
        """Emit what is due again, at most ``most`` offsets; what was done or rewound meanwhile falls away."""
        taken: list[Replay] = []
        while self._due and self._due[0][0] <= now_s and len(taken) < most:
            _, offset, generation = heapq.heappop(self._due)
            attempt = self.retries.get(offset)
            if attempt is None or attempt.generation != generation or attempt.in_flight:
                continue
            attempt.emissions += 1
            attempt.generation = generation_of(run, attempt.emissions)
            attempt.in_flight = True
            attempt.emitted_s = now_s
            taken.append(Replay(offset, attempt.generation, attempt.attempts))
        return taken

    def next_due_s(self) -> float | None:
        """Return when the next retry is due, None if none waits."""
        return self._due[0][0] if self._due else None

    def fail_overdue(self, before_s: float, now_s: float, most: int) -> int:
        """Fail what was emitted before a time and never got a verdict, at most ``most`` offsets.

        A safety net: the control records of such an emission have expired, no acker can judge it any more.
        It says nothing about the record, so it is no attempt. Returns how many offsets are due again.
        """
        while self._emitted and self._emitted[0][1] < before_s:
            self._overdue_end = self._emitted.popleft()[0]
        late = [
            o for o, attempt in self.retries.items() if attempt.in_flight and attempt.emitted_s < before_s
        ]
        if self._overdue_end > self.frontier:
            still_open = BitMap64()
            still_open.add_range(self.frontier, self._overdue_end)
            still_open -= self.done
            still_open -= BitMap64(self.retries)
            late += islice(still_open, most)
        for offset in late[:most]:
            attempt = self.retries.setdefault(offset, Attempt(0, 0, 0, True, before_s))
            attempt.in_flight = False
            heapq.heappush(self._due, (now_s, offset, attempt.generation))
        return len(late[:most])

    def restore_replay(self, replay: Replay, now_s: float) -> None:
        """Take an emission known from a written batch as the newest of its offset."""
        if self.is_open(replay.offset):
            emissions = max(replay.attempts, 1) // 16 * 16 + (replay.generation & 0xF)
            self.retries[replay.offset] = Attempt(replay.generation, emissions, replay.attempts, True, now_s)

    def rewind(self, offset: int, run: int) -> None:
        """Obey an operator's reset: backwards takes ``run`` as the floor and emits anew, forward skips."""
        if offset >= self.frontier:
            self.next_offset = max(self.next_offset, offset)
            self.finish(self.frontier, offset)
            return
        self.frontier = self.next_offset = offset
        self.floor = run
        self.done.clear()
        self.retries.clear()
        self._due.clear()
        self._emitted.clear()
        self._overdue_end = 0

    def held_ranges(self, most: int) -> list[tuple[int, int]]:
        """Return the first runs of offsets done above the frontier, for people to look at."""
        return runs(self.done, self.frontier, most)
