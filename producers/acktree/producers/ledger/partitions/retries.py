"""Tracks the failed records of one slot, and when each is due again.

Invariant: every record here is emitted and not done; only the newest known emission of a record counts, and a
generation fails once. Due records are emitted again in rounds: each once, lowest offset first, since the
lowest hold the frontier; so a record that fails repeatedly keeps no other waiting. Pure: time and jitter are
arguments.
"""

import heapq
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.wire.ids import ATTEMPT_MASK, generation_of

REPLAY_GAP = 1_000
"""Records this close together are read in one go; to a more distant one the consumer seeks."""
SEEK_COST = 25
"""How many records of a limit one counts for to which the consumer seeks: a seek takes some 10 ms."""


class FailureOutcome(Enum):
    """The outcome of a reported failure."""

    IGNORED = "ignored"
    RETRY = "retry"
    EXHAUSTED = "exhausted"
    REJECTED = "rejected"


@dataclass(slots=True)
class Attempt:
    """A record that failed: its newest emission, and how many emissions counted as failed.

    ``emissions`` modulo 16 is in the generation; ``first_in_run`` is the number of the first emission in the
    run of the newest.
    """

    generation: int
    emissions: int
    attempts: int
    in_flight: bool
    emitted_s: float
    first_failed_s: float | None = None
    first_in_run: int = 0
    delayed_to_s: float | None = None
    """Since a bolt has said so, it is not due earlier; None if its back-off says when."""
    due_s: float | None = None
    """When it is emitted again, while it waits for that."""
    reason: str = ""
    """Of the last failure if a task has failed it, "" for a timeout."""


class FailedRecord(NamedTuple):
    """A record that a task has failed: the reason, and the time until it is emitted again, None if in flight.

    ``idle_s`` is 0 while it waits for its time; then it counts, until the next failure.
    """

    reason: str
    next_s: float | None
    idle_s: float


class _Due(NamedTuple):
    """A failed emission of a record, and when it is due."""

    at_s: float
    offset: int
    generation: int


class Replay(NamedTuple):
    """A record to emit again under its own generation."""

    offset: int
    generation: int
    attempts: int


