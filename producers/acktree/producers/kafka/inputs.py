"""Reads a worker's input: its consumer, the tuples in hand, and how far each partition is done.

Invariant: a partition's frontier is its smallest offset in hand, or the next one to execute if none is; so
everything below it was acked, failed or rejected, in whatever order. The offsets done above it are committed
as metadata, and skipped by the next reader. Records that were read but not executed wait here, and are
discarded when their partition is revoked. Only this module decides where reading begins: an offset missing
from the log is noticed, never silently replaced by another one.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.errors import MissingTopic
from acktree.core.kafka import errors
from acktree.core.kafka.clients import make_admin, metadata_of, refuse_missing, retry_until_ready
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, epoch_of
from acktree.core.kafka.outages import log_retry
from acktree.core.kafka.settings import Settings
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.arithmetic.done_above import (
    DoneAbove,
    decode_done,
    encode_all_done,
    encode_done,
)
from acktree.producers.kafka.back_pressure import BATCH_RECORDS, BackPressure
from acktree.producers.kafka.deadline_call import close_consumer
from acktree.producers.tuples import Hand, Place, Record, Tuple, place_of
from acktree.wire.state_records import LogEpoch

Revoked = Callable[[list[Place]], None]
Assigned = Callable[[list[Place]], None]
FetchCommitted = Callable[[list[TopicPartition]], list[TopicPartition]]
FencePreviousOwners = Callable[[Sequence[Place]], None]

log = logging.getLogger("acktree.bolt")

RETRY_INTERVAL_S = 0.2
SERVE_INTERVAL_S = 1.0
"""How often to serve the group while nothing is read: that purges what the client has fetched."""
MISSING = "an input topic is missing, create it: acktree topology apply FILE"


class Inputs:
    """One group member's records and offsets."""

    def __init__(
        self,
        reader: LogReader,
        bootstrap: str,
        fetch_committed: FetchCommitted,
        owner: bytes = b"",
        fence_previous_owners: FencePreviousOwners = lambda _: None,
        progress: Liveness | None = None,
        user: Settings | None = None,
    ) -> None:
        """``owner`` goes into every commit; ``fence_previous_owners`` ends transactions of dead ones.

        It is called before ``fetch_committed``: an open transaction may hold back the committed offsets.
        ``progress``: that of the loop that waits here for the broker.
        """
        self._log, self.consumer, self._progress = reader, reader.consumer, progress or Liveness()
        self._owner, self._fence_previous_owners, self._fetch = owner, fence_previous_owners, fetch_committed
        self._naming_owner: set[Place] = set()
        self.hands: dict[Place, Hand] = {}
        self.stopping = self._closing = False
        self._bootstrap, self._user = bootstrap, user or {}
        self._join: Callable[[], None] = lambda: None
        self.troubles: list[LogRange] = []
        """What cannot be read, and was not said yet; of a log that has fallen nothing more comes before."""
        self._shrunk: dict[Place, int] = {}
        """Where logs were begun that have fallen, until that is committed: they may end below what is."""
        self._committed: dict[Place, tuple[int, str]] = {}
        self._above: dict[Place, DoneAbove] = {}
        self.back_pressure = BackPressure(reader)
        self._waiting: deque[Record] = deque()
        self._served_s = 0.0
        self.unfinished: Callable[[], Sequence[Record]] = tuple
        """Returns the records that ``read`` has returned, and that are neither done nor in hand."""

    def subscribe(self, topics: Iterable[str], assigned: Assigned, revoked: Revoked, lost: Revoked) -> None:
        """Subscribe to topics; the callbacks run inside ``read``."""

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            revoked(_places(partitions))
            self._forget(_places(partitions))

        def on_lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            lost(_places(partitions))
            self._forget(_places(partitions))

        def on_assign(_: Consumer, partitions: list[TopicPartition]) -> None:
            if self._closing:  # by a rebalance that was under way: nothing of them is read any more
                return
            self.clear(_places(partitions))
            self._fence_previous_owners(_places(partitions))
            committed = self._load_committed(partitions)
            self._log.begin(_offsets(committed), _epochs(committed))
            assigned(_places(partitions))

        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        self._join = partial(self.consumer.subscribe, list(topics), **callbacks)
        self._join()

    def _forget(self, places: Collection[Place]) -> None:
        self.clear(places)
        self._log.forget(places)

    def clear(self, places: Collection[Place]) -> None:
        """Forget what was read of partitions."""
        self.back_pressure.resume(places)
        for place in places:
            for known in (self.hands, self._committed, self._above, self._shrunk):
                known.pop(place, None)
        self._naming_owner -= set(places)
        cleared = frozenset(places)
        self.troubles = [log_range for log_range in self.troubles if log_range.place not in cleared]
        self._waiting = deque(record for record in self._waiting if place_of(record) not in cleared)

    def read(self, wait_s: float, max_records: int = BATCH_RECORDS) -> Sequence[Record]:
        """Return up to ``max_records`` records that are not done yet; if there is none, wait for one.

        Records that were put back come first, though the group is served in any case; none comes from a
        paused partition.
        """
        # Life of an ack, step 1.
        self.back_pressure.end_pause()
        has_some = any(place_of(record) not in self.back_pressure.paused for record in self._waiting)
        found = self._poll(max(1, max_records - len(self._waiting)), 0 if has_some else wait_s)
        if not self._waiting:
            return found
        self._waiting.extend(found)
        ready, held = list[Record](), deque[Record]()
        for record in self._waiting:
            is_ready = len(ready) < max_records and place_of(record) not in self.back_pressure.paused
            (ready if is_ready else held).append(record)
        self._waiting = held
        return ready

    def serve(self) -> None:
        """Serve the group now and then, while nothing can be executed; what is fetched meanwhile waits."""
        if world.monotonic_s() - self._served_s >= SERVE_INTERVAL_S:
            self.back_pressure.pause_all()
            found = self._poll(1, 0)  # may call `clear`, which replaces what waits
            self._waiting.extend(found)

    def _poll(self, max_records: int, wait_s: float) -> Sequence[Record]:
        """Serve the group, and return fetched records that are not done yet.

        Raises:
            MissingTopic: an input topic does not exist. Else as ``LogReader.read``.
        """
        self._served_s = world.monotonic_s()
        found: list[Record] = []
        for log_range in self._log.read(max_records, wait_s):
            if log_range.found is Found.READ:
                found += cast(Sequence[Record], log_range.records)
            elif log_range.found is Found.GONE:
                self._await_topic(log_range)
            else:
                self.troubles.append(log_range)
        return [record for record in found if not self._is_done(record)] if self._above else found

    def put_back(self, records: Sequence[Record]) -> None:
        """Keep records that were read but not executed; ``read`` returns them first."""
        self._waiting.extendleft(reversed(records))

    def _is_done(self, record: Record) -> bool:
        above = self._above.get(place_of(record))
        return above is not None and above.holds(record.offset() or 0)

    def _await_topic(self, log_range: LogRange) -> None:
        """Ask for a topic that is missing, and is read if it was just created. Raises MissingTopic."""
        assert log_range.error is not None
        text, bootstrap = f"{log_range.error.str()}; {MISSING}", self._bootstrap
        with self._progress.waiting():
            admin = retry_until_ready(partial(make_admin, bootstrap, self._user), wait_if_away=True)
            refuse = partial(refuse_missing, admin, bootstrap, log_range.place[0], text)
            retry_until_ready(refuse, wait_if_away=True)
        self._join()

    def begin_fallen(self, place: Place, offset: int) -> None:
        """Read a log that has fallen from an offset on, which the next commit makes durable."""
        self._shrunk[place] = offset
        self._log.begin({place: offset})

    def first_open(self, place: Place, offset: int) -> int:
        """Return the first offset of a partition that waits or is in hand; ``offset`` if none is below it."""
        return min(offset, self._first_waiting().get(place, offset), *self.hands.get(place, ()))

    def hand(self, topic: str, partition: int) -> Hand:
        """Return the tuples of one partition that are in hand."""
        return self.hands.setdefault((topic, partition), {})

    def places(self) -> list[Place]:
        """Return the assigned partitions."""
        return self._log.places

    @property
    def has_hand(self) -> bool:
        """Whether any tuple is in hand."""
        return any(self.hands.values())

    def in_hand(self, places: Iterable[Place] | None = None) -> list[Tuple]:
        """Return the tuples in hand, of some partitions or of all of them."""
        chosen = self.hands if places is None else places
        return [tup for place in chosen for tup in self.hands.get(place, {}).values()]

    @property
    def names_owner(self) -> bool:
        """Whether a commit names this owner, so that its successor knows whom to fence.

        One partition is enough: the worker that gets it finds the name.
        """
        return not self._owner or bool(self._naming_owner)

    def frontiers(self, leaving: Collection[Place] = ()) -> list[TopicPartition]:
        """Return offsets and metadata to commit, of the partitions where they have changed.

        For a partition that is ``leaving`` the commit names no owner.
        """
        moved, waiting = [], self._first_waiting()
        for place in self._log.places:
            if (next_offset := self._log.next_offset(place)) < 0:
                continue
            owner = b"" if place in leaving else self._owner
            frontier = self._frontier(place, waiting.get(place, next_offset), owner)
            if self._committed.get(place) != frontier:
                epoch = self._log.epoch(place).epoch
                moved.append(TopicPartition(*place, frontier[0], metadata=frontier[1], leader_epoch=epoch))
        return moved

    def _first_waiting(self) -> dict[Place, int]:
        """Return the first offset that waits to be executed, or is executed, by partition."""
        first: dict[Place, int] = {}
        for record in chain(self.unfinished(), self._waiting):
            first.setdefault(place_of(record), record.offset() or 0)
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
            self._shrunk.pop((committed.topic, committed.partition), None)
        if self._owner:
            self._naming_owner |= set(_places(offsets))
            self._naming_owner -= set(leaving)

    def rewind(self) -> None:
        """Read again from the committed offsets on, from the beginning where there is none.

        A log that has fallen below its committed offset is read from where its end was.
        """
        self.hands.clear()
        self._waiting.clear()
        self.troubles.clear()  # they are met again
        for known in (self._committed, self._above):
            known.clear()
        committed = self._load_committed([TopicPartition(*place) for place in self._log.places])
        starts = _offsets(committed)
        for place, offset in starts.items():
            if 0 <= self._shrunk.get(place, offset) < offset:
                starts[place] = self._shrunk[place]
                self._above.pop(place, None)
        self.back_pressure.resume()
        self._log.begin(starts, _epochs(committed))

    def _load_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the committed offsets, or the beginning; from now on skip what is done above them."""
        with self._progress.waiting():
            committed = self._fetch_committed(partitions) if partitions else []
        for place in committed:
            above = decode_done(metadata_of(place), place.offset)
            if above is not None:
                self._above[place.topic, place.partition] = above
            if place.offset < 0:
                place.offset = OFFSET_BEGINNING
        return committed

    def _fetch_committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Retry until the broker answers or the worker is asked to stop. Raises as ``check_error``."""
        while True:
            try:
                answers = self._fetch(partitions)
                for answer in answers:
                    if answer.error is not None:
                        raise KafkaException(answer.error)
                return answers
            except KafkaException as error:
                kafka_error = error.args[0]
                check_error(kafka_error, self._bootstrap)
                if self.stopping:
                    raise errors.as_clear_error(kafka_error, self._bootstrap) from error
                log_retry(log, "no committed offsets yet: %s", kafka_error.str(), action="request_retried")
                world.sleep(RETRY_INTERVAL_S)

    def close(self) -> None:
        """Leave the group; partitions that are assigned meanwhile go to the next member."""
        self._closing = True
        close_consumer(self.consumer)

    def lag(self) -> int:
        """Return how many records are still to be executed, by the high watermarks last fetched."""
        waiting = len(self._waiting) + len(self.unfinished())
        for place in self._log.places:
            end, next_offset = self._log.known_end(place), self._log.next_offset(place)
            if end is not None and next_offset >= 0:
                waiting += max(0, end - next_offset)
        return waiting


def check_error(error: KafkaError, bootstrap: str) -> None:
    """Ignore an error that passes; raise MissingTopic or the clear form of any other."""
    if errors.is_missing(error):
        raise MissingTopic(f"{error.str()}; {MISSING}")
    if error.fatal() or not (errors.is_transient(error) or errors.is_membership_lost(error)):
        raise errors.as_clear_error(error, bootstrap)


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]


def _epochs(committed: Iterable[TopicPartition]) -> dict[Place, LogEpoch]:
    """Return whose logs were read up to committed offsets, where the commits say so."""
    return {(place.topic, place.partition): epoch_of(place) for place in committed}


def _offsets(partitions: Iterable[TopicPartition]) -> dict[Place, int]:
    return {(partition.topic, partition.partition): partition.offset for partition in partitions}
