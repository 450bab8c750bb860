"""A worker's input: its consumer, the tuples in hand, and how far each partition is done.

Invariant: a partition's frontier is its smallest offset in hand, or the next one to execute if none is; so
everything below it was acked, failed or rejected, in whatever order. What is done above it is committed as
the offset's metadata, and skipped by whoever reads it again. Records that were read but not executed wait
here, and are discarded when their partition is revoked.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.collecting.done_above import DoneAbove, decode_done, encode_all_done, encode_done
from acktree.producers.kafka.deadline_call import close_consumer
from acktree.producers.tuples import Hand, Record, Tuple
from acktree.schemas import world
from acktree.schemas.clients import metadata_of
from acktree.schemas.errors import MissingTopic
from acktree.schemas.kafka_errors import as_clear_error, is_membership_lost, is_missing, is_transient
from acktree.schemas.outages import log_retry
from acktree.schemas.progress import Progress

Place = tuple[str, int]
Revoked = Callable[[list[Place]], None]
Assigned = Callable[[list[Place]], None]
FetchCommitted = Callable[[list[TopicPartition]], list[TopicPartition]]
FencePreviousOwners = Callable[[Sequence[Place]], None]

log = logging.getLogger("acktree.bolt")

BATCH_RECORDS = 10_000
"""The most records to read at once."""

RETRY_INTERVAL_S = 0.2
_PLACES = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)


class Inputs:
    """One group member's records and offsets."""

    def __init__(
        self,
        consumer: Consumer,
        bootstrap: str,
        fetch_committed: FetchCommitted,
        owner: bytes = b"",
        fence_previous_owners: FencePreviousOwners = lambda _: None,
        progress: Progress | None = None,
    ) -> None:
        """``owner`` goes into every commit; ``fence_previous_owners`` ends transactions of dead ones.

        It is called before ``fetch_committed``: an open transaction may hold back the committed offsets.
        ``progress``: that of the loop that waits here for the broker.
        """
        self.consumer, self._progress = consumer, progress or Progress()
        self._owner, self._fence_previous_owners, self._fetch = owner, fence_previous_owners, fetch_committed
        self._naming_owner: set[Place] = set()
        self.hands: dict[Place, Hand] = {}
        self.stopping = self._closing = False
        self._bootstrap = bootstrap
        self._committed: dict[Place, tuple[int, str]] = {}
        self._above: dict[Place, DoneAbove] = {}
        self._paused: set[Place] = set()
        self._waiting: deque[Record] = deque()

    @property
    def paused(self) -> int:
        """How many partitions are paused because of the tuples in hand."""
        return len(self._paused)

    def subscribe(self, topics: Iterable[str], assigned: Assigned, revoked: Revoked, lost: Revoked) -> None:
        """Subscribe to topics; the callbacks run inside ``read``."""

        def clear(places: list[Place]) -> None:
            # The client would keep a partition paused until it comes back, and then never read it.
            self._resume(self._paused & set(places))
            for place in places:
                self.hands.pop(place, None)
                self._committed.pop(place, None)
                self._above.pop(place, None)
                self._naming_owner.discard(place)
            cleared = frozenset(places)
            self._waiting = deque(record for record in self._waiting if _place_of(record) not in cleared)

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            revoked(_places(partitions))
            clear(_places(partitions))

        def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            lost(_places(partitions))
            clear(_places(partitions))

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            if self._closing:  # by a rebalance that was under way: nothing of them is read any more
                return
            clear(_places(partitions))
            self._resume(set(self._paused))
            self._fence_previous_owners(_places(partitions))
            self._load_committed(partitions)
            assigned(_places(partitions))

        self.consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)

    def read(self, wait_s: float, max_records: int = BATCH_RECORDS) -> Sequence[Record]:
        """Return up to ``max_records`` records that are not done yet; if there is none, wait for one.

        Records that were put back come first, though the group is served in any case; none comes from a
        paused partition.
        """
        # Life of an ack, step 1.
        found = self._poll(max(1, max_records - len(self._waiting)), 0)
        if not found and not self._is_any_ready():
            found = self._poll(1, wait_s)
        if not self._waiting:
            return found
        self._waiting.extend(found)
        ready, held = list[Record](), deque[Record]()
        for record in self._waiting:
            is_ready = len(ready) < max_records and _place_of(record) not in self._paused
            (ready if is_ready else held).append(record)
        self._waiting = held
        return ready

    def _is_any_ready(self) -> bool:
        return any(_place_of(record) not in self._paused for record in self._waiting)

    def _poll(self, max_records: int, wait_s: float) -> Sequence[Record]:
        """Serve the group, and return fetched records that are not done yet."""
        found = cast(Sequence[Record], self.consumer.consume(max_records, wait_s))
        return [record for record in found if not self._is_done(record)] if self._above else found

    def put_back(self, records: Sequence[Record]) -> None:
        """Keep records that were read but not executed; ``read`` returns them first."""
        self._waiting.extendleft(reversed(records))

    def _is_done(self, record: Record) -> bool:
        above = self._above.get(_place_of(record))
        return above is not None and record.error() is None and above.holds(record.offset() or 0)

    def check(self, error: KafkaError) -> None:
        """Ignore a transient error; raise the clear form of any other."""
        check_error(error, self._bootstrap)

    def hand(self, topic: str, partition: int) -> Hand:
        """Return the tuples of one partition that are in hand."""
        place = topic, partition
        found = self.hands.get(place)
        if found is None:
            found = self.hands[place] = {}
        return found

    def places(self) -> list[Place]:
        """Return the assigned partitions."""
        return _places(self.consumer.assignment())

    @property
    def has_hand(self) -> bool:
        """Whether any tuple is in hand."""
        return any(self.hands.values())

    def in_hand(self, places: Iterable[Place] | None = None) -> list[Tuple]:
        """Return the tuples in hand, of some partitions or of all of them."""
        chosen = self.hands if places is None else [place for place in places if place in self.hands]
        return [tup for place in chosen for tup in self.hands[place].values()]

    def room(self, max_in_hand: int) -> int:
        """Return how many records may be read; at ``max_in_hand`` tuples reading stops until half are done.

        If there are several topics, partitions below an even share of ``max_in_hand`` stay readable up to
        that share: a join whose one side is full needs the other. So at most twice ``max_in_hand`` tuples are
        in hand.
        """
        count = sum(map(len, self.hands.values()))
        if not self._paused and count < max_in_hand:
            return min(BATCH_RECORDS, max_in_hand - count)
        assigned = {(place.topic, place.partition) for place in self.consumer.assignment()}
        even_share = max(1, max_in_hand // max(1, len(assigned)))
        held = {place: len(self.hands.get(place, ())) for place in assigned}
        self._paused &= assigned
        if count <= max_in_hand // 2:
            self._resume(set(self._paused))
        else:
            self._resume({place for place in self._paused if held[place] <= even_share // 2})
            if count >= max_in_hand:
                is_join = len({topic for topic, _ in assigned}) > 1
                full = {place for place in assigned if held[place] >= even_share} if is_join else assigned
                self._pause(full - self._paused, count)
        left = max_in_hand - count
        if self._paused:
            left = sum(max(0, even_share - held[place]) for place in assigned - self._paused)
        return min(BATCH_RECORDS, max(1, left))

    def _pause(self, places: set[Place], count: int) -> None:
        if places:
            self.consumer.pause([TopicPartition(*place) for place in sorted(places)])
            self._paused |= places
            log.warning(
                "%d tuples in hand: %s paused until some are acked or failed",
                count,
                ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)),
                extra={"action": "paused"},
            )

    def _resume(self, places: set[Place]) -> None:
        if places:
            self.consumer.resume([TopicPartition(*place) for place in sorted(places)])
            self._paused -= places

    @property
    def names_owner(self) -> bool:
        """Whether a commit names this owner, so that its successor knows whom to fence.

        One partition is enough: whoever gets that one finds the name.
        """
        return not self._owner or bool(self._naming_owner)

    def frontiers(self, leaving: Collection[Place] = ()) -> list[TopicPartition]:
        """Return offsets and metadata to commit, of the partitions where they have changed.

        For a partition that is ``leaving`` the commit names no owner.
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
        """Return the first offset that waits to be executed, by partition."""
        first: dict[Place, int] = {}
        for record in self._waiting:
            if record.error() is None:
                first.setdefault(_place_of(record), record.offset() or 0)
        return first

    def _frontier(self, place: Place, next_offset: int, owner: bytes) -> tuple[int, str]:
        """Return a partition's frontier, and what is done above it as text."""
        hand, above = self.hands.get(place), self._above.get(place)
        if not hand and above is None:
            return next_offset, encode_all_done(next_offset, owner)
        waiting = list(hand or ())
        if above is not None and next_offset < above.end:
            waiting += sorted(offset for offset in above.open if offset >= next_offset)
            next_offset = above.end
        elif above is not None:
            del self._above[place]
        frontier = waiting[0] if waiting else next_offset
        return frontier, encode_done(frontier, next_offset, waiting, owner)

    def mark_committed(self, offsets: Sequence[TopicPartition], leaving: Collection[Place] = ()) -> None:
        """Remember committed offsets, so that ``frontiers`` returns only changes."""
        for committed in offsets:
            self._committed[committed.topic, committed.partition] = committed.offset, metadata_of(committed)
        if self._owner:
            self._naming_owner |= set(_places(offsets))
            self._naming_owner -= set(leaving)

    def rewind(self) -> None:
        """Seek to the committed offsets, to the beginning where there is none.

        A position is unknown until the first record is read, so no frontier can get ahead of the rewind.
        """
        self.hands.clear()
        self._waiting.clear()
        self._committed.clear()
        self._above.clear()
        for place in self._load_committed(self.consumer.assignment()):
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
            self.consumer.seek(place)

    def _load_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the committed offsets, and from now on skip what is done above them."""
        with self._progress.waiting():
            committed = self._fetch_committed(partitions) if partitions else []
        for place in committed:
            above = decode_done(metadata_of(place), place.offset)
            if above is not None:
                self._above[place.topic, place.partition] = above
        return committed

    def _fetch_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Retry until the broker answers or the worker is asked to stop. Raises what ``check`` raises."""
        while True:
            try:
                answers = self._fetch(partitions)
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                return answers
            except KafkaException as error:
                kafka_error = error.args[0]
                self.check(kafka_error)
                if self.stopping:
                    raise as_clear_error(kafka_error, self._bootstrap) from error
                log_retry(log, "no committed offsets yet: %s", kafka_error.str(), action="ask_again")
                world.sleep(RETRY_INTERVAL_S)

    def close(self) -> None:
        """Leave the group; partitions that are assigned meanwhile go to the next member."""
        self._closing = True
        close_consumer(self.consumer)

    def lag(self) -> int:
        """Return how many records are still to be executed, by the high watermarks last fetched."""
        waiting = len(self._waiting)
        for position in self.consumer.position(self.consumer.assignment()):
            bounds = self.consumer.get_watermark_offsets(position, cached=True)
            if bounds and position.offset >= 0:
                waiting += max(0, bounds[1] - position.offset)
        return waiting


def check_error(error: KafkaError, bootstrap: str) -> None:
    """Ignore an error that passes or marks a place; raise MissingTopic or the clear form of any other."""
    if is_missing(error):
        raise MissingTopic(
            f"{error.str()}; an input topic is missing, create it: acktree topology apply FILE"
        )
    passes = is_transient(error) or is_membership_lost(error) or error.code() in _PLACES
    if error.fatal() or not passes:
        raise as_clear_error(error, bootstrap)


def _place_of(record: Record) -> Place:
    return record.topic() or "", record.partition() or 0


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]
