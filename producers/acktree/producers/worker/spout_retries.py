"""What became of the failed messages of one spout task: emitted again when due, or given up.

Invariant: a message stays pending, with what it emitted, until it is done or its dead letter is in the log.
Only then is it given up. Retries bypass max pending: what waits is counted there already.
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Protocol

from acktree.producers.errors import Misuse, Unwritable, reason_of
from acktree.producers.pending import Message
from acktree.producers.spout import Failure, SpoutEmitter
from acktree.producers.worker.retry_choice import RetryChoice
from acktree.schemas.control_records import Cause
from acktree.schemas.retry_policy import RetryPolicy


class DeadLetters(Protocol):
    """Where messages go that are given up."""

    def write(self, message: Message, failure: Failure, now_s: float) -> None:
        """Begin to write a message."""
        ...

    def pop_written(self) -> list[tuple[Message, Failure]]:
        """Return what is in the log since the last call."""
        ...


class SpoutRetries:
    """Holds the failed messages of a spout whose class has ``retry``; ``policy`` is that of the topology."""

    def __init__(
        self,
        emitter: SpoutEmitter,
        dead_letters: DeadLetters,
        choice: RetryChoice,
        policy: Callable[[], RetryPolicy],
        jitter: Callable[[], float],
    ) -> None:
        self._emitter, self._dead_letters, self._choice = emitter, dead_letters, choice
        self._policy, self._jitter = policy, jitter
        self._due: list[tuple[float, int, Message, Failure]] = []
        self._order = count()
        self.replayed = 0

    @property
    def waiting(self) -> int:
        """Return how many messages wait for their next attempt."""
        return len(self._due)

    def failed(self, message: Message, failure: Failure, now_s: float, *, counts: bool) -> bool:
        """Decide on a message that has failed and is not in flight; return whether it is emitted again.

        ``counts`` is False if the failure says nothing about the message itself.
        """
        message.attempts += counts or not failure.retry
        if message.first_failed_s is None:
            message.first_failed_s = now_s
        policy, after_s = self._policy(), failure.retry_after_s
        if not failure.retry or message.attempts >= policy.max_attempts:
            after_s = None
        elif after_s is None:
            after_s = self._choice.delay_s(message.attempts, failure.reason, policy, self._jitter())
        if after_s is None:
            self._dead_letters.write(message, failure.given_up(message.attempts), now_s)
            return False
        due_s = now_s + min(max(after_s, 0.0), policy.max_after_s)
        heapq.heappush(self._due, (due_s, next(self._order), message, failure))
        return True

    def emit_due(self, now_s: float, limit: int) -> int:
        """Emit again what is due, at most ``limit`` messages; return how many.

        A message that can no longer be emitted, such as to a topic that the topology no longer has, is given
        up.
        """
        emitted = 0
        while self._due and self._due[0][0] <= now_s and emitted < limit:
            message, failure = heapq.heappop(self._due)[2:]
            try:
                self._emitter.emit_again(message, now_s)
            except (Misuse, Unwritable) as error:
                reason = f"{reason_of(error)}; it failed before: {failure.reason or 'timed out'}"
                found = Failure(Cause.FAILED, self._emitter.targets.component, reason)
                self._dead_letters.write(message, found.given_up(message.attempts), now_s)
                continue
            emitted += 1
        self.replayed += emitted
        return emitted

    def pop_given_up(self) -> list[tuple[Message, Failure]]:
        """Return the messages whose dead letters are in the log, each once; they are no longer pending."""
        given_up = self._dead_letters.pop_written()
        for message, _ in given_up:
            self._emitter.pending.finish(message)
        return given_up
