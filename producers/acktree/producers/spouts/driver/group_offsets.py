"""Commits and reads the offsets of a spout's consumer group: a view of its state, or someone's reset.

Invariant: our commits are sealed with our term; a seal with a higher term stops this driver, one with a lower
is overwritten, and an offset without a seal is somebody else's. Unchanged offsets are not written again, or
they would overwrite an operator's reset.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition

from acktree.core.kafka.clients import BROKER_TIMEOUT_S, metadata_of, retry_until_ready
from acktree.core.kafka.errors import clear_errors
from acktree.producers.ledger.task import SourceSlot
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.wire.state_records import OffsetSeal, seal_in

MOST_TOGETHER = 500
"""A broker appends a request as one batch, by default of at most 1,048,588 bytes."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of one source partition; ``seal`` is None for anybody else's commit."""

    next_offset: int
    seal: OffsetSeal | None


class GroupOffsets:
    """Reads and writes the group's offsets through one consumer that is not a member of the group."""

    def __init__(self, consumer: Consumer, group: str, bootstrap: str) -> None:
        self._consumer = consumer
        self._group = group
        self._bootstrap = bootstrap
        self._last: dict[SourceSlot, tuple[int, str]] = {}
        self.has_lost = False
        """The group no longer holds something that was committed: it expired, or somebody deleted it."""

    def fetch(self, sources: Iterable[SourceSlot], term: int | None) -> dict[int, CommittedOffset]:
        """Return by slot what is committed and is not our own last commit; wait for the coordinator.

        ``term`` is ours; None at a takeover, when every other driver is the older one.

        Raises:
            ZombieDriver: a commit carries a higher term than ours.
        """
        by_place = {(source.topic, source.partition): source for source in sources}
        asked = [TopicPartition(*place) for place in by_place]
        found: dict[int, CommittedOffset] = {}
        self.has_lost = False
        with clear_errors(self._bootstrap):
            answer = retry_until_ready(lambda: committed_offsets(self._consumer, asked))
        for partition in answer:
            source = by_place[partition.topic, partition.partition]
            if partition.offset == OFFSET_INVALID:
                self.has_lost |= self._last.pop(source, None) is not None
                continue
            if self._last.get(source) == (partition.offset, metadata_of(partition)):
                continue
            self._last.pop(source, None)
            seal = seal_in(metadata_of(partition), partition.offset)
            if seal is not None and term is not None and seal.term > term:
                raise ZombieDriver(
                    f"a newer driver (term {seal.term}, this one has {term}) commits for "
                    f"group {self._group}; only one driver may run per spout; this one stops"
                )
            found[source.slot] = CommittedOffset(partition.offset, seal)
        return found

    def commit(
        self, frontiers: Mapping[SourceSlot, int], term: int, result_positions: Iterable[TopicPartition]
    ) -> None:
        """Commit frontiers that the group does not hold yet, as far as we know, and result positions.

        Raises what ``commit_offsets`` raises.
        """
        new = {
            source: (at, OffsetSeal(term, source.topic_id).text(at))
            for source, at in frontiers.items()
            if source not in self._last or self._last[source][0] != at
        }
        offsets = [
            TopicPartition(source.topic, source.partition, at, metadata=text)
            for source, (at, text) in new.items()
        ]
        left = iter((*offsets, *result_positions))
        while request := list(islice(left, MOST_TOGETHER)):
            commit_offsets(self._consumer, request, self._group, self._bootstrap)
        self._last |= new

    def forget(self) -> None:
        """Forget what the group holds: the next commit writes all of it."""
        self._last.clear()


def committed_offsets(consumer: Consumer, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Return what a consumer's group has committed; raise KafkaException if that of one is not known."""
    found: list[TopicPartition] = consumer.committed(asked, timeout=BROKER_TIMEOUT_S)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found
