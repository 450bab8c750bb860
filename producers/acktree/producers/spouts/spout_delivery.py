"""Notifies a Python spout of the outcomes of its messages, and counts them.

Invariant: each message gets one outcome: ``ack``, ``fail``, or, with ``retry``, ``gave_up`` once its dead
letter is in the log. All calls come from the loop's thread.
"""

import math
from functools import partial
from typing import Any

from acktree.core import world
from acktree.core.reports.breaker import Breaker
from acktree.core.reports.last_error import LastError
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stats import Value
from acktree.core.topology.registry import History
from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.spout import Failure, Spout
from acktree.producers.spouts.spout_retries import SpoutRetries
from acktree.wire.control_records import Cause


class SpoutDelivery:
    """Delivers the outcomes of one spout task; ``retries`` is None if the spout handles failures itself."""

    def __init__(
        self,
        spout: Spout,
        emitter: SpoutEmitter,
        history: History,
        progress: Liveness,
        last_error: LastError,
        retries: SpoutRetries | None,
        breaker: Breaker,
    ) -> None:
        self._breaker = breaker
        self._spout, self._emitter, self._history = spout, emitter, history
        self._progress, self._last_error, self._retries = progress, last_error, retries
        self._last_acked_s, self._pending_s = -math.inf, 0.0
        self.timed_out = self.exhausted = self.refused = 0
        self._times: list[tuple[float, int]] = []

    def ack(self, message: Message) -> None:
        """Deliver the ack of a message that is no longer pending."""
        self._emitter.counters.acked += 1
        self._last_acked_s = world.monotonic_s()
        self._pending_s += max(0.0, self._last_acked_s - message.first_s)
        self._times.append((self._last_acked_s - message.emitted_s, 1))
        self._call("ack", self._spout.ack, message)

    def pop_times(self) -> list[tuple[float, int]]:
        """Return how long messages took, with how many of them, that were acked since the last call."""
        times, self._times = self._times, []
        return times

    def ack_root(self, root: int) -> None:
        """Deliver the ack of a root, unless it is not in flight; that of a probe closes the breaker."""
        message = self._emitter.pending.pop(root)
        if message is None:
            return
        if root in self._breaker.probes:
            self._breaker.close(world.monotonic_s())
        self._breaker.acked(1, world.monotonic_s())
        self.ack(message)

    def fail(self, root: int, failure: Failure, *, is_overdue: bool = False) -> None:
        """Deliver the failure of a root, unless it is not in flight, or keep its message for a retry.

        ``is_overdue``: no result can come any more, which says nothing about the message.
        """
        retries, pending = self._retries, self._emitter.pending
        message = pending.pop(root) if retries is None else pending.take(root)
        if message is None:
            return
        self._last_error.failed(failure.reason or "a message timed out")
        if failure.cause is Cause.TIMED_OUT:
            self.timed_out += 1
        else:
            self._emitter.counters.failed += 1
        now_s = world.monotonic_s()
        if retries is None:
            self._breaker.failed(now_s, failure.task, failure.reason or "timed out")
            self._call("fail", self._spout.fail, message, failure)
            return
        self._spout.attempt_failed(message, failure)
        counts = not is_overdue and (failure.cause is Cause.FAILED or self._is_alive(now_s))
        self._call("retry", partial(retries.failed, counts=counts), message, failure, now_s)
        self._breaker.failed(now_s, failure.task, failure.reason or "timed out")

    def _is_alive(self, now_s: float) -> bool:
        """Return whether something was acked within the message timeout: else a timeout proves nothing."""
        return now_s - self._last_acked_s <= (self._history.latest.message_timeout_s or math.inf)

    def finish_exhausted(self) -> None:
        """Tell the spout which messages are given up: their dead letters are in the log."""
        if self._retries is None:
            return
        self._retries.give_up_held(world.monotonic_s())
        for message, failure in self._retries.pop_exhausted():
            self.exhausted += 1
            self.refused += failure.cause is Cause.REJECTED
            self._call("gave_up", self._spout.gave_up, message, failure)

    def _call(self, name: str, call: Any, *arguments: Any) -> None:
        self._progress.calling = name
        call(*arguments)
        self._progress.calling = ""

    def figures(self) -> dict[str, Value]:
        """Return the counts of a report."""
        counters = self._emitter.counters
        return {
            "emitted": counters.emitted,
            "acked": counters.acked,
            "pending_s": round(self._pending_s, 3),
            "failed": counters.failed,
            "timed_out": self.timed_out,
            "replayed": self._retries.replayed if self._retries is not None else 0,
            "dead_lettered": self.exhausted,
            "rejected": self.refused,
        }
