"""Reads source partitions ahead of the plan: a plan may only go as far as records have been fetched.

Invariant: an offset below a partition's end either has its record here, or was read past, which proves that
it holds none. A partition whose position moves is assigned again, so nothing that was fetched before counts.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyroaring import BitMap64

from acktree.core.kafka.clients import consume_ready, make_consumer
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.producers.spouts.driver.sources.log_bounds import log_lost
from acktree.producers.tuples import Place, Record

MAX_RECORDS = 5_000
"""At most this many are read at a time, and kept of a partition before it is paused."""
MAX_QUEUED_KBYTES = 16_384
"""What the client fetches ahead of a partition."""


class _Fetched:
    """What was fetched of a partition: records in [next, end), and the proof that there are no others."""

    __slots__ = ("end", "is_paused", "next", "records", "removed")

    def __init__(self, next_offset: int) -> None:
        self.records: deque[Record] = deque()
        self.next = self.end = next_offset
        self.is_paused = False
        self.removed: deque[tuple[int, int]] = deque()
        """What was skipped of it, as it was removed before it was fetched: first and following offsets."""


class SourceReader:
    """The records of a spout's source partitions, in order, through one consumer outside of the group."""

    max_records = MAX_RECORDS

    def __init__(self, bootstrap: str, group: str, user: Settings) -> None:
        """Connect; nothing is read before ``follow``."""
        settings = consumer_settings(
            bootstrap,
            group,
            user,
            auto_offset_reset="error",
            enable_partition_eof=True,
            queued_max_messages_kbytes=MAX_QUEUED_KBYTES,
        )
        self._consumer: Consumer = make_consumer(settings)
        self._bootstrap = bootstrap
        self._fetched: dict[Place, _Fetched] = {}
        self.out_of_range: set[Place] = set()
        """Partitions whose log holds nothing at their position: it begins behind it, or ends before it."""

    def follow(self, wanted: Mapping[Place, int]) -> None:
        """Read these partitions and no others, each from its next offset on."""
        gone = [place for place in self._fetched if place not in wanted]
        moved = [place for place, at in wanted.items() if self._is_moved(place, at)]
        leaving = [*gone, *(place for place in moved if place in self._fetched)]
        if leaving:
            self._resume(leaving)
            self._consumer.incremental_unassign([TopicPartition(*place) for place in leaving])
        for place in gone:
            del self._fetched[place]
        if moved:
            self._consumer.incremental_assign([TopicPartition(*place, wanted[place]) for place in moved])
        self._fetched |= {place: _Fetched(wanted[place]) for place in moved}
        self.out_of_range -= set(leaving)

    def _is_moved(self, place: Place, next_offset: int) -> bool:
        """Return whether a partition has to be assigned; skip what is fetched before its next offset."""
        fetched = self._fetched.get(place)
        if fetched is None or not fetched.next <= next_offset <= fetched.end:
            return True
        while fetched.records and (fetched.records[0].offset() or 0) < next_offset:
            fetched.records.popleft()
        fetched.next = next_offset
        return False

    def skip_to(self, starts: Mapping[Place, int]) -> None:
        """Count what retention has removed as read past, and log it, where a partition was out of range."""
        for place in self.out_of_range & starts.keys():
            fetched, start = self._fetched.get(place), starts[place]
            if fetched is not None and fetched.end < start:
                log_lost(place, start - fetched.end, fetched.end, start - 1, "read")
                fetched.removed.append((fetched.end, start))
                fetched.end = start
            if fetched is not None:
                self._consumer.incremental_unassign([TopicPartition(*place)])
                self._consumer.incremental_assign([TopicPartition(*place, fetched.end)])
        self.out_of_range.clear()

    def read(self, wait_s: float) -> None:
        """Take what has come; wait for a record if nothing has.

        Raises:
            BrokerUnreachable, BrokerRefused, NotAuthorized: see their docstrings.
        """
        for message in consume_ready(self._consumer, self.max_records, wait_s):
            place = message.topic() or "", message.partition() or 0
            fetched = self._fetched.get(place)
            if (error := message.error()) is not None:
                self._handle_error(place, fetched, error, message.offset() or 0)
            elif fetched is not None and (message.offset() or 0) >= fetched.end:
                fetched.records.append(cast(Record, message))
                fetched.end = (message.offset() or 0) + 1
        self._pause()

    def _handle_error(self, place: Place, fetched: _Fetched | None, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            if fetched is not None:
                fetched.end = max(fetched.end, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.out_of_range.add(place)
        elif not error.retriable():
            raise as_clear_error(error, self._bootstrap, f"{place[0]}/{place[1]}")

    def _pause(self) -> None:
        """Pause what has too many records waiting, and resume what has few."""
        for place, fetched in self._fetched.items():
            if not fetched.is_paused and len(fetched.records) >= self.max_records:
                self._consumer.pause([TopicPartition(*place)])
                fetched.is_paused = True
        few = self.max_records / 2
        self._resume(place for place, fetched in self._fetched.items() if len(fetched.records) < few)

    def _resume(self, places: Iterable[Place]) -> None:
        """Resume those that are paused: the client keeps them paused when they are assigned again."""
        for place in places:
            if (fetched := self._fetched[place]).is_paused:
                self._consumer.resume([TopicPartition(*place)])
                fetched.is_paused = False

    def end(self, place: Place) -> int | None:
        """Return the offset behind the last one that is known of a partition, None for one not followed."""
        fetched = self._fetched.get(place)
        return None if fetched is None else fetched.end

    def take(self, place: Place, start: int, end: int) -> Iterator[Record]:
        """Yield the records of [start, end), which must have come; what is before is skipped."""
        fetched = self._fetched[place]
        assert fetched.next <= start <= end <= fetched.end, (place, fetched.next, start, end, fetched.end)
        while fetched.records and (offset := fetched.records[0].offset() or 0) < end:
            record = fetched.records.popleft()
            if offset >= start:
                yield record
        fetched.next = end

    def removed(self, place: Place, start: int, end: int) -> BitMap64:
        """Return the offsets of [start, end) that were skipped; those before are forgotten."""
        fetched, found = self._fetched[place], BitMap64()
        while fetched.removed and fetched.removed[0][1] <= start:
            fetched.removed.popleft()
        for first, following in fetched.removed:
            found.add_range(max(first, start), max(min(following, end), first, start))
        return found

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
