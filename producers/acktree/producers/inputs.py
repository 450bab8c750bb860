"""The way into a worker: its consumer, which input tuples are in hand, and how far each partition is done.

Invariant: a partition's frontier is its smallest offset in hand, or the next one to read if none is; so what
is committed has been acked, failed or set aside, whatever the order.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from acktree.producers.tuples import Hand, Record, Tuple
from acktree.schemas.clients import BROKER_TIMEOUT_S, as_clear_error
from acktree.schemas.errors import MissingTopic

Place = tuple[str, int]
Revoked = Callable[[list[Place]], None]
Assigned = Callable[[list[Place]], None]

BATCH_RECORDS = 10_000
"""So many records are taken at once at most."""

_PASSING = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._AUTO_OFFSET_RESET,
    )
)


class Inputs:
    """One group member's records and offsets."""

    def __init__(self, consumer: Consumer, bootstrap: str) -> None:
        self.consumer = consumer
        self.hands: dict[Place, Hand] = {}
        self._bootstrap = bootstrap
        self._committed: dict[Place, int] = {}
        self._paused = False

    def subscribe(self, topics: Iterable[str], assigned: Assigned, revoked: Revoked, lost: Revoked) -> None:
        """Join the group for some topics; the callbacks run inside ``read``."""

        def forget(places: list[Place]) -> None:
            for place in places:
                self.hands.pop(place, None)
                self._committed.pop(place, None)

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            revoked(_places(partitions))
            forget(_places(partitions))

        def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            lost(_places(partitions))
            forget(_places(partitions))

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            forget(_places(partitions))
            self._paused = False
            assigned(_places(partitions))

        self.consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def read(self, wait_s: float, most: int = BATCH_RECORDS) -> Sequence[Record]:
        """Return what is here, up to ``most`` records; if nothing is, wait for the first one."""
        found = self.consumer.consume(most, 0) or self.consumer.consume(1, wait_s)
        return cast(Sequence[Record], found)

    def check(self, error: KafkaError) -> None:
        """Pass over an error that will pass; raise the clear form of any other."""
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise MissingTopic(
                f"{error.str()}; a topic the bolt reads is missing, create it: acktree topology apply FILE"
            )
        if error.fatal() or not (error.retriable() or error.code() in _PASSING):
            raise as_clear_error(error, self._bootstrap)

    def hand(self, topic: str, partition: int) -> Hand:
        """Return the tuples of one partition that are in hand."""
        place = topic, partition
        found = self.hands.get(place)
        if found is None:
            found = self.hands[place] = {}
        return found

    def in_hand(self, places: Iterable[Place] | None = None) -> list[Tuple]:
        """Return the tuples in hand, of some partitions or of all."""
        chosen = self.hands if places is None else [place for place in places if place in self.hands]
        return [tuple for place in chosen for tuple in self.hands[place].values()]

    def room(self, most: int) -> int:
        """Return how many records may be read; ``most`` tuples in hand stop it until half are gone."""
        count = sum(map(len, self.hands.values()))
        if not self._paused and count >= most:
            self.consumer.pause(self.consumer.assignment())
            self._paused = True
        elif self._paused and count <= most // 2:
            self.consumer.resume(self.consumer.assignment())
            self._paused = False
        return min(BATCH_RECORDS, max(1, most - count))

    def frontiers(self) -> list[TopicPartition]:
        """Return the offsets to commit: those that moved since they were last committed."""
        moved = []
        for position in self.consumer.position(self.consumer.assignment()):
            place = position.topic, position.partition
            hand = self.hands.get(place)
            next_offset = next(iter(hand)) if hand else position.offset
            if next_offset >= 0 and self._committed.get(place) != next_offset:
                moved.append(TopicPartition(*place, next_offset))
        return moved

    def note_committed(self, offsets: Sequence[TopicPartition]) -> None:
        """Remember what is committed."""
        self._committed.update(((each.topic, each.partition), each.offset) for each in offsets)

    def rewind(self) -> None:
        """Read again from the committed offsets, from the beginning where there is none.

        A position is unknown from here to the first record, so no frontier can pass what was rewound.
        """
        self.hands.clear()
        self._committed.clear()
        for place in self.consumer.committed(self.consumer.assignment(), timeout=BROKER_TIMEOUT_S):
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            self.consumer.seek(place)

    def lag(self) -> int:
        """Return how many records wait in the assigned partitions, by what was last fetched."""
        waiting = 0
        for position in self.consumer.position(self.consumer.assignment()):
            bounds = self.consumer.get_watermark_offsets(position, cached=True)
            if bounds and position.offset >= 0:
                waiting += max(0, bounds[1] - position.offset)
        return waiting


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]
