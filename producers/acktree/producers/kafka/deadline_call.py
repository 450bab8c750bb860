"""A call of librdkafka that its caller can stop waiting for.

Invariant: the loop itself is never in such a call, so a signal is heard and every wait has a limit. Time-outs
alone do not give that: ``send_offsets_to_transaction`` may ignore its own and never return once its group
coordinator went away (issues 5456 and 5511 of github.com/confluentinc/librdkafka), ``commit`` has none, and
``close`` waits for a commit that is under way. Calls of one consumer wait for each other across threads, so
no step may be taken inside its callback.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import Consumer

RELIEF_S = 0.1
"""How often the one who waits looks whether to go on waiting."""
CLOSE_S = 5.0
"""How long a consumer may take to leave its group."""

log = logging.getLogger("acktree.kafka")

Answer = TypeVar("Answer")


class CallTimedOut(Exception):
    """A step did not end in its time. It goes on in its thread, alone with its client."""


def call_with_deadline(step: Callable[[], Answer], may_wait: Callable[[], bool]) -> Answer:
    """Do a step in a thread of its own, wait for it as long as ``may_wait()``, and return its answer.

    Raises:
        CallTimedOut: the wait is over, the step is not. What the step or ``may_wait`` raises.
    """
    answers: list[Answer] = []
    raised: list[BaseException] = []

    def take() -> None:
        try:
            answers.append(step())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=take, name="kafka step", daemon=True)
    thread.start()
    thread.join(RELIEF_S)
    while thread.is_alive():
        if not may_wait():
            raise CallTimedOut
        thread.join(RELIEF_S)
    if raised:
        raise raised[0]
    return answers[0]


def close_consumer(consumer: Consumer) -> None:
    """Leave the group; a consumer that cannot within CLOSE_S is left behind, and ends with the process."""
    until_s = time.monotonic() + CLOSE_S
    try:
        call_with_deadline(consumer.close, lambda: time.monotonic() < until_s)
    except CallTimedOut:
        log.warning(
            "the consumer has not left its group within %g s; the group drops it after its session time-out",
            CLOSE_S,
            extra={"action": "close_given_up"},
        )
