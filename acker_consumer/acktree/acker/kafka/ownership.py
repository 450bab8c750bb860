"""Tracks which acker partitions this member of the group owns, and the state of each.

Invariant: a state is created from the committed cut once the partition of both topics is assigned, and
dropped as soon as either is not; only with both does it fold and commit. The callbacks run inside the loop's
own calls.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.acker.folding.cut import Positions
from acktree.acker.folding.partition import Partition
from acktree.core import world
from acktree.wire.errors import AcktreeError

HALF_GRACE_S = 10.0
COMMITTED_DEADLINE_S, RETRY_PAUSE_S = 30.0, 0.1
NO_COMMIT = Positions(0, 0)

log = logging.getLogger("acktree.acker")


class NotCoPartitioned(AcktreeError):
    """The group assigned this acker a partition of one control topic without that of the other."""


@dataclass(slots=True, eq=False)
class Owned:
    """One partition number: the topics (halves) assigned to us, and the state once both are."""

    halves: set[str] = field(default_factory=set)
    half_since_s: float = 0.0
    partition: Partition | None = None
    committed: Positions = NO_COMMIT


class Ownership:
    """Follows the group's rebalances; ``flush`` returns whether all results are with the broker."""

    def __init__(
        self,
        topics: tuple[str, str],
        is_incremental: bool,
        make_partition: Callable[[Positions], Partition],
        on_drop: Callable[[Partition], None],
        flush: Callable[[], bool],
        read_committed: Callable[[Consumer, list[TopicPartition]], list[TopicPartition]],
        now_s: Callable[[], float],
        pause: Callable[[float], None] = world.sleep,
    ) -> None:
        self._read_committed, self._pause = read_committed, pause
        self.topics, self._is_incremental = topics, is_incremental
        self._make_partition, self._on_drop, self._flush, self._now_s = make_partition, on_drop, flush, now_s
        self._owned: dict[int, Owned] = {}
        self._seeks: list[TopicPartition] = []
        self._paused: set[tuple[str, int]] = set()
        self.is_leaving = False
        self.assignments = 0
        self.refolds = 0
        self.failed_commits = 0

    @property
    def partitions(self) -> dict[int, Partition]:
        """The partitions with a state, by number."""
        return {
            number: owned.partition for number, owned in self._owned.items() if owned.partition is not None
        }

    def on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Take over partitions, each from its committed cut, or from the earliest record if it has none.

        Ignored once ``is_leaving`` is set: a rebalance under way may assign some to a member that leaves.
        """
        if self.is_leaving:
            return
        self.assignments += 1
        mine = [(place.topic, place.partition) for place in assigned]
        numbers = sorted({number for _, number in mine})
        cuts = self._committed(consumer, [(topic, number) for number in numbers for topic in self.topics])
        starts = [TopicPartition(*place, cuts[place] or OFFSET_BEGINNING) for place in mine]
        (consumer.incremental_assign if self._is_incremental else consumer.assign)(starts)
        for topic, number in mine:
            self._owned.setdefault(number, Owned(half_since_s=self._now_s())).halves.add(topic)
        for number in numbers:
            owned = self._owned[number]
            self._end(owned)
            if len(owned.halves) == len(self.topics):
                owned.committed = Positions(*(cuts[topic, number] for topic in self.topics))
                self._start(number, owned)
                self._seek(number, [topic for topic in self.topics if (topic, number) not in mine])

    def _committed(self, consumer: Consumer, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the committed offsets, 0 where there is none; retry what a rebalance refuses."""
        if not places:
            return {}
        deadline_s = self._now_s() + COMMITTED_DEADLINE_S
        while True:
            try:
                found = self._read_committed(consumer, [TopicPartition(*place) for place in places])
                for place in found:
                    if place.error is not None:
                        raise KafkaException(place.error)
                return {(place.topic, place.partition): max(place.offset, 0) for place in found}
            except KafkaException as error:
                if self._now_s() > deadline_s:
                    raise
                log.info("action=committed_refused reason=%s", error)
                self._pause(RETRY_PAUSE_S)

    def on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        """Commit the cuts of revoked partitions while the group still accepts them; drop the states."""
        numbers = {place.partition for place in revoked}
        offsets = self._changed_cuts(numbers)
        if offsets and self._flush():
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                self.failed_commits += 1
                log.info("action=commit_refused at=revoke reason=%s", error)
        self._drop(consumer, revoked)

    def on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        """Drop the states of partitions that the group has assigned to another member."""
        self._drop(consumer, lost)

    def on_commit(self, error: KafkaError | None, offsets: Sequence[TopicPartition]) -> None:
        """Record what was committed; a cut that a rebalance refused is committed by the next owner."""
        if error is not None:
            self.failed_commits += 1
            log.info("action=commit_refused reason=%s", error)
            return
        by_place = {(place.topic, place.partition): place for place in offsets}
        for number in {place.partition for place in offsets}:
            halves = [by_place.get((topic, number)) for topic in self.topics]
            inits, acks = halves
            owned = self._owned.get(number)
            if owned is None or inits is None or acks is None or inits.error or acks.error:
                continue
            owned.committed = Positions(inits.offset, acks.offset)

    def commit(self, consumer: Consumer) -> None:
        """Flush the results, and commit the cuts that moved once all results are with the broker."""
        # Life of an ack, step 12.
        offsets = self._changed_cuts(self._owned)
        if not offsets or not self._flush():
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.failed_commits += 1
            log.info("action=commit_refused reason=%s", error)

    @property
    def paused(self) -> frozenset[tuple[str, int]]:
        """The partitions paused because they are ahead, as (topic, number)."""
        return frozenset(self._paused)

    def restart(self, number: int) -> None:
        """Drop a state whose position moved back, and fold again from the last committed cut."""
        owned = self._owned[number]
        log.warning("action=restart partition=%d cut=%d,%d", number, *owned.committed)
        self._end(owned)
        self._start(number, owned)
        self._seek(number, self.topics)

    def continue_at(self, consumer: Consumer, topic: str, number: int, offset: int) -> None:
        """Read a partition that the client has given up from an offset on, and the others as before."""
        self._seeks = [place for place in self._seeks if (place.topic, place.partition) != (topic, number)]
        moved = [TopicPartition(topic, number, offset)]
        if self._is_incremental:
            consumer.incremental_unassign(moved)
            consumer.incremental_assign(moved)
            return
        for other, owned in self._owned.items():
            positions = owned.partition.positions if owned.partition is not None else NO_COMMIT
            places = zip(self.topics, positions, strict=True)
            moved += [
                TopicPartition(half, other, position or OFFSET_BEGINNING)
                for half, position in places
                if half in owned.halves and (half, other) != (topic, number)
            ]
        consumer.assign(moved)

    def seek(self, place: TopicPartition) -> None:
        """Schedule a seek of a partition to an offset."""
        self._seeks.append(place)

    def seek_pending(self, consumer: Consumer) -> None:
        """Perform the scheduled seeks, which a callback cannot; retry later one that comes too early."""
        seeks, self._seeks = self._seeks, []
        for place in seeks:
            try:
                consumer.seek(place)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
                if place.topic in self._owned.get(place.partition, Owned()).halves:
                    self._seeks.append(place)

    def align_topics(self, consumer: Consumer) -> None:
        """Pause the topic of a partition that is far ahead of the other; see TopicAlignment."""
        waiting = {number: part.alignment.choose(part.clock) for number, part in self.partitions.items()}
        ahead = {(self.topics[topic], number) for number, topic in waiting.items() if topic is not None}
        if ahead == self._paused:
            return
        consumer.resume([TopicPartition(*place) for place in sorted(self._paused - ahead)])
        consumer.pause([TopicPartition(*place) for place in sorted(ahead - self._paused)])
        self._paused = ahead

    def refuse_halves(self, partition_counts: Callable[[], set[int]]) -> None:
        """Raise NotCoPartitioned if for HALF_GRACE_S a partition of one topic was ours without the other's.

        While partitions are being added, the topics may differ for a moment: then nothing is raised.
        """
        late = self._now_s() - HALF_GRACE_S
        halves = [
            n for n, owned in self._owned.items() if owned.partition is None and owned.half_since_s < late
        ]
        if halves and len(partition_counts()) == 1:
            (topic,) = self._owned[halves[0]].halves
            raise NotCoPartitioned(
                f"the group assigned partition {halves[0]} of {topic}, but "
                f"{' and '.join(self.topics)} must be assigned together; every member of the group must use "
                "the assignor range"
            )

    def _changed_cuts(self, numbers: object) -> list[TopicPartition]:
        assert isinstance(numbers, set | dict)
        offsets = []
        for number in numbers:
            owned = self._owned.get(number)
            if owned is None or owned.partition is None or owned.partition.cut == owned.committed:
                continue
            cut = zip(self.topics, owned.partition.cut, strict=True)
            offsets += [TopicPartition(topic, number, offset) for topic, offset in cut]
        return offsets

    def _start(self, number: int, owned: Owned) -> None:
        owned.partition = self._make_partition(owned.committed)
        self.refolds += owned.committed != NO_COMMIT
        log.info("action=take_over partition=%d cut=%d,%d", number, *owned.committed)

    def _end(self, owned: Owned) -> None:
        if owned.partition is not None:
            self._on_drop(owned.partition)
        owned.partition, owned.half_since_s = None, self._now_s()

    def _drop(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        # The client would keep a partition paused until it comes back, and then never read it.
        held = [place for place in places if (place.topic, place.partition) in self._paused]
        if held:
            consumer.resume(held)
            self._paused -= {(place.topic, place.partition) for place in held}
        for place in places:
            owned = self._owned.get(place.partition)
            if owned is None:
                continue
            self._end(owned)
            owned.halves.discard(place.topic)
            if not owned.halves:
                del self._owned[place.partition]

    def _seek(self, number: int, topics: Sequence[str]) -> None:
        cut = dict(zip(self.topics, self._owned[number].committed, strict=True))
        for topic in topics:
            self.seek(TopicPartition(topic, number, cut[topic] or OFFSET_BEGINNING))
