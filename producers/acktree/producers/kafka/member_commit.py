"""Commits of a group's offsets by its member, as bolts make them.

Invariant: every partition's answer is looked at; a refusal that a rebalance or an absent broker explains is
tried again with the next commit, any other ends the worker.
"""

import logging
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.kafka.deadline_call import call_with_deadline

log = logging.getLogger("acktree.bolt")

_TRY_LATER = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._STATE,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
    )
)


def commit_offsets(
    consumer: Consumer, offsets: Sequence[TopicPartition], may_wait: Callable[[], bool] | None
) -> bool:
    """Commit; return False where a rebalance or an absent broker calls for another try later.

    A commit that is under way when its coordinator goes away waits until there is one again, or as long as
    ``may_wait()``. Without ``may_wait`` the call is this thread's own.

    Raises:
        CallTimedOut: the wait is over, the commit is not; the consumer can only be left behind.
    """

    def commit() -> list[TopicPartition] | None:
        return consumer.commit(offsets=list(offsets), asynchronous=False)

    try:
        for answer in (commit() if may_wait is None else call_with_deadline(commit, may_wait)) or ():
            if answer.error is not None:
                raise KafkaException(answer.error)
    except KafkaException as error:
        if error.args[0].code() not in _TRY_LATER:
            raise
        log.warning("commit put off: %s", error.args[0].str(), extra={"action": "commit_put_off"})
        return False
    return True
