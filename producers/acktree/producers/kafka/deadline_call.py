"""Calls librdkafka with a deadline: the caller can stop waiting.

Invariant: the loop itself is never in such a call, so it handles signals and every wait has a limit. Timeouts
alone do not ensure that: ``send_offsets_to_transaction`` may ignore its own and never return once its group
coordinator went away (issues 5456 and 5511 of github.com/confluentinc/librdkafka), ``commit`` has none, and
``close`` waits for a commit in progress. Calls of one consumer block each other across threads, so none may
be made this way inside the consumer's callback.
"""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from confluent_kafka import Consumer

from acktree.core import world

CHECK_INTERVAL_S = 0.1
"""How often to check whether to wait any longer."""
CLOSE_S = 5.0
"""How long a consumer may take to leave its group."""

log = logging.getLogger("acktree.kafka")

Answer = TypeVar("Answer")


class CallTimedOut(Exception):
    """A call did not return in time. It keeps running in its thread, which alone may use the client now."""


class BackgroundCall(Generic[Answer]):
    """A call in a separate thread.

    In one thread for all calls of a client the next call would wait behind one that never returns, and to
    give up a client one would have to end its thread.
    """

    def __init__(self, call: Callable[[], Answer]) -> None:
        """Begin the call."""
        self._call = call
        self._answers: list[Answer] = []
        self._raised: list[BaseException] = []
        self._thread = world.start_thread(self._run, "kafka call")

    def _run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:
            self._raised.append(error)

    @property
    def is_over(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    def wait(self, may_wait: Callable[[], bool]) -> Answer:
        """Wait as long as ``may_wait()``, and return the result.

        Raises:
            CallTimedOut: the call has not returned. Otherwise what the call or ``may_wait`` raises.
        """
        self._thread.join(CHECK_INTERVAL_S)
        while not self.is_over:
            if not may_wait():
                raise CallTimedOut
            self._thread.join(CHECK_INTERVAL_S)
        if self._raised:
            raise self._raised[0]
        return self._answers[0]


def call_with_deadline(call: Callable[[], Answer], may_wait: Callable[[], bool]) -> Answer:
    """Call in a separate thread, wait as long as ``may_wait()``, and return the result.

    Raises as ``BackgroundCall.wait``.
    """
    return BackgroundCall(call).wait(may_wait)


def close_consumer(consumer: Consumer) -> None:
    """Leave the group; a consumer that cannot do so within CLOSE_S is abandoned and ends with the process."""
    until_s = world.monotonic_s() + CLOSE_S
    try:
        call_with_deadline(consumer.close, lambda: world.monotonic_s() < until_s)
    except CallTimedOut:
        log.warning(
            "the consumer has not left its group within %g s; the group removes it after its session timeout",
            CLOSE_S,
            extra={"action": "close_abandoned"},
        )
