"""How a worker is a member of its group: the session timeout, and what it asks of the group.

Invariant: with KIP-848 (``group.protocol=consumer``) the session timeout is the group's, kept by the broker,
and no client may name one. With it, what is committed is asked for as a stranger: a member's own question is
refused while its epoch is stale, and the worker is in the group's callback then.
"""

from collections.abc import Sequence

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, admin_settings, consumer_settings

SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS = 10_000, 3_000
EXACTLY_ONCE_SESSION_TIMEOUT_MS, EXACTLY_ONCE_HEARTBEAT_INTERVAL_MS = 6_000, 2_000
"""The least that brokers allow by default: readers wait for a dead worker's transaction until its successor
has its partitions."""


def is_kip_848(user: Settings) -> bool:
    """Tell whether the user's settings ask for the protocol of KIP-848."""
    return user.get("group.protocol", "classic").lower() != "classic"


def group_settings(bootstrap: str, group: str, user: Settings, *, exactly_once: bool) -> dict[str, object]:
    """Return the settings of the group's consumer, for the classic protocol or KIP-848 as the user says.

    The user's own timeouts win.

    Raises:
        RefusedSetting: a user setting would break a promise.
    """
    if is_kip_848(user):
        return consumer_settings(bootstrap, group, user)
    session_ms, heartbeat_ms = SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS
    if exactly_once:
        session_ms, heartbeat_ms = EXACTLY_ONCE_SESSION_TIMEOUT_MS, EXACTLY_ONCE_HEARTBEAT_INTERVAL_MS
    return consumer_settings(
        bootstrap, group, user, session_timeout_ms=session_ms, heartbeat_interval_ms=heartbeat_ms
    )


def read_committed(
    bootstrap: str, user: Settings, group: str, places: Sequence[TopicPartition]
) -> list[TopicPartition]:
    """Return what the group has committed, with the error of each partition.

    An offset that an open transaction holds is such an error: it may change still. For KIP-848 alone: where
    a broker restarts while this waits for it, an assertion of librdkafka may end the process (issue 3663).

    Raises:
        KafkaException: the broker does not answer, or refuses.
    """
    admin = AdminClient(admin_settings(bootstrap, user))  # must outlive its answer
    wanted = [
        ConsumerGroupTopicPartitions(group, [TopicPartition(each.topic, each.partition) for each in places])
    ]
    asked = admin.list_consumer_group_offsets(wanted, require_stable=True, request_timeout=BROKER_TIMEOUT_S)
    found: list[TopicPartition] = asked[group].result().topic_partitions
    return found
