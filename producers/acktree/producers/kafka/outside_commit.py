"""Commits of a group's offsets by a process that is no member of the group, as spouts make them.

Invariant: every partition's answer is looked at; the broker takes such a commit only while the group has no
member, so a refusal for that reason names the cause.
"""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.schemas.clients import clear_errors
from acktree.schemas.errors import AcktreeError

RENEW_INTERVAL_S = 30.0
"""What stands is committed again this often: Kafka forgets the offsets of a group without members once the
last commit of each is older than the broker's offsets.retention.minutes, which is 1 at least."""

_MEMBERS = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)


class GroupInUse(AcktreeError):
    """A consumer is a member of the spout's group, so the broker refuses the spout's commits."""


def commit_offsets(consumer: Consumer, offsets: Sequence[TopicPartition], group: str, bootstrap: str) -> None:
    """Commit explicit offsets and check every partition's answer.

    Raises:
        GroupInUse: the group has members.
        BrokerUnreachable, BrokerRefused: the broker does not answer, or refuses a part.
    """
    try:
        answer = consumer.commit(offsets=list(offsets), asynchronous=False) or []
        for partition in answer:
            if partition.error is not None:
                raise KafkaException(partition.error)
    except KafkaException as error:
        if error.args[0].code() in _MEMBERS:
            raise GroupInUse(
                f"a consumer is a member of group {group}, so its offsets cannot be committed; "
                "stop it: the group belongs to the spout"
            ) from error
        with clear_errors(bootstrap):
            raise
