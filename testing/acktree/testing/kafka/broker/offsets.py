"""Passes offsets between a client and its group: partitions with the broker's answers.

Invariant: answers are in the order of a real broker's response, as the client reports the last error of it.
"""

from collections.abc import Sequence

from confluent_kafka import KafkaError, TopicPartition

from acktree.testing.kafka.broker.cluster import Offset


def partition_of(
    topic: str, partition: int, offset: int, metadata: str | None, epoch: int = -1
) -> TopicPartition:
    """Return a partition; confluent's class takes no None for the metadata that it has by default."""
    if metadata is None:
        return TopicPartition(topic, partition, offset, leader_epoch=epoch)
    return TopicPartition(topic, partition, offset, metadata, leader_epoch=epoch)


def epoch_of(place: TopicPartition) -> int:
    """Return the leader epoch of a position, -1 if it has none."""
    return -1 if place.leader_epoch is None else place.leader_epoch


def with_error(place: TopicPartition, error: KafkaError | None) -> TopicPartition:
    """Return the answer for one partition; confluent's class has no way to set an error."""
    known = place.topic, place.partition, place.offset
    epoch = epoch_of(place)
    if place.metadata is None:
        answer = AnsweredPartition(*known, leader_epoch=epoch)
    else:
        answer = AnsweredPartition(*known, place.metadata, leader_epoch=epoch)
    answer.failure = error
    return answer


class AnsweredPartition(TopicPartition):
    """A partition with the broker's answer."""

    failure: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:  # type: ignore[override]
        """Why the broker refused."""
        return self.failure


def last_code(offsets: Sequence[Offset], codes: Sequence[int | None]) -> int | None:
    """Return the last error of the response to a commit, None for none.

    The client sorts by topic and partition. The broker begins with the topics of partitions that it does not
    know, and in each of them with those partitions; the others it asks the group for.
    """
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    first = {offset[0] for offset, code in zip(offsets, codes, strict=True) if code == unknown}

    def place(answer: tuple[Offset, int | None]) -> tuple[bool, str, bool, int]:
        (topic, partition, *_), code = answer
        return topic not in first, topic, code != unknown, partition

    response = sorted(zip(offsets, codes, strict=True), key=place)
    return next((code for _, code in reversed(response) if code is not None), None)
