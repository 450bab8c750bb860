"""The way into a worker: its consumer, which input tuples are in hand, and how far each partition is done.

Invariant: a partition's frontier is its smallest offset in hand, or the next one to execute if none is; so
what is committed has been acked, failed or set aside, whatever the order. What is done above it is committed
as the offset's metadata, and passed over when it is read again, by whomever. What was read and not executed
waits here, and is forgotten with its partition.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.kafka.done_above import DoneAbove, decode_done, encode_done
from acktree.producers.tuples import Hand, Record, Tuple
from acktree.schemas.clients import as_clear_error, metadata_of
from acktree.schemas.errors import MissingTopic

Place = tuple[str, int]
Revoked = Callable[[list[Place]], None]
Assigned = Callable[[list[Place]], None]
AskCommitted = Callable[[list[TopicPartition]], list[TopicPartition]]
TakeOver = Callable[[Sequence[Place]], None]

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
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
    )
)


class Inputs:
    """One group member's records and offsets."""

    def __init__(
        self,
        consumer: Consumer,
        bootstrap: str,
        ask_committed: AskCommitted,
        owner: bytes = b"",
        take_over: TakeOver = lambda _: None,
    ) -> None:
        """``owner`` goes into every commit; ``take_over`` ends what dead owners of partitions left open.

        It is called before ``ask_committed`` asks the broker: a transaction may hold committed offsets back.
        """
        self.consumer = consumer
        self._owner, self._take_over, self._ask = owner, take_over, ask_committed
        self._named: set[Place] = set()
        self.hands: dict[Place, Hand] = {}
        self.stopping = False
        self._bootstrap = bootstrap
        self._committed: dict[Place, tuple[int, str]] = {}
        self._above: dict[Place, DoneAbove] = {}
        self._paused: set[Place] = set()
        self._waiting: deque[Record] = deque()

    @property
    def paused(self) -> int:
        """How many partitions are not read because of the tuples in hand."""
        return len(self._paused)

    def subscribe(self, topics: Iterable[str], assigned: Assigned, revoked: Revoked, lost: Revoked) -> None:
        """Join the group for some topics; the callbacks run inside ``read``."""

        def forget(places: list[Place]) -> None:
            for place in places:
                self.hands.pop(place, None)
                self._committed.pop(place, None)
                self._above.pop(place, None)
                self._named.discard(place)
            gone = frozenset(places)
            self._waiting = deque(record for record in self._waiting if _place_of(record) not in gone)

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
                self._paused.clear()
            self._take_over(_places(partitions))
            self._recall(partitions)
            assigned(_places(partitions))

        self.consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def read(self, wait_s: float, most: int = BATCH_RECORDS) -> Sequence[Record]:
        """Return what is here and not done, up to ``most`` records; where nothing is, wait for one.

        What was put back comes first, and the group is served all the same; nothing of a paused partition
        comes.
        """
        found = self._poll(max(1, most - len(self._waiting)), 0)
        if not found and not self._is_any_ready():
            found = self._poll(1, wait_s)
        if not self._waiting:
            return found
        self._waiting.extend(found)
        ready, held = list[Record](), deque[Record]()
        for record in self._waiting:
            is_ready = len(ready) < most and _place_of(record) not in self._paused
            (ready if is_ready else held).append(record)
        self._waiting = held
        return ready

    def _is_any_ready(self) -> bool:
        return any(_place_of(record) not in self._paused for record in self._waiting)

    def _poll(self, most: int, wait_s: float) -> Sequence[Record]:
        """Serve the group, and return what is fetched and not done."""
        found = cast(Sequence[Record], self.consumer.consume(most, wait_s))
        return [record for record in found if not self._is_done(record)] if self._above else found

    def put_back(self, records: Sequence[Record]) -> None:
        """Let records wait that were read and not executed; they are the next ones to be read."""
        self._waiting.extendleft(reversed(records))

    def _is_done(self, record: Record) -> bool:
        above = self._above.get(_place_of(record))
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

    def places(self) -> list[Place]:
        """Return the partitions that are read."""
        return _places(self.consumer.assignment())

    def in_hand(self, places: Iterable[Place] | None = None) -> list[Tuple]:
        """Return the tuples in hand, of some partitions or of all."""
        chosen = self.hands if places is None else [place for place in places if place in self.hands]
        return [tuple for place in chosen for tuple in self.hands[place].values()]

    def room(self, most: int) -> int:
        """Return how many records may be read; ``most`` tuples in hand stop it until half are gone.

        Where there are several topics, partitions that hold less than an even share of ``most`` are read on
        until they have it: a join whose one side fills all waits for the other. So there are never more than
        twice as many in hand.
        """
        count = sum(map(len, self.hands.values()))
        if not self._paused and count < most:
            return min(BATCH_RECORDS, most - count)
        mine = {(place.topic, place.partition) for place in self.consumer.assignment()}
        share = max(1, most // max(1, len(mine)))
        held = {place: len(self.hands.get(place, ())) for place in mine}
        self._paused &= mine
        if count <= most // 2:
            self._resume(set(self._paused))
        else:
            self._resume({place for place in self._paused if held[place] <= share // 2})
            if count >= most:
                is_join = len({topic for topic, _ in mine}) > 1
                full = {place for place in mine if held[place] >= share} if is_join else mine
                self._pause(full - self._paused, count)
        left = most - count
        if self._paused:
            left = sum(max(0, share - held[place]) for place in mine - self._paused)
        return min(BATCH_RECORDS, max(1, left))

    def _pause(self, places: set[Place], count: int) -> None:
        if places:
            self.consumer.pause([TopicPartition(*place) for place in places])
            self._paused |= places
            log.warning(
                "%d tuples in hand: %s not read until some are acked or failed",
                count,
                ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)),
                extra={"action": "paused"},
            )

    def _resume(self, places: set[Place]) -> None:
        if places:
            self.consumer.resume([TopicPartition(*place) for place in places])
            self._paused -= places

    @property
    def is_named(self) -> bool:
        """Whether a commit names the owner, so that whoever comes after it knows whom it came after.

        One partition is enough: whoever gets it finds the name.
        """
        return not self._owner or bool(self._named)

    def frontiers(self, leaving: Collection[Place] = ()) -> list[TopicPartition]:
        """Return what to commit, offset and metadata, where it is not what was committed last.

        The commit of a partition that is ``leaving`` names no owner.
        """
        moved, waiting = [], self._first_waiting()
        for position in self.consumer.position(self.consumer.assignment()):
            if position.offset < 0:
                continue
            place = position.topic, position.partition
            owner = b"" if place in leaving else self._owner
            frontier = self._frontier(place, waiting.get(place, position.offset), owner)
            if self._committed.get(place) != frontier:
                moved.append(TopicPartition(*place, frontier[0], metadata=frontier[1]))
        return moved

    def _first_waiting(self) -> dict[Place, int]:
        """Return the first offset of each partition that waits to be executed."""
        first: dict[Place, int] = {}
        for record in self._waiting:
            if record.error() is None:
                first.setdefault(_place_of(record), record.offset() or 0)
        return first

    def _frontier(self, place: Place, next_offset: int, owner: bytes) -> tuple[int, str]:
        """Return a partition's frontier, and what is done above it as text."""
        hand, above = self.hands.get(place), self._above.get(place)
        if not hand and above is None:
            return next_offset, encode_done(next_offset, next_offset, (), owner)
        waiting = list(hand or ())
        if above is not None and next_offset < above.end:
            waiting += sorted(offset for offset in above.open if offset >= next_offset)
            next_offset = above.end
        elif above is not None:
            del self._above[place]
        frontier = waiting[0] if waiting else next_offset
        return frontier, encode_done(frontier, next_offset, waiting, owner)

    def note_committed(self, offsets: Sequence[TopicPartition], leaving: Collection[Place] = ()) -> None:
        """Remember what is committed."""
        for each in offsets:
            self._committed[each.topic, each.partition] = each.offset, metadata_of(each)
        if self._owner:
            self._named |= set(_places(offsets))
            self._named -= set(leaving)

    def rewind(self) -> None:
        """Read again from the committed offsets, from the beginning where there is none.

        A position is unknown from here to the first record, so no frontier can pass what was rewound.
        """
        self.hands.clear()
        self._waiting.clear()
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
                answers = self._ask(partitions)
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
        """Return how many records wait in the assigned partitions or here, by what was last fetched."""
        waiting = len(self._waiting)
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


def _place_of(record: Record) -> Place:
    return record.topic() or "", record.partition() or 0


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]
