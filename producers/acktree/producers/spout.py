"""The classes to subclass for a spout written in Python, and the failure of a message.

Invariant: each message has one outcome: ``ack``, ``fail``, or, with ``retry``, ``gave_up``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from acktree.producers.bolt import Context
from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.wire import control_records
from acktree.wire.control_records import NEVER, Cause

Retry = Callable[[int, str], float | None]
"""Takes the number of a failed attempt, from 1, and its reason; returns the seconds until the next attempt,
or None to give up."""


@dataclass(frozen=True, slots=True)
class SpoutContext(Context):
    """The context a spout runs in: its task, from 0, and how many there are; ``bolt`` is its name."""

    task_index: int
    tasks: int


class _Why(NamedTuple):
    cause: Cause
    task: str
    reason: str


class Failure(_Why):
    """A message was not processed: FAILED or TIMED_OUT, in which task and for what reason.

    ``task`` is BOLT@HOST:PROCESS and ``reason`` an exception's type and text; both are empty for a timeout.
    It unpacks into cause, task and reason. In addition, ``retry`` is False if a bolt has rejected the message
    permanently, and ``retry_after_s`` is the delay that a bolt requests, None if it requests none.
    ``attempts`` is how many attempts counted as failed, if the worker counts them. ``failed_tuple`` has
    the coordinates of the tuple that failed and a stack trace, None if unknown.
    """

    retry: bool = True
    retry_after_s: float | None = None
    attempts: int = 0
    failed_tuple: control_records.FailedTuple | None = None

    @classmethod
    def of(cls, failed: control_records.Failure) -> "Failure":
        """Return what a control record says of a failed root."""
        made = cls(failed.cause, failed.task, failed.reason)
        made.retry = failed.retry_after_ms != NEVER
        made.retry_after_s = failed.retry_after_ms / 1000 if failed.retry_after_ms >= 0 else None
        made.failed_tuple = failed.failed_tuple
        return made

    def without_tuple(self) -> "Failure":
        """Return a failure that does not say which tuple failed, nor where its stack was."""
        made = Failure(*self)
        made.retry, made.retry_after_s, made.attempts = self.retry, self.retry_after_s, self.attempts
        return made

    def exhausted(self, attempts: int) -> "Failure":
        """Return the last failure of a message that is given up; the cause is REJECTED if a bolt says so."""
        made = Failure(self.cause if self.retry else Cause.REJECTED, self.task, self.reason)
        made.retry, made.attempts, made.failed_tuple = False, attempts, self.failed_tuple
        return made


class Spout:
    """A source of messages. All calls come from one thread.

    Messages and the records emitted for them are kept in memory until they are finished.
    """

    name: ClassVar[str] = ""
    """The spout's name in the topology; may be empty if it is the only spout without topics."""

    retry: ClassVar[bool | Retry] = False
    """Whether the worker emits a failed message again: True, after the back-off of the spout's table, up to
    its ``max_attempts``; or a function that takes (attempt, reason) and returns the delay in seconds, or None
    to give up. The worker then calls ``gave_up`` instead of ``fail``, once the message is a dead letter."""

    max_kept_bytes: ClassVar[int] = 64 << 20
    """At this many bytes of pending messages ``next_tuple`` is no longer called."""

    def prepare(self, context: SpoutContext) -> None:
        """Open the source; called once."""

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        """Emit what is available without waiting: nothing, one message, or a few."""
        raise NotImplementedError

    def deactivate(self) -> None:
        """Called when an operator has paused the spout: ``next_tuple`` is not called until ``activate``.

        Acks and fails of what is pending still arrive.
        """

    def activate(self) -> None:
        """Called when the spout resumes after ``deactivate``."""

    def cleanup(self) -> None:
        """Close the source; called once."""

    def ack(self, message: Message) -> None:
        """Handle the ack of a message: everything derived from it is done."""

    def fail(self, message: Message, failure: Failure) -> None:
        """Handle the failure or timeout of a message, for instance by emitting it again."""

    def gave_up(self, message: Message, failure: Failure) -> None:
        """Handle the end of a message that is now on the dead-letter topic; only with ``retry``."""

    def attempt_failed(self, message: Message, failure: Failure) -> None:
        """Called with ``retry`` when an attempt has failed, before the worker decides what follows."""
