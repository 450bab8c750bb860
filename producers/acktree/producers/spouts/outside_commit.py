"""Commits offsets without being a member of the group: for a spout.

Invariant: every partition's error is checked; the broker accepts such a commit only while the group has no
member, and an error for that reason names the cause.
"""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from acktree.core.kafka.clients import retry_until_ready, why_unanswered
from acktree.core.kafka.errors import clear_errors, is_membership_lost
from acktree.wire.errors import AcktreeError

RENEW_INTERVAL_S = 30.0
"""How often unchanged offsets are committed again: Kafka deletes an offset of a group without members once
its last commit is older than the broker's offsets.retention.minutes, which is at least 1."""


class GroupInUse(AcktreeError):
    """A consumer is a member of the spout's group, so the broker rejects the spout's commits."""


def commit_offsets(consumer: Consumer, offsets: Sequence[TopicPartition], group: str, bootstrap: str) -> None:
    """Commit explicit offsets and check every partition's error; wait while the coordinator is not ready.

    Raises:
        GroupInUse: the group has members.
        BrokerUnreachable, BrokerRefused: the broker does not answer, or rejects a partition's offset.
    """

    def commit() -> None:
        try:
            answer = consumer.commit(offsets=list(offsets), asynchronous=False) or ()
        except KafkaException:
            if (why := why_unanswered(consumer)) is not None:
                raise KafkaException(why) from None
            raise
        for partition in answer:
            if partition.error is not None:
                raise KafkaException(partition.error)

    try:
        retry_until_ready(commit)
    except KafkaException as error:
        if is_membership_lost(error.args[0]):
            raise GroupInUse(
                f"a consumer is a member of group {group}, so its offsets cannot be committed; "
                "stop that consumer: the group belongs to the spout"
            ) from error
        with clear_errors(bootstrap):
            raise
