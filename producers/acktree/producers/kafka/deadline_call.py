"""A call of librdkafka that its caller can stop waiting for.

Invariant: the loop itself is never in such a call, so it handles signals and every wait has a limit. Timeouts
alone do not give that: ``send_offsets_to_transaction`` may ignore its own and never return once its group
coordinator went away (issues 5456 and 5511 of github.com/confluentinc/librdkafka), ``commit`` has none, and
``close`` waits for a commit in progress. Calls of one consumer block each other across threads, so none may
be made this way inside the consumer's callback.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

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


def call_with_deadline(call: Callable[[], Answer], may_wait: Callable[[], bool]) -> Answer:
    """Call in a separate thread, wait as long as ``may_wait()``, and return the result.

    Each call has a thread of its own: in one of the client's the next call would wait behind one that never
    returns, and whoever gives up a client would have to end its thread.

    Raises:
        CallTimedOut: the call has not returned. Otherwise what the call or ``may_wait`` raises.
    """
    answers: list[Answer] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            raised.append(error)

    thread = world.start_thread(run, "kafka call")
    thread.join(CHECK_INTERVAL_S)
    while thread.is_alive():
        if not may_wait():
            raise CallTimedOut
        thread.join(CHECK_INTERVAL_S)
    if raised:
        raise raised[0]
    return answers[0]


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
