"""Emits the failed messages of one spout task again when they are due, or gives them up.

Invariant: a message stays pending, with its records, until it is done or its dead letter is in the log.
Only then is it given up. Retries bypass max pending: waiting messages are counted there already. With a
breaker a message to give up is first held for its window; while the breaker is open nothing is given up.
"""

import heapq
import logging
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol

from acktree.core.reports.breaker import Breaker, Held
from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.errors import Misuse, Unwritable, reason_of
from acktree.producers.spout import Failure
from acktree.producers.spouts.message_dead_letters import text_of
from acktree.producers.spouts.retry_choice import RetryChoice
from acktree.wire.control_records import Cause

log = logging.getLogger("acktree.spout")

_NO_DEAD_LETTER = {"action": "no_dead_letter"}


class DeadLetters(Protocol):
    """Takes the messages that are given up."""

    def write(self, message: Message, failure: Failure, now_s: float) -> None:
        """Begin to write a message."""
        ...

    def pop_written(self) -> list[tuple[Message, Failure]]:
        """Return what is in the log since the last call."""
        ...


class _Due(NamedTuple):
    """A failed message, and when it is due; ``backs_off``: by the back-off of the settings."""

    at_s: float
    order: int
    message: Message
    failure: Failure
    backs_off: bool


class SpoutRetries:
    """Holds the failed messages of a spout whose class has ``retry``; ``policy`` is that of the topology."""

    def __init__(
        self,
        emitter: SpoutEmitter,
        dead_letters: DeadLetters,
        choice: RetryChoice,
        policy: Callable[[], RetryPolicy],
        jitter: Callable[[], float],
        breaker: Breaker,
    ) -> None:
        self._emitter, self._dead_letters, self._choice = emitter, dead_letters, choice
        self._policy, self._jitter, self._breaker = policy, jitter, breaker
        self.held: Held[_Due] = Held()
        self._due: list[_Due] = []
        self._order = count()
        self._openings_over = 0
        """How many openings of the breaker were over when back-offs were ended."""
        self.replayed = 0

    @property
    def waiting(self) -> int:
        """Return how many messages wait for their next attempt."""
        return len(self._due)

    def failed(self, message: Message, failure: Failure, now_s: float, *, counts: bool) -> None:
        """Decide on a message that has failed and is not in flight.

        ``counts`` is False if the failure says nothing about the message itself: it waits for the back-off,
        whatever the user's function would say. So it does while the breaker is open.
        """
        if message.first_failed_s is None:
            message.first_failed_s = now_s
        message.failures += 1
        policy, after_s = self._policy(), failure.retry_after_s
        if self._breaker.is_open or not counts:
            delay_s = after_s or policy.delay_s(message.failures, self._jitter())
            self._wait(message, failure, now_s + policy.limited_s(delay_s), backs_off=not after_s)
            return
        message.attempts += 1
        backs_off = after_s is None
        if not failure.retry or message.attempts >= policy.max_attempts:
            after_s = None
        elif after_s is None:
            after_s = self._choice.delay_s(message.attempts, failure.reason, policy, self._jitter())
        if after_s is None:
            asked_s = policy.limited_s(failure.retry_after_s or 0.0)
            self.held.add(self._due_at(now_s + asked_s, message, failure), now_s)
        else:
            backs_off = backs_off and self._choice.is_of_settings
            self._wait(message, failure, now_s + policy.limited_s(after_s), backs_off=backs_off)

    def _wait(self, message: Message, failure: Failure, due_s: float, *, backs_off: bool = False) -> None:
        heapq.heappush(self._due, self._due_at(due_s, message, failure, backs_off=backs_off))

    def _due_at(self, due_s: float, message: Message, failure: Failure, *, backs_off: bool = False) -> _Due:
        return _Due(due_s, next(self._order), message, failure, backs_off)

    def _end_back_offs(self, now_s: float) -> None:
        """Make due now what backs off, when the breaker has closed; a delay that was chosen stays."""
        if self._breaker.is_open or self._breaker.openings == self._openings_over:
            return
        self._openings_over = self._breaker.openings
        self._due = [due._replace(at_s=min(due.at_s, now_s)) if due.backs_off else due for due in self._due]
        heapq.heapify(self._due)

    def give_up_held(self, now_s: float) -> None:
        """Give up what was held back for the breaker's window; where it has opened, that is due again.

        A delay that a bolt has asked for is kept.
        """
        if not self.held:
            return
        if self._breaker.is_open or self._breaker.check(now_s):
            for due in self.held.pop_all():
                due.message.attempts = self._policy().with_one_left(due.message.attempts)
                heapq.heappush(self._due, due)
            return
        for due in self.held.pop_over(self._breaker, now_s):
            self._give_up(due.message, due.failure, now_s)

    def _give_up(self, message: Message, failure: Failure, now_s: float) -> None:
        """Begin to write a dead letter; a message that cannot have one is emitted again indefinitely."""
        try:
            self._dead_letters.write(message, failure.exhausted(message.attempts), now_s)
        except Unwritable as error:
            text = "message %.100s cannot be dead-lettered, so it is emitted again: %s; it failed: %s"
            log.error(text, text_of(message.id), error, failure.reason or "timed out", extra=_NO_DEAD_LETTER)
            self._wait(message, failure, now_s + self._policy().delay_s(message.attempts, self._jitter()))

    def emit_due(self, now_s: float, limit: int) -> int:
        """Emit again what is due, at most ``limit`` messages; return how many.

        A message that can no longer be emitted, such as to a topic that the topology no longer has, is given
        up.
        """
        self._end_back_offs(now_s)
        emitted = 0
        while self._due and self._due[0].at_s <= now_s and emitted < limit:
            _, _, message, failure, _ = heapq.heappop(self._due)
            try:
                self._emitter.emit_again(message, now_s)
            except (Misuse, Unwritable) as error:
                reason = f"{reason_of(error)}; it failed before: {failure.reason or 'timed out'}"
                # It can never be emitted, whatever the bolts do: a breaker has no say in it.
                found = Failure(Cause.FAILED, self._emitter.targets.component, reason)
                self._give_up(message, found, now_s)
                continue
            emitted += 1
        self.replayed += emitted
        return emitted

    def pop_exhausted(self) -> list[tuple[Message, Failure]]:
        """Return the messages whose dead letters are in the log, each once; they are no longer pending."""
        exhausted = self._dead_letters.pop_written()
        for message, _ in exhausted:
            self._emitter.pending.finish(message)
        return exhausted
