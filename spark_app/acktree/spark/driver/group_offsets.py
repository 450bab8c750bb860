"""The committed offsets of a spout's consumer group: ours, an operator's, or a zombie's.

Invariant: a commit carries our epoch; one of ours with a higher epoch stops this driver, one with a lower
is overwritten, and one without our metadata is an operator's reset, which is applied. Explicit offsets only:
librdkafka's offset store would drop a grown bitmap at an unmoved frontier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from pyroaring import BitMap64

from acktree.producers.kafka.outside_commit import commit_offsets
from acktree.schemas.clients import BROKER_TIMEOUT_S, metadata_of
from acktree.schemas.errors import AcktreeError
from acktree.schemas.kafka_errors import clear_errors
from acktree.spark.ledger.done_set import CommitMetadata, decode_metadata
from acktree.spark.ledger.task import SourceSlot


class ZombieDriver(AcktreeError):
    """A newer driver has taken over this spout; this one must stop."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What is committed for one source partition; ``ours`` is None for anybody else's commit.

    ``is_of_another``: we committed it for a topic of the same name that is gone.
    """

    next_offset: int
    ours: CommitMetadata | None
    is_of_another: bool = False

    def done(self) -> BitMap64:
        return self.ours.done if self.ours else BitMap64()


class GroupOffsets:
    """Reads and writes the group's offsets through one consumer that is no member of the group."""

    def __init__(self, consumer: Consumer, group: str, bootstrap: str) -> None:
        self._consumer = consumer
        self._group = group
        self._bootstrap = bootstrap
        self._last: dict[int, tuple[int, str]] = {}
        self.has_lost = False
        """The group no longer holds something that was committed: it expired, or somebody deleted it."""

    def fetch(
        self, sources: Iterable[SourceSlot], epochs: Mapping[int, int] | None
    ) -> dict[int, CommittedOffset]:
        """Return by slot what is committed and is not our own last commit.

        ``epochs`` is ours by slot; None at a takeover, when every other driver is the older one.

        Raises:
            ZombieDriver: a commit carries a higher epoch than ours.
        """
        by_place = {(source.topic, source.partition): source for source in sources}
        asked = [TopicPartition(*place) for place in by_place]
        found: dict[int, CommittedOffset] = {}
        self.has_lost = False
        with clear_errors(self._bootstrap):
            answer = self._consumer.committed(asked, timeout=BROKER_TIMEOUT_S)
        for partition in answer:
            if partition.error is not None:
                with clear_errors(self._bootstrap):
                    raise KafkaException(partition.error)
            source = by_place[partition.topic, partition.partition]
            if partition.offset == OFFSET_INVALID:
                self.has_lost |= self._last.pop(source.slot, None) is not None
                continue
            if self._last.get(source.slot) == (partition.offset, metadata_of(partition)):
                continue
            ours = decode_metadata(metadata_of(partition), partition.offset)
            if ours is not None and epochs is not None and ours.epoch > epochs[source.slot]:
                raise ZombieDriver(
                    f"a newer driver (epoch {ours.epoch}, this one has {epochs[source.slot]}) commits for "
                    f"group {self._group}; only one driver may run per spout task, this one stops"
                )
            is_of_another = ours is not None and ours.incarnation != source.topic_id
            found[source.slot] = CommittedOffset(partition.offset, ours, is_of_another)
        return found

    def commit(
        self,
        states: Mapping[int, tuple[SourceSlot, int, str]],
        result_positions: Iterable[TopicPartition],
    ) -> None:
        """Commit (source, frontier, metadata) by slot together with result positions, in one request."""
        offsets = [
            TopicPartition(source.topic, source.partition, frontier, metadata=text)
            for source, frontier, text in states.values()
        ]
        commit_offsets(self._consumer, [*offsets, *result_positions], self._group, self._bootstrap)
        for slot, (_, frontier, text) in states.items():
            self._last[slot] = (frontier, text)
