"""Reads the committed offsets of a group, by a consumer that never joins it.

A member's own request is refused when its epoch is stale or its session has expired, and the rebalance that
would fix this waits for the callback that makes the request. librdkafka's admin client also has a call for
this, which may abort the process if a broker restarts while it waits (librdkafka issues 3663 and 4605).
"""

from collections.abc import Sequence

from confluent_kafka import TopicPartition

from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.settings import Settings, consumer_settings


def read_committed(
    bootstrap: str,
    user: Settings,
    group: str,
    places: Sequence[TopicPartition],
    *,
    stable: bool = True,
    timeout_s: float = BROKER_TIMEOUT_S,
) -> list[TopicPartition]:
    """Return what a group has committed for these partitions, each with its error; offset -1001 for nothing.

    If ``stable``, offsets that an open transaction may still change are waited for.

    Raises:
        KafkaException: the broker does not answer within ``timeout_s``, or refuses.
    """
    connection = {key: value for key, value in user.items() if not key.startswith("group.")}
    settings = consumer_settings(bootstrap, group, connection)
    consumer = make_consumer(
        {**settings, "isolation.level": "read_committed" if stable else "read_uncommitted"}
    )
    try:
        wanted = [TopicPartition(place.topic, place.partition) for place in places]
        found: list[TopicPartition] = consumer.committed(wanted, timeout=timeout_s)
        return found
    finally:
        consumer.close()
