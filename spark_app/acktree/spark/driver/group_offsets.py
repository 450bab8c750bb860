"""The committed offsets of a spout's consumer group: ours, an operator's, or a zombie's.

Invariant: a commit carries our term; one of ours with a higher term stops this driver, one with a lower
is overwritten, and one without our metadata is somebody else's. What has not changed is not written again, or
it would overwrite an operator's reset. Explicit offsets only: librdkafka's offset store would drop a grown
bitmap at an unmoved frontier.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from pyroaring import BitMap64

from acktree.core.kafka.clients import BROKER_TIMEOUT_S, metadata_of
from acktree.core.kafka.errors import clear_errors
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.spark.driver.spouts.state_topic import ZombieDriver
from acktree.spark.ledger.partitions.done_set import CommitMetadata, decode_metadata
from acktree.spark.ledger.task import SourceSlot

State = tuple[SourceSlot, int, str]
"""Of one slot: its source, the frontier and its metadata."""


MAX_REQUEST_BYTES = 200_000
"""A broker appends a request as one batch, by default of at most 1,048,588 bytes."""
OFFSET_BYTES = 300
"""What an offset takes beside its metadata, at most, with a short name of its group."""


def in_requests(
    offsets: Iterable[TopicPartition], max_bytes: int = MAX_REQUEST_BYTES
) -> Iterator[list[TopicPartition]]:
    """Yield the offsets in order, as many together as a request may hold."""
    request, size = list[TopicPartition](), 0
    for offset in offsets:
        added = OFFSET_BYTES + len(offset.topic) + len(offset.metadata or "")
        if request and size + added > max_bytes:
            yield request
            request, size = [], 0
        request.append(offset)
        size += added
    if request:
        yield request


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

    def fetch(self, sources: Iterable[SourceSlot], term: int | None) -> dict[int, CommittedOffset]:
        """Return by slot what is committed and is not our own last commit.

        ``term`` is ours; None at a takeover, when every other driver is the older one.

        Raises:
            ZombieDriver: a commit carries a higher term than ours.
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
            self._last.pop(source.slot, None)
            ours = decode_metadata(metadata_of(partition), partition.offset)
            if ours is not None and term is not None and ours.term > term:
                raise ZombieDriver(
                    f"a newer driver (term {ours.term}, this one has {term}) commits for "
                    f"group {self._group}; only one driver may run per spout task, this one stops"
                )
            is_of_another = ours is not None and ours.incarnation != source.topic_id
            found[source.slot] = CommittedOffset(partition.offset, ours, is_of_another)
        return found

    def unheld(self, states: Mapping[int, State]) -> dict[int, State]:
        """Return those of the states that are not what the group holds, as far as we know."""
        return {slot: state for slot, state in states.items() if self._last.get(slot) != state[1:]}

    def commit(self, states: Mapping[int, State], result_positions: Iterable[TopicPartition]) -> None:
        """Commit states, and then result positions: these wait where a state is refused.

        Raises what ``commit_offsets`` raises.
        """
        offsets = [
            TopicPartition(source.topic, source.partition, frontier, metadata=text)
            for source, frontier, text in states.values()
        ]
        for request in chain(in_requests(offsets), in_requests(result_positions)):
            commit_offsets(self._consumer, request, self._group, self._bootstrap)
        for slot, (_, frontier, text) in states.items():
            self._last[slot] = (frontier, text)
