"""Batch commit records: name what a stage has written of the running batch, as offsets of its own group.

Invariant: a batch commit record names one read task of one batch of one query, or one batch as a whole; a
task's record is committed in the transaction that holds everything the task wrote. Only the running batch is
ever run again, so a partition keeps its newest record only. A process that finds a record commits it again:
Kafka expires the offsets of a group without members, and a batch that fails at every start is run again for
as long as it does.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer, metadata_of, why_unanswered
from acktree.core.kafka.errors import is_not_ready
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.producers.spouts.driver.task_fencing import batch_commit_group
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.spark.shared.per_process import PerProcess

FORMAT = "1"
RETRY_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class BatchName:
    """The name of a batch and its query; ``query`` outlives restarts and differs for a new checkpoint."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class ReadTaskName:
    """The name of a read task: the partition that no other task begins with, and a digest of all it reads.

    ``claim`` is that of the driver that planned it, "" for a spout's.
    """

    topic: str
    partition: int
    next_offset: int
    digest: str
    claim: str = ""

    def line(self) -> str:
        return f"{self.topic} {self.partition} {self.next_offset} {self.digest} {self.claim}\n"

    @classmethod
    def from_line(cls, line: str) -> "ReadTaskName":
        topic, partition, next_offset, digest, claim = line.rstrip("\n").split(" ")
        return cls(topic, int(partition), int(next_offset), digest, claim)


def commit_of_task(batch: BatchName, task: ReadTaskName) -> TopicPartition:
    """Return the record that a task of a batch is written: its partition, and the text that names it."""
    text = f"{FORMAT}|{batch.query}|{batch.number}|{task.digest}"
    return TopicPartition(task.topic, task.partition, task.next_offset, metadata=text)


def batch_of_commit(found: TopicPartition, task: ReadTaskName) -> BatchName | None:
    """Return the batch in which a task is written by the record found for its partition, None if it is not.

    >>> task = ReadTaskName("lines", 0, 7, "0a1b2c3d")
    >>> batch_of_commit(commit_of_task(BatchName("q", 5), task), task)
    BatchName(query='q', number=5)
    """
    parts = metadata_of(found).split("|")
    if found.offset != task.next_offset or len(parts) != 4 or parts[0] != FORMAT or parts[3] != task.digest:
        return None
    return BatchName(parts[1], int(parts[2])) if parts[2].isdigit() else None


def commit_of_batch(batch: BatchName, source_topic: str) -> TopicPartition:
    """Return the record that writing a batch has begun; tasks of such a batch have no records."""
    text = f"{FORMAT}|{batch.query}|{batch.number}"
    return TopicPartition(source_topic, 0, batch.number, metadata=text)


def digest(*parts: object) -> str:
    """Return a short name of what the parts say."""
    return f"{zlib.crc32(repr(parts).encode()):08x}"


class BatchCommits:
    """The batch commit records of one stage; holds one consumer that is not a group member."""

    def __init__(self, bootstrap: str, user: Settings, group: str) -> None:
        self.bootstrap, self.group = bootstrap, batch_commit_group(group)
        self.consumer: Consumer = make_consumer(consumer_settings(bootstrap, self.group, user))

    def is_set(self, record: TopicPartition) -> bool:
        """Return whether a record is the newest of its partition, waiting for a transaction in progress.

        Raises:
            KafkaException: the broker does not answer, or the transaction does not end in time.
        """
        (found,) = self.newest([record])
        return found.offset != OFFSET_INVALID and metadata_of(found) == metadata_of(record)

    def newest(self, records: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the newest record of the partition of each, waiting for transactions in progress.

        A partition without one has OFFSET_INVALID. Raises what ``is_set`` raises.
        """
        places = [TopicPartition(record.topic, record.partition) for record in records]
        deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
        while True:
            try:
                return self._committed(places)
            except KafkaException as error:
                if (why := why_unanswered(self.consumer)) is not None:
                    raise KafkaException(why) from None
                if not is_not_ready(error.args[0]) or world.monotonic_s() > deadline_s:
                    raise
                world.sleep(RETRY_INTERVAL_S)

    def _committed(self, places: list[TopicPartition]) -> list[TopicPartition]:
        found: list[TopicPartition] = self.consumer.committed(places, BROKER_TIMEOUT_S)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return found

    def set(self, record: TopicPartition) -> None:
        """Commit a record. Raises what ``commit_offsets`` raises."""
        commit_offsets(self.consumer, [record], self.group, self.bootstrap)

    def remove(self, record: TopicPartition) -> None:
        """Replace a record, if it is the newest of its partition, by one that names nothing.

        Raises what ``is_set`` and ``set`` raise.
        """
        if self.is_set(record):
            self.set(TopicPartition(record.topic, record.partition, record.offset))


_kept: PerProcess[BatchCommits] = PerProcess()


def batch_commits(bootstrap: str, user: Settings, group: str) -> BatchCommits:
    """Return this process's batch commit records of one stage."""
    return _kept.get(lambda: BatchCommits(bootstrap, user, group), bootstrap, group, user)
