"""What failed of one slot and is due again, by the first offset of each block.

Invariant: of a block the newest emission that is known counts alone, and a generation fails once. What is due
is emitted again in rounds: all of it once, the lowest offsets first, since they hold the frontier; so what
fails again and again keeps nothing else waiting. Pure: time and jitter are arguments.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from acktree.schemas.ids import ATTEMPT_MASK, generation_of, run_at_least
from acktree.schemas.retry_policy import RetryPolicy


class FailureOutcome(Enum):
    """What a reported failure led to."""

    IGNORED = "ignored"
    RETRY = "retry"
    EXHAUSTED = "exhausted"
    REJECTED = "rejected"


@dataclass(slots=True)
class Attempt:
    """A block that failed: its newest emission, and how many emissions counted as failed.

    ``emissions`` modulo 16 is in the generation; ``attempts_before`` is how many had counted when the newest
    was emitted, ``first_in_run`` the number of the first emission in the run of the newest.
    """

    generation: int
    emissions: int
    attempts: int
    in_flight: bool
    emitted_s: float
    first_failed_s: float | None = None
    attempts_before: int = 0
    first_in_run: int = 0
    in_halves: bool = False
    """A bolt has rejected a record of it: which one, its halves under roots of their own will show."""
    was_alone: bool = False
    """The newest emission had one record alone, whatever was in the block before."""
    backs_off: bool = False
    """It is due when its back-off says so, and no bolt has said when."""


class _Due(NamedTuple):
    """A failed emission of the block at ``first``, and when it is due."""

    at_s: float
    first: int
    generation: int


class Replay(NamedTuple):
    """A block, by its first offset, to emit again under a generation of its own."""

    offset: int
    generation: int
    attempts: int


@dataclass(slots=True)
class Retries:
    """Attempts by first offset, and when which of them is due."""

    attempts: dict[int, Attempt] = field(default_factory=dict)
    _due: list[_Due] = field(default_factory=list)
    _round: list[_Due] = field(default_factory=list)
    """What is left of the present round, the lowest offset last."""
    _backlog: int = 0
    """How much of the round is left that began when back-offs were ended."""
    _replayed: list[tuple[int, int]] = field(default_factory=list)
    _used_up: int = 0

    def fail(
        self,
        generation: int,
        first: int,
        now_s: float,
        policy: RetryPolicy,
        *,
        counts: bool,
        jitter: float,
        after_s: float | None = None,
    ) -> FailureOutcome:
        """Record one failed emission; ignored unless the generation is the block's newest and in flight.

        It is due after ``after_s``, by default after the back-off.
        """
        if (attempt := self._land(generation, first, now_s)) is None:
            return FailureOutcome.IGNORED
        attempt.attempts += counts
        if attempt.attempts >= policy.max_attempts:
            return FailureOutcome.EXHAUSTED
        attempt.backs_off = after_s is None
        if after_s is None:
            after_s = policy.delay_s(max(attempt.attempts, 1), jitter)
        self._wait(now_s + min(max(after_s, 0.0), policy.max_after_s), first, generation)
        return FailureOutcome.RETRY

    def _wait(self, at_s: float, first: int, generation: int) -> None:
        heapq.heappush(self._due, _Due(at_s, first, generation))

    def reject(self, generation: int, first: int, now_s: float, *, is_alone: bool) -> FailureOutcome:
        """Record that a bolt has rejected a record of an emission; ignored as by ``fail``.

        A record that ``is_alone`` in its block, or was so in this emission, is given up. A block of several
        is due at once, in halves, and the emission does not count as an attempt: it says nothing about the
        other records.
        """
        if (attempt := self._land(generation, first, now_s)) is None:
            return FailureOutcome.IGNORED
        if is_alone or attempt.was_alone:
            attempt.attempts += 1
            return FailureOutcome.REJECTED
        attempt.in_halves = True
        self._wait(now_s, first, generation)
        return FailureOutcome.RETRY

    def name_of(self, first: int, left: BitMap64) -> int:
        """Return what a block is known by: where commands took its first record, the first one they left."""
        names = (name for name in range(first, int(left.max()) + 1) if name in self.attempts)
        return next(names, first)

    def has_failed(self, generation: int, first: int) -> bool:
        """Return whether an emission is the newest of its block, and has ended."""
        attempt = self.attempts.get(first)
        return attempt is not None and attempt.generation == generation and not attempt.in_flight

    def put_back(self, first: int, now_s: float, policy: RetryPolicy) -> None:
        """Make a block due at once that was about to be given up, with one more attempt."""
        attempt = self.attempts[first]
        attempt.attempts = max(0, min(attempt.attempts, policy.max_attempts) - 1)
        self._wait(now_s, first, attempt.generation)

    def _land(self, generation: int, first: int, now_s: float) -> Attempt | None:
        """End an emission; return its attempt, None if it is not the block's newest or has ended before."""
        attempt = self.attempts.get(first)
        if attempt is None:
            emitted = generation & ATTEMPT_MASK
            attempt = Attempt(generation, emitted, emitted, True, now_s, attempts_before=emitted)
            self.attempts[first] = attempt
        elif _is_newer(generation, attempt):
            # The driver before has emitted it again, and died before it committed that: the failure that was
            # read again is answered, and what the newer one says of when, or never, counts.
            self._replayed.append((first, attempt.generation))
            if generation >> 4 != attempt.generation >> 4:  # its first emission in that run, at the earliest
                attempt.first_in_run = attempt.emissions + 1
            attempt.emissions += (generation - attempt.generation) & ATTEMPT_MASK or ATTEMPT_MASK + 1
            if attempt.emissions - attempt.first_in_run >= ATTEMPT_MASK:
                self._used_up = generation >> 4
            attempt.generation, attempt.in_flight, attempt.in_halves = generation, True, False
            attempt.attempts_before = attempt.attempts
        if attempt.generation != generation or not attempt.in_flight:
            return None
        attempt.in_flight = False
        if attempt.first_failed_s is None:
            attempt.first_failed_s = now_s
        return attempt

    def emit_due(
        self,
        now_s: float,
        run: int,
        limit: int,
        first_left: Callable[[int], int | None],
        halve: Callable[[int], int | None] = lambda _first: None,
    ) -> list[Replay]:
        """Emit what is due again, at most ``limit`` blocks; both halves of a block at once or none.

        ``first_left`` says under which offset a block is emitted, None where nothing of it is left. ``halve``
        cuts a block in two and returns where the second half begins, None where one record is left.
        """
        taken: list[Replay] = []
        while len(taken) < limit and (due := self._next_due(now_s)) is not None:
            _, first, generation = due
            attempt = self.attempts.get(first)
            if attempt is None or attempt.generation != generation or attempt.in_flight:
                continue
            if attempt.in_halves and len(taken) + 2 > limit:
                self._round.append(due)
                break
            del self.attempts[first]
            if (left := first_left(first)) is None:
                continue
            self._replayed.append((first, generation))
            second = halve(first) if attempt.in_halves else None
            attempt.was_alone = second is None and (attempt.in_halves or attempt.was_alone)
            taken.append(self._emit(attempt, left, now_s, run))
            if second is not None:
                taken.append(self._emit_half_of(attempt, second))
        return taken

    def _next_due(self, now_s: float) -> _Due | None:
        """Return the next of the round; when a round is over, all that is due by then is the next one."""
        if not self._round:
            while self._due and self._due[0].at_s <= now_s:
                self._round.append(heapq.heappop(self._due))
            self._round.sort(key=lambda due: due.first, reverse=True)
        self._backlog -= self._backlog > 0
        return self._round.pop() if self._round else None

    def end_back_offs(self, now_s: float) -> None:
        """Make due at once what backs off, but not what a bolt has delayed; what is due is a new round."""
        waiting = [*self._due, *self._round]
        self._round.clear()
        self._due = [due._replace(at_s=now_s) if self._backs_off(due) else due for due in waiting]
        heapq.heapify(self._due)
        self._backlog = sum(due.at_s <= now_s for due in self._due)

    @property
    def has_backlog(self) -> bool:
        """Return whether some of what was due when back-offs were ended is not emitted yet."""
        return self._backlog > 0

    def _backs_off(self, due: _Due) -> bool:
        attempt = self.attempts.get(due.first)
        return attempt is not None and attempt.generation == due.generation and attempt.backs_off

    def _emit(self, attempt: Attempt, left: int, now_s: float, run: int) -> Replay:
        attempt.emissions += 1
        self._use_run(attempt, run)
        attempt.generation = generation_of(run, attempt.emissions)
        attempt.in_flight, attempt.in_halves = True, False
        attempt.emitted_s = now_s
        attempt.attempts_before = attempt.attempts
        self.attempts[left] = attempt
        return Replay(left, attempt.generation, attempt.attempts)

    def _emit_half_of(self, attempt: Attempt, second: int) -> Replay:
        """Emit the second half of a block whose first half has just been emitted."""
        self.attempts[second] = replace(attempt)
        return Replay(second, attempt.generation, attempt.attempts)

    def _use_run(self, attempt: Attempt, run: int) -> None:
        """Keep count of a block's emissions in one run: more than 16 would share root ids."""
        if attempt.generation and attempt.generation >> 4 != run:
            attempt.first_in_run = attempt.emissions
        in_run = attempt.emissions - attempt.first_in_run
        assert in_run <= ATTEMPT_MASK, "a new run begins before root ids come again"
        if in_run == ATTEMPT_MASK:
            self._used_up = run

    def is_run_used_up(self, run: int) -> bool:
        """Return whether one more replay in a run may have the root id of an earlier emission in it."""
        return self._used_up == run

    def pop_answered(self) -> list[tuple[int, int]]:
        """Return the failed emissions (first offset, generation) that were replayed since the last call."""
        replayed, self._replayed = self._replayed, []
        return replayed

    def fail_overdue(
        self, blocks: Iterable[tuple[int, int]], before_s: float, now_s: float, limit: int
    ) -> int:
        """Make due at once what was emitted before a time and has no result; return how many blocks.

        ``blocks`` [first, end) are overdue blocks that have no attempt here. A missing result says nothing
        about a block, so it does not count as an attempt.
        """
        late = [o for o, each in self.attempts.items() if each.in_flight and each.emitted_s < before_s]
        known = BitMap64(self.attempts)
        late += islice((first for first, end in blocks if not known.range_cardinality(first, end)), limit)
        for first in late[:limit]:
            attempt = self.attempts.setdefault(first, Attempt(0, 0, 0, True, before_s))
            attempt.in_flight = False
            self._wait(now_s, first, attempt.generation)
        return len(late[:limit])

    def restore(self, replay: Replay, now_s: float) -> None:
        """Restore an emission of a written batch as the newest of its block."""
        emissions, attempts = replay.generation & ATTEMPT_MASK, replay.attempts
        self.attempts[replay.offset] = Attempt(
            replay.generation, emissions, attempts, True, now_s, attempts_before=attempts
        )

    def uncounted(self) -> list[Replay]:
        """Return the newest emissions whose generation does not say how many attempts had counted.

        It says so only for the first 15, and where every emission counted.
        """
        return [
            Replay(first, attempt.generation, attempt.attempts_before)
            for first, attempt in self.attempts.items()
            if attempt.attempts_before != attempt.generation & ATTEMPT_MASK
        ]

    def discard(self, is_over: Callable[[int], bool]) -> None:
        """Discard the blocks of which nothing is left."""
        if self.attempts:
            for first in [first for first in self.attempts if is_over(first)]:
                del self.attempts[first]


def _is_newer(generation: int, attempt: Attempt) -> bool:
    """Return whether a generation is a later emission than the one that has failed, of any driver's run.

    Of what was overdue no run is known, so nothing is later.
    """
    run, run_before = generation >> 4, attempt.generation >> 4
    is_later = run_at_least(run, run_before) if run != run_before else generation > attempt.generation
    return bool(attempt.generation) and is_later and not attempt.in_flight


def name_of_rest(left_at: Callable[[int], BitMap64], taken: BitMap64, first: int) -> int | None:
    """Return the first offset for the next root of a block: the same, unless a command now owns it.

    None where nothing of the block is left.
    """
    left = left_at(first)
    if not left:
        return None
    return int(left.min()) if first in taken else first
