"""Reads the results of a tested topology from the logs and offsets of the simulated cluster.

Invariant: every result is one that a read_committed reader of the real topics would find.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pyroaring import BitMap64

from acktree.console.view.records.dead_letters import DeadLetter, dead_letter_of, spouts_by_topic
from acktree.core.topology.registry import Published
from acktree.producers.ledger.slot_states import offsets_of
from acktree.producers.spout import Failure
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.log import Header, PartitionLog, StoredRecord
from acktree.testing.kafka.clients.message import SimulatedMessage
from acktree.testing.virtual.errors import UnknownName
from acktree.wire.codec import decode_ack_init, decode_result
from acktree.wire.control_records import Cause
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import HEADER, decode_header, find_header
from acktree.wire.ids import origin_of
from acktree.wire.state_records import SlotKey, decode_slot_state, seal_in

Decoded = TypeVar("Decoded")
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic, without acktree's own header."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int

    @property
    def place(self) -> Place:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset

    @property
    def text(self) -> str:
        """The value as text."""
        return (self.value or b"").decode()


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """One failure of a source record, or of a message of a ``Spout`` class."""

    record: Any
    """The source record, or the message id."""
    cause: Cause
    task: str
    reason: str
    retry: bool = True
    """Whether it may be tried again, as the bolt says that failed it."""
    retry_after_s: float | None = None
    """The delay that the bolt asks for, None if it asks for none."""


class Results:
    """Reads a cluster for one topology."""

    def __init__(self, cluster: Cluster, published: Callable[[], Published]) -> None:
        self._cluster, self._published = cluster, published

    # Topics.

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition. Raises UnknownName."""
        logs = self.logs(topic)
        if not 0 <= partition < len(logs):
            raise UnknownName(f"topic {topic!r} has no partition {partition}; it has {len(logs)} partitions")
        return logs[partition]

    def logs(self, topic: str) -> list[PartitionLog]:
        """Return the logs of a topic. Raises UnknownName."""
        if topic not in self._cluster.topics:
            known = ", ".join(sorted(self._cluster.topics))
            raise UnknownName(f"there is no topic {topic!r}; must be one of: {known}")
        return self._cluster.topics[topic].partitions

    def records(self, topic: str) -> list[TopicRecord]:
        """Return the committed records of a topic, partition by partition."""
        return [self.record(log, stored) for log in self.logs(topic) for stored in _visible(log)]

    def record(self, log: PartitionLog, stored: StoredRecord) -> TopicRecord:
        """Return a stored record as a test sees it."""
        headers = tuple(header for header in stored.headers if header[0] != HEADER)
        return TopicRecord(
            log.topic.name, log.number, stored.offset, stored.key, stored.value, headers, stored.timestamp_ms
        )

    # Source records.

    def source_topics(self, spout: str) -> tuple[str, ...]:
        """Return the Kafka topics that a spout reads. Raises UnknownName."""
        spouts = self._published().spouts
        if spout not in spouts:
            raise UnknownName(f"there is no spout {spout!r}; must be one of: {', '.join(spouts) or 'none'}")
        return spouts[spout].topics

    def group_of(self, component: str) -> Any:
        """Return the simulated group of a spout or bolt."""
        return self._cluster.group(self._published().group_of(component))

    def done(self, spout: str) -> list[TopicRecord]:
        """Return the source records that the spout has committed as done."""
        return [record for record, is_done in self._sources(spout) if is_done]

    def pending(self, spout: str) -> list[TopicRecord]:
        """Return the source records that are not done."""
        return [record for record, is_done in self._sources(spout) if not is_done]

    def has_pending(self, spout: str) -> bool:
        """Return whether some source record is not done, at little cost."""
        offsets = self.group_of(spout).offsets
        for topic in self.source_topics(spout):
            for log in self.logs(topic):
                committed = offsets.get((topic, log.number))
                if _end_of_visible(log) > (committed.offset if committed else log.start_offset):
                    return True
        return False

    def _sources(self, spout: str) -> Iterator[tuple[TopicRecord, bool]]:
        offsets = self.group_of(spout).offsets
        for topic in self.source_topics(spout):
            for log in self.logs(topic):
                committed = offsets.get((topic, log.number))
                frontier, done = committed.offset if committed else 0, BitMap64()
                if committed is None or seal_in(committed.metadata, frontier):  # else the state is of before
                    committed_frontier, done = self._state_of(spout, log)
                    frontier = max(frontier, committed_frontier)
                for stored in _visible(log):
                    yield self.record(log, stored), stored.offset < frontier or stored.offset in done

    def _state_of(self, spout: str, source: PartitionLog) -> tuple[int, BitMap64]:
        """Return the frontier of a source partition and what is done above it, as in the spout's state."""
        key = SlotKey(source.topic.name, source.number, source.topic.topic_id).encode()
        (log,) = self.logs(self._published().state_topic(spout))
        newest = None
        for stored in _visible(log):
            newest = stored.value if stored.key == key else newest
        if newest is None:
            return 0, BitMap64()
        state = decode_slot_state(newest)
        return state.frontier, offsets_of(state.done)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        published = self._published()
        topic, spouts = published.dead_letter_topic, spouts_by_topic(published)
        letters = []
        for log in self.logs(topic):
            for stored in _visible(log):
                message = SimulatedMessage(topic, log.number, stored.offset, stored)
                letters.append(dead_letter_of(cast(Any, message), spouts))
        return letters

    # Trees.

    def _place_of(self, root: int) -> Place | None:
        """Return the source record of a root, None for a Python spout's."""
        origin = origin_of(root)
        for slot in self._published().slots:
            if slot.slot == origin.slot:
                return (slot.topic, slot.partition, origin.offset) if slot.topic else None
        return None

    def replays(self, spout: str) -> dict[TopicRecord, int]:
        """Return how often source records were emitted again; those that were not are left out."""
        generations: dict[Place, set[int]] = {}
        for root in self._emitted_roots():
            place = self._place_of(root)
            if place is not None:
                generations.setdefault(place, set()).add(origin_of(root).generation)
        found = {}
        for record, _ in self._sources(spout):
            again = len(generations.get(record.place, ())) - 1
            if again > 0:
                found[record] = again
        return found

    def _emitted_roots(self) -> Iterator[int]:
        published = self._published()
        for log in self.logs(published.ack_init_topic):
            for stored in _visible(log):
                try:
                    yield from decode_ack_init(stored.value or b"").inits["root"].tolist()
                except MalformedRecord:
                    continue
        for topic in {topic for table in published.spouts.values() for topic in table.emits}:
            for log in self.logs(topic):
                for stored in _visible(log):
                    if header := find_header(list(stored.headers)):
                        yield from (anchor.root for anchor in decode_header(header).anchors)

    def failures(self, spout: str) -> list[FailedRecord]:
        """Return every failure of a source record that the ackers have reported, in their order."""
        published = self._published()
        by_place = {record.place: record for record, _ in self._sources(spout)}
        found = []
        for task in published.spout_tasks.get(spout, ()):
            for log in self.logs(published.result_topic(task)):
                for stored in _visible(log):
                    try:
                        failed = decode_result(stored.value or b"").failed
                    except MalformedRecord:
                        continue
                    for each in failed:
                        record = by_place.get(self._place_of(each.root) or ("", 0, 0))
                        if record is not None:
                            why = Failure.of(each)
                            found.append(FailedRecord(record, *why, why.retry, why.retry_after_s))
        return found

    # Bolts.

    def unread(self, bolt: str) -> list[str]:
        """Return the partitions that a bolt has not committed to their ends."""
        offsets = self.group_of(bolt).offsets
        behind = []
        for topic in self._published().bolts[bolt].reads:
            for log in self.logs(topic):
                end = _end_of_visible(log)
                committed = offsets.get((topic, log.number))
                if end and end > (committed.offset if committed else 0):
                    behind.append(f"{topic}/{log.number}")
        return behind

    def everything(self) -> list[str]:
        """Return all records of all topics as lines of text: equal runs have equal ones."""
        return [
            f"{name}/{log.number}/{stored.offset} {stored.timestamp_ms} {stored.producer} "
            f"{'control' if stored.is_control else 'record'} "
            f"{stored.key!r} {stored.value!r} {stored.headers!r}"
            for name in sorted(self._cluster.topics)
            for log in self._cluster.topics[name].partitions
            for stored in log.records
        ]


def decoded(records: Iterable[TopicRecord], decode: Callable[[bytes], Decoded]) -> list[Decoded]:
    """Return the values of records; tombstones are left out."""
    return [decode(record.value) for record in records if record.value is not None]


def _visible(log: PartitionLog) -> Iterator[StoredRecord]:
    return (stored for stored in log.read(log.start_offset, True) if not stored.is_control)


def _end_of_visible(log: PartitionLog) -> int:
    """Return the offset behind the last committed record, 0 if there is none."""
    for stored in reversed(log.records):
        if not stored.is_control and stored.is_committed:
            return stored.offset + 1
    return 0