@dataclass(slots=True)
class Retries:
    """Tracks attempts by offset, and when each is due."""

    attempts: dict[int, Attempt] = field(default_factory=dict)
    _due: list[_Due] = field(default_factory=list)
    _round: list[_Due] = field(default_factory=list)
    """What is left of the present round, the lowest offset last."""
    _backlog: int = 0
    """How much of the round is left that began when back-offs were ended."""
    _used_up: int = 0
    changes: int = 0
    """Grows with every change."""

    def fail(
        self,
        generation: int,
        offset: int,
        now_s: float,
        policy: RetryPolicy,
        *,
        counts: bool,
        jitter: float,
        after_s: float | None = None,
        is_rejected: bool = False,
        reason: str = "",
    ) -> FailureOutcome:
        """Record one failed emission; ignored unless the generation is the record's newest and in flight.

        It is due after ``after_s``, by default after the back-off; never if a bolt has rejected the record.
        ``reason`` is that of a task, "" for a timeout.
        """
        if (attempt := self._land(generation, offset, now_s)) is None:
            return FailureOutcome.IGNORED
        self.changes += 1
        attempt.attempts += counts
        attempt.reason, attempt.due_s = reason, None
        attempt.delayed_to_s = None if after_s is None else now_s + policy.limited_s(after_s)
        if is_rejected:
            return FailureOutcome.REJECTED
        if attempt.attempts >= policy.max_attempts:
            return FailureOutcome.EXHAUSTED
        failures = attempt.attempts if counts else attempt.emissions + 1
        back_off_s = policy.limited_s(policy.delay_s(failures, jitter))
        due_s = now_s + back_off_s if attempt.delayed_to_s is None else attempt.delayed_to_s
        self._wait(due_s, offset, generation)
        return FailureOutcome.RETRY

    def failed_record(self, offset: int, now_s: float) -> FailedRecord | None:
        """Return how far the retries of a record are; None unless its last failure is a task's."""
        attempt = self.attempts.get(offset)
        if attempt is None or not attempt.reason:
            return None
        since_s = attempt.emitted_s if attempt.in_flight else attempt.due_s or now_s
        waits = not attempt.in_flight and attempt.due_s is not None
        next_s = max(0.0, since_s - now_s) if waits else None
        return FailedRecord(attempt.reason, next_s, max(0.0, now_s - since_s))

    def _wait(self, at_s: float, offset: int, generation: int) -> None:
        self.changes += 1
        self.attempts[offset].due_s = at_s
        heapq.heappush(self._due, _Due(at_s, offset, generation))

    def failed_attempt(self, generation: int, offset: int) -> Attempt | None:
        """Return the attempt of an emission that is the newest of its record, and has ended."""
        attempt = self._newest(generation, offset)
        return None if attempt is None or attempt.in_flight else attempt

    def is_in_flight(self, generation: int, offset: int) -> bool:
        """Return whether an emission is a replay, the newest of its record, and has not ended."""
        attempt = self._newest(generation, offset)
        return attempt is not None and attempt.in_flight

    def _newest(self, generation: int, offset: int) -> Attempt | None:
        """Return the attempt of an emission that is the newest of its record."""
        attempt = self.attempts.get(offset)
        return None if attempt is None or attempt.generation != generation else attempt

    def put_back(self, generation: int, offset: int, now_s: float, policy: RetryPolicy) -> None:
        """Make a record due that was about to be given up, now or after its delay: one more attempt."""
        if (attempt := self.failed_attempt(generation, offset)) is not None:
            attempt.attempts = policy.with_one_left(attempt.attempts)
            self._wait(max(now_s, attempt.delayed_to_s or now_s), offset, generation)

    def _land(self, generation: int, offset: int, now_s: float) -> Attempt | None:
        """End an emission; return its attempt, None if it is not the record's newest or has ended before."""
        attempt = self.attempts.get(offset)
        if attempt is None:
            emitted = generation & ATTEMPT_MASK
            attempt = self.attempts[offset] = Attempt(generation, emitted, emitted, True, now_s)
        if attempt.generation != generation or not attempt.in_flight:
            return None
        attempt.in_flight = False
        if attempt.first_failed_s is None:
            attempt.first_failed_s = now_s
        return attempt

    def emit_due(self, now_s: float, run: int, limit: int) -> list[Replay]:
        """Emit what is due again, at most ``limit`` records, and fewer if they lie far apart."""
        taken: list[Replay] = []
        left = limit
        while left > 0 and (due := self._next_due(now_s)) is not None:
            if (attempt := self.failed_attempt(due.generation, due.offset)) is not None:
                is_far = bool(taken) and abs(due.offset - taken[-1].offset) > REPLAY_GAP
                left -= SEEK_COST if is_far else 1
                taken.append(self._emit(attempt, due.offset, now_s, run))
        return taken

    def _next_due(self, now_s: float) -> _Due | None:
        """Return the next of the round; when a round is over, all that is due by then is the next one."""
        if not self._round:
            while self._due and self._due[0].at_s <= now_s:
                self._round.append(heapq.heappop(self._due))
            self._round.sort(key=lambda due: due.offset, reverse=True)
        self._backlog -= self._backlog > 0
        return self._round.pop() if self._round else None

    def end_back_offs(self, now_s: float) -> None:
        """Make due now what backs off, but not what a bolt has delayed; what is due is a new round."""
        waiting = [*self._due, *self._round]
        self._round.clear()
        self._due = [due._replace(at_s=now_s) if self._backs_off(due) else due for due in waiting]
        heapq.heapify(self._due)
        for due in filter(self._backs_off, self._due):
            self.attempts[due.offset].due_s = now_s
        self._backlog = sum(due.at_s <= now_s for due in self._due)

    @property
    def has_backlog(self) -> bool:
        """Return whether some of what was due when back-offs were ended is not emitted yet."""
        return self._backlog > 0

    def _backs_off(self, due: _Due) -> bool:
        attempt = self.attempts.get(due.offset)
        return attempt is not None and attempt.generation == due.generation and attempt.delayed_to_s is None

    def _emit(self, attempt: Attempt, offset: int, now_s: float, run: int) -> Replay:
        attempt.emissions += 1
        self._use_run(attempt, run)
        attempt.generation = generation_of(run, attempt.emissions)
        attempt.in_flight = True
        attempt.emitted_s = now_s
        self.changes += 1
        return Replay(offset, attempt.generation, attempt.attempts)

    def _use_run(self, attempt: Attempt, run: int) -> None:
        """Keep count of a record's emissions in one run: more than 16 would share root ids."""
        if attempt.generation and attempt.generation >> 4 != run:
            attempt.first_in_run = attempt.emissions
        in_run = attempt.emissions - attempt.first_in_run
        assert in_run <= ATTEMPT_MASK, "a new run begins before root ids come again"
        if in_run == ATTEMPT_MASK:
            self._used_up = run

    def is_run_used_up(self, run: int) -> bool:
        """Return whether one more replay in a run may have the root id of an earlier emission in it."""
        return self._used_up == run

    def fail_overdue(self, offsets: BitMap64, before_s: float, now_s: float, limit: int) -> int:
        """Make due now what was emitted before a time and has no result; return how many records.

        Of the overdue ``offsets`` those that have an attempt here were emitted again since. A missing result
        says nothing about a record, so it does not count as an attempt.
        """
        late = [o for o, each in self.attempts.items() if each.in_flight and each.emitted_s < before_s]
        late += islice(offsets - BitMap64(self.attempts), limit)
        for offset in late[:limit]:
            attempt = self.attempts.setdefault(offset, Attempt(0, 0, 0, True, before_s))
            attempt.in_flight, attempt.reason = False, ""
            self._wait(now_s, offset, attempt.generation)
        return len(late[:limit])

    def restore(self, offset: int, attempt: Attempt) -> None:
        """Restore the attempt of a record; without ``due_s`` it is in flight."""
        self.attempts[offset] = attempt
        if attempt.due_s is not None:
            self._wait(attempt.due_s, offset, attempt.generation)

    def resume(self, replay: Replay, now_s: float) -> None:
        """Take an emission that an earlier driver has planned for the newest of its record, in flight."""
        attempt = self.attempts.get(replay.offset)
        emissions = attempt.emissions + 1 if attempt else replay.generation & ATTEMPT_MASK
        made = Attempt(replay.generation, emissions, replay.attempts, True, now_s)
        self.attempts[replay.offset] = made
        self.changes += 1

    def discard(self, offsets: BitMap64) -> None:
        """Discard the attempts of records that are done, or whose emissions no longer count."""
        few = self.attempts if len(self.attempts) < len(offsets) else offsets
        for offset in [offset for offset in few if offset in offsets]:
            self.changes += self.attempts.pop(offset, None) is not None
