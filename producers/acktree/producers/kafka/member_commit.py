"""Commits offsets as a member of the group: for a bolt.

Invariant: every partition's error is checked; one that a rebalance or an unavailable broker explains is
retried with the next commit, any other stops the worker.
"""

import logging
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core.kafka.errors import is_membership_lost, is_transient
from acktree.core.kafka.outages import log_retry
from acktree.producers.kafka.deadline_call import call_with_deadline

log = logging.getLogger("acktree.bolt")


def commit_offsets(
    consumer: Consumer, offsets: Sequence[TopicPartition], may_wait: Callable[[], bool] | None
) -> bool:
    """Commit; return False if a rebalance or an unavailable broker makes it necessary to retry later.

    A commit in progress when its coordinator goes away waits for the next coordinator, or as long as
    ``may_wait()``. Without ``may_wait`` this thread makes the call itself.

    Raises:
        CallTimedOut: the commit has not returned; the consumer can only be abandoned.
    """

    def commit() -> list[TopicPartition] | None:
        return consumer.commit(offsets=list(offsets), asynchronous=False)

    try:
        for answer in (commit() if may_wait is None else call_with_deadline(commit, may_wait)) or ():
            if answer.error is not None:
                raise KafkaException(answer.error)
    except KafkaException as error:
        reason: KafkaError = error.args[0]
        passes = is_transient(reason) or is_membership_lost(reason) or reason.code() == KafkaError._STATE
        if not passes:
            raise
        log_retry(log, "commit postponed: %s", reason.str(), action="commit_postponed")
        return False
    return True
