"""Fences Spark's tasks of an earlier driver: their open transactions hold back the readers of its topics.

All spouts share the topic of inits, so an open transaction of one holds the trees of all.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaException

from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_producer, retry_until_ready
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.producers.kafka.fencing import fencing_settings

AT_ONCE = 16
"""How many transactional ids are fenced at a time, each by its own client."""
BEGIN_S = 0.001


def batch_commit_group(group: str) -> str:
    """Return the consumer group that holds the batch commit records of a component's stage in Spark."""
    return f"{group}.stage"


def transactional_id(group: str, topic: str, partition: int) -> str:
    """Return the transactional id of Spark's tasks that begin with a partition."""
    return f"{batch_commit_group(group)}-{topic}-{partition}"


def fence_tasks(bootstrap: str, group: str, places: Sequence[tuple[str, int]], user: Settings) -> None:
    """Abort the open transactions of tasks that begin with these partitions, and fence those tasks.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    settings = fencing_settings(bootstrap, user)
    for at in range(0, len(places), AT_ONCE):
        ids = [transactional_id(group, *place) for place in places[at : at + AT_ONCE]]
        waiting = [make_producer({**settings, "transactional.id": name}) for name in ids]
        with clear_errors(bootstrap):
            for producer in list(waiting):  # each continues in the background
                with suppress(KafkaException):
                    producer.init_transactions(BEGIN_S)
                    waiting.remove(producer)
            for producer in waiting:
                retry_until_ready(partial(producer.init_transactions, BROKER_TIMEOUT_S))
