"""The way into a worker: its consumer, which input tuples are in hand, and how far each partition is done.

Invariant: a partition's frontier is its smallest offset in hand, or the next one to read if none is; so what
is committed has been acked, failed or set aside, whatever the order. What is done above it is committed as
the offset's metadata, and passed over when it is read again, by whomever.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.done_above import DoneAbove, decode_done, encode_done
from acktree.producers.tuples import Hand, Record, Tuple
from acktree.schemas.clients import BROKER_TIMEOUT_S, as_clear_error, metadata_of
from acktree.schemas.errors import MissingTopic

Place = tuple[str, int]
Revoked = Callable[[list[Place]], None]
Assigned = Callable[[list[Place]], None]

log = logging.getLogger("acktree.bolt")

BATCH_RECORDS = 10_000
"""So many records are taken at once at most."""

ASK_AGAIN_S = 0.2

_PASSING = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._PARTITION_EOF,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._WAIT_COORD,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    )
)


class Inputs:
    """One group member's records and offsets."""

    def __init__(self, consumer: Consumer, bootstrap: str) -> None:
        self.consumer = consumer
        self.hands: dict[Place, Hand] = {}
        self.stopping = False
        self._bootstrap = bootstrap
        self._committed: dict[Place, tuple[int, str]] = {}
        self._above: dict[Place, DoneAbove] = {}
        self._paused = False

    def subscribe(self, topics: Iterable[str], assigned: Assigned, revoked: Revoked, lost: Revoked) -> None:
        """Join the group for some topics; the callbacks run inside ``read``."""

        def forget(places: list[Place]) -> None:
            for place in places:
                self.hands.pop(place, None)
                self._committed.pop(place, None)
                self._above.pop(place, None)

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            revoked(_places(partitions))
            forget(_places(partitions))

        def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            lost(_places(partitions))
            forget(_places(partitions))

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            forget(_places(partitions))
            if self._paused:
                self.consumer.resume(self.consumer.assignment())
                self._paused = False
            self._recall(partitions)
            assigned(_places(partitions))

        self.consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def read(self, wait_s: float, most: int = BATCH_RECORDS) -> Sequence[Record]:
        """Return what is here and not done, up to ``most`` records; if nothing is, wait for the first one."""
        found = cast(Sequence[Record], self.consumer.consume(most, 0) or self.consumer.consume(1, wait_s))
        return [record for record in found if not self._is_done(record)] if self._above else found

    def _is_done(self, record: Record) -> bool:
        above = self._above.get((record.topic() or "", record.partition() or 0))
        return above is not None and record.error() is None and above.holds(record.offset() or 0)

    def check(self, error: KafkaError) -> None:
        """Pass over an error that will pass; raise the clear form of any other."""
        check_error(error, self._bootstrap)

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
        """Return what to commit, offset and metadata, where it is not what was committed last."""
        moved = []
        for position in self.consumer.position(self.consumer.assignment()):
            if position.offset < 0:
                continue
            place = position.topic, position.partition
            frontier = self._frontier(place, position.offset)
            if self._committed.get(place) != frontier:
                moved.append(TopicPartition(*place, frontier[0], metadata=frontier[1]))
        return moved

    def _frontier(self, place: Place, next_offset: int) -> tuple[int, str]:
        """Return a partition's frontier, and what is done above it as text."""
        hand, above = self.hands.get(place), self._above.get(place)
        if not hand and above is None:
            return next_offset, ""
        waiting = list(hand or ())
        if above is not None and next_offset < above.end:
            waiting += sorted(offset for offset in above.open if offset >= next_offset)
            next_offset = above.end
        elif above is not None:
            del self._above[place]
        frontier = waiting[0] if waiting else next_offset
        return frontier, encode_done(frontier, next_offset, waiting)

    def note_committed(self, offsets: Sequence[TopicPartition]) -> None:
        """Remember what is committed."""
        for each in offsets:
            self._committed[each.topic, each.partition] = each.offset, metadata_of(each)

    def rewind(self) -> None:
        """Read again from the committed offsets, from the beginning where there is none.

        A position is unknown from here to the first record, so no frontier can pass what was rewound.
        """
        self.hands.clear()
        self._committed.clear()
        self._above.clear()
        for place in self._recall(self.consumer.assignment()):
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            self.consumer.seek(place)

    def _recall(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return what is committed, and pass over from here on what is done above it."""
        committed = self._ask_committed(partitions) if partitions else []
        for place in committed:
            above = decode_done(metadata_of(place), place.offset)
            if above is not None:
                self._above[place.topic, place.partition] = above
        return committed

    def _ask_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Ask until the broker answers, or the worker is to stop. Raises what ``check`` raises."""
        while True:
            try:
                answers = self.consumer.committed(partitions, timeout=BROKER_TIMEOUT_S)
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                return answers
            except KafkaException as error:
                told = error.args[0]
                self.check(told)
                if self.stopping:
                    raise as_clear_error(told, self._bootstrap) from error
                log.warning("no committed offsets yet: %s", told.str(), extra={"action": "ask_again"})
                time.sleep(ASK_AGAIN_S)

    def lag(self) -> int:
        """Return how many records wait in the assigned partitions, by what was last fetched."""
        waiting = 0
        for position in self.consumer.position(self.consumer.assignment()):
            bounds = self.consumer.get_watermark_offsets(position, cached=True)
            if bounds and position.offset >= 0:
                waiting += max(0, bounds[1] - position.offset)
        return waiting


def check_error(error: KafkaError, bootstrap: str) -> None:
    """Pass over an error that will pass; raise MissingTopic or the clear form of any other."""
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        raise MissingTopic(
            f"{error.str()}; a topic that is read is missing, create it: acktree topology apply FILE"
        )
    if error.fatal() or not (error.retriable() or error.code() in _PASSING):
        raise as_clear_error(error, bootstrap)


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]
