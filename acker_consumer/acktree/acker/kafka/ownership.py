"""Tracks which acker partitions this member of the group owns, and the state of each.

Invariant: a state is created from the committed cut once the partition of both topics is assigned, and
dropped as soon as either is not; only with both does it fold and commit. The callbacks run inside the loop's
own calls.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.acker.folding.cut import Positions
from acktree.acker.folding.partition import Partition
from acktree.core import world
from acktree.core.kafka.errors import is_transient
from acktree.core.kafka.log_reader import LogReader, Place, epoch_of
from acktree.wire.errors import AcktreeError
from acktree.wire.state_records import LogEpoch

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
        make_partition: Callable[[Positions], Partition],
        on_drop: Callable[[Partition], None],
        flush: Callable[[], bool],
        read_committed: Callable[[Consumer, list[TopicPartition]], list[TopicPartition]],
        now_s: Callable[[], float],
        pause: Callable[[float], None] = world.sleep,
    ) -> None:
        self._read_committed, self._pause = read_committed, pause
        self.topics = topics
        self._make_partition, self._on_drop, self._flush, self._now_s = make_partition, on_drop, flush, now_s
        self._owned: dict[int, Owned] = {}
        self._other_halves: dict[Place, LogEpoch] = {}
        self.paused: frozenset[Place] = frozenset()
        """The partitions that wait because they are ahead."""
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

    def on_assign(self, reader: LogReader, assigned: list[TopicPartition]) -> None:
        """Take over partitions, each from its committed cut, or from the earliest record if it has none.

        Ignored once ``is_leaving`` is set: a rebalance under way may assign some to a member that leaves.
        """
        if self.is_leaving:
            return
        self.assignments += 1
        mine = [(place.topic, place.partition) for place in assigned]
        numbers = sorted({number for _, number in mine})
        cuts = self._committed(
            reader.consumer, [(topic, number) for number in numbers for topic in self.topics]
        )
        if self.is_leaving:
            return
        others = dict(cuts)
        _begin(reader, {place: others.pop(place) for place in mine})
        for topic, number in mine:
            self._owned.setdefault(number, Owned(half_since_s=self._now_s())).halves.add(topic)
        for number in numbers:
            owned = self._owned[number]
            self._end(owned)
            if len(owned.halves) == len(self.topics):
                owned.committed = Positions(*(cuts[topic, number].end for topic in self.topics))
                owned.partition = self._make_partition(owned.committed)
                self.refolds += owned.committed != NO_COMMIT
                log.info("action=take_over partition=%d cut=%d,%d", number, *owned.committed)
                self._other_halves |= {place: at for place, at in others.items() if place[1] == number}

    def begin_other_halves(self, reader: LogReader) -> Collection[Place]:
        """Read the halves from the cut on that were assigned before the other ones; return which.

        What has come of them does not count. This is not for callbacks: what is fetched may outlive them.
        """
        cuts, self._other_halves = self._other_halves, {}
        if cuts:
            _begin(reader, cuts)
        return cuts.keys()

    def _committed(self, consumer: Consumer, places: list[Place]) -> dict[Place, LogEpoch]:
        """Return the committed offsets, 0 where there is none, and whose logs were read up to them.

        Retries what a rebalance refuses, for a while, and waits for a broker that is away; meanwhile this
        member may be asked to leave, and its answer is then of no use.
        """
        if not places:
            return {}
        deadline_s = self._now_s() + COMMITTED_DEADLINE_S
        while True:
            try:
                found = self._read_committed(consumer, [TopicPartition(*place) for place in places])
                for place in found:
                    if place.error is not None:
                        raise KafkaException(place.error)
                return {(place.topic, place.partition): epoch_of(place) for place in found}
            except KafkaException as error:
                if self.is_leaving:
                    return {}
                if not is_transient(error.args[0]) and self._now_s() > deadline_s:
                    raise
                log.info("action=committed_refused reason=%s", error)
                self._pause(RETRY_PAUSE_S)

    def on_revoke(self, reader: LogReader, revoked: list[TopicPartition]) -> None:
        """Commit the cuts of revoked partitions while the group still accepts them; drop the states."""
        numbers = {place.partition for place in revoked}
        offsets = self._changed_cuts(numbers, reader)
        if offsets and self._flush():
            try:
                reader.consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                self.failed_commits += 1
                log.info("action=commit_refused at=revoke reason=%s", error)
        self._drop(reader, revoked)

    def on_lost(self, reader: LogReader, lost: list[TopicPartition]) -> None:
        """Drop the states of partitions that the group has assigned to another member."""
        self._drop(reader, lost)

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

    def commit(self, reader: LogReader) -> None:
        """Flush the results, and commit the cuts that moved once all results are with the broker."""
        # Life of an ack, step 12.
        offsets = self._changed_cuts(self._owned, reader)
        if not offsets or not self._flush():
            return
        try:
            reader.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.failed_commits += 1
            log.info("action=commit_refused reason=%s", error)

    def align_topics(self, reader: LogReader) -> None:
        """Pause the topic of a partition that is far ahead of the other; see TopicAlignment."""
        ahead = set()
        for number, partition in self.partitions.items():
            is_at_end = [reader.is_at_end((topic, number)) for topic in self.topics]
            waiting = partition.alignment.choose(partition.clock, is_at_end)
            if waiting is not None:
                ahead.add((self.topics[waiting], number))
        reader.resume([place for place in reader.places if place not in ahead])
        reader.pause(sorted(ahead))
        self.paused = frozenset(ahead)

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

    def _changed_cuts(self, numbers: Iterable[int], reader: LogReader) -> list[TopicPartition]:
        offsets = []
        for number in numbers:
            owned = self._owned.get(number)
            if owned is None or owned.partition is None or owned.partition.cut == owned.committed:
                continue
            for topic, offset in zip(self.topics, owned.partition.cut, strict=True):
                epoch = reader.epoch((topic, number)).epoch
                offsets.append(TopicPartition(topic, number, offset, leader_epoch=epoch))
        return offsets

    def _end(self, owned: Owned) -> None:
        if owned.partition is not None:
            self._on_drop(owned.partition)
        owned.partition, owned.half_since_s = None, self._now_s()

    def _drop(self, reader: LogReader, places: list[TopicPartition]) -> None:
        dropped = [(place.topic, place.partition) for place in places]
        reader.forget(dropped)
        for place in dropped:
            self._other_halves.pop(place, None)
            owned = self._owned.get(place[1])
            if owned is None:
                continue
            self._end(owned)
            owned.halves.discard(place[0])
            if not owned.halves:
                del self._owned[place[1]]


def _begin(reader: LogReader, cuts: Mapping[Place, LogEpoch]) -> None:
    """Read from the cuts on, or from the earliest record where there is none."""
    reader.begin({place: cut.end or OFFSET_BEGINNING for place, cut in cuts.items()}, cuts)
