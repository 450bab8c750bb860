"""Simulates a cluster: topics, groups and transactions behind one door."""

import base64
import math
import uuid
from collections.abc import Callable, Collection, Iterable

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.assignors import Place
from acktree.testing.kafka.broker.groups import METADATA_BYTES, Group
from acktree.testing.kafka.broker.log import TOPIC_DEFAULTS, PartitionLog, Topic, Transaction
from acktree.testing.kafka.broker.transactions import Refused, TransactionCoordinator
from acktree.testing.virtual.kernel import START_S, Kernel, Process

Offset = tuple[str, int, int, str | None, int]
"""What a client commits: topic, partition, offset, metadata, leader epoch."""
LEADER = 1
"""The only broker's number."""
FORGOTTEN_S = 0.3
"""For how long after an outage a client does not know partitions that it knew before."""


def _read_plainly(_reader: Process, _group: str, _places: Collection[Place]) -> Callable[[], None]:
    return lambda: None


class Cluster:
    """One simulated Kafka cluster of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.transactions = TransactionCoordinator(kernel, self._end_offsets)
        self.transactions.present_log = self._present_log
        self._is_up = True
        self.known_from_s = -math.inf
        """When clients know partitions again that they have forgotten while the broker was away."""
        self.leaderless: set[str | tuple[str, int]] = set()
        """Topics, or partitions, that have no leader: nothing of them is written, read or known."""
        self.clock_step_s = 0.0
        self.appended: dict[PartitionLog, None] = {}
        """Logs that were appended to or cut since the watcher last cleared it."""
        self.offset_changes = 0
        """How often a committed offset of any group has changed."""
        self.copies_of: Callable[[Process, str], int] = lambda _writer, _topic: 1
        """How often the next record of a process for a topic is appended: 0 loses it, 2 repeats it."""
        self.holds: Callable[[Process, str, float], bool] = lambda _writer, _topic, _age_s: False
        """Whether the records of a process for a topic, queued for so long, are kept on their way."""
        self.on_append: Callable[[Process, str], None] = lambda _writer, _topic: None
        """Called after a record of a process was appended to a topic."""
        self.before_commit: Callable[[Process], None] = lambda _committer: None
        """Called before a process's offsets or transaction are committed; raises Refused to refuse that."""
        self.on_offsets_read: Callable[[Process, str, Collection[Place]], Callable[[], None]] = _read_plainly
        """Called before a process is given a group's offsets; returns what to call once it has them."""
        self._created = 0

    @property
    def is_up(self) -> bool:
        """Whether the broker answers."""
        return self._is_up

    @is_up.setter
    def is_up(self, is_up: bool) -> None:
        if is_up and not self._is_up:
            self.known_from_s = self.kernel.now_s + FORGOTTEN_S
        self._is_up = is_up

    def is_leaderless(self, topic: str, partition: int) -> bool:
        """Return whether a partition has no leader."""
        return topic in self.leaderless or (topic, partition) in self.leaderless

    def now_ms(self) -> int:
        """The broker's wall clock."""
        return int((START_S + self.kernel.now_s + self.clock_step_s) * 1000)

    # Topics.

    def create_topic(self, name: str, partitions: int, config: dict[str, str] | None = None) -> Topic:
        """Create a topic. Raises Refused: it exists."""
        if name in self.topics:
            raise Refused(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        self._created += 1
        drawn = uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{self._created}").bytes
        topic_id = base64.urlsafe_b64encode(drawn).decode().rstrip("=")
        topic = Topic(name, topic_id, {**TOPIC_DEFAULTS, **(config or {})})
        self.topics[name] = topic
        self.grow_topic(name, partitions)
        return topic

    def grow_topic(self, name: str, partitions: int) -> None:
        """Add partitions, up to a number. Raises Refused."""
        topic = self.topic(name)
        if topic.partitions and partitions <= len(topic.partitions):
            raise Refused(KafkaError.INVALID_PARTITIONS)
        for number in range(len(topic.partitions), partitions):
            topic.partitions.append(PartitionLog(topic, number, self.now_ms, self.appended))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and what groups have committed of it. Raises Refused."""
        topic = self.topic(name)
        topic.is_deleted = True
        del self.topics[name]
        for group in self.groups.values():
            group.offsets.drop_topic(name)
        for log in topic.partitions:
            log.wake()

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises Refused: there is none of that name."""
        if (found := self.topics.get(name)) is None:
            raise Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition. Raises Refused: there is none."""
        found = self.topic(topic)
        if not 0 <= partition < len(found.partitions):
            raise Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found.partitions[partition]

    def _present_log(self, log: PartitionLog) -> PartitionLog:
        topic = self.topics.get(log.topic.name)
        return log if topic is None or log.number >= len(topic.partitions) else topic.partitions[log.number]

    # Groups.

    def group(self, name: str) -> Group:
        """Return a group; one that nobody has used yet is empty."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(name, self.kernel, self._partitions_of, self._offset_changed)
            self._offset_changed()
        return found

    def why_unacceptable(self, offset: Offset) -> int | None:
        """Return why an offset may not be committed, None if it may."""
        topic, partition, _, metadata, _ = offset
        if topic not in self.topics or not 0 <= partition < len(self.topics[topic].partitions):
            return KafkaError.UNKNOWN_TOPIC_OR_PART
        is_long = len((metadata or "").encode()) > METADATA_BYTES
        return KafkaError.OFFSET_METADATA_TOO_LARGE if is_long else None

    def _offset_changed(self) -> None:
        self.offset_changes += 1

    def _partitions_of(self, topics: Iterable[str]) -> dict[str, int]:
        return {name: len(self.topics[name].partitions) for name in topics if name in self.topics}

    def _end_offsets(self, group: str, transaction: Transaction) -> None:
        if (found := self.groups.get(group)) is not None:
            found.offsets.end(transaction)
