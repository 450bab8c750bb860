"""Reads source partitions ahead of the plan: a plan may only go as far as records have been fetched.

Invariant: of an offset below a partition's end is known what it holds: its record is here, or it is in
``removed`` or ``damaged``, or it holds none. A partition whose position moves is begun again, so nothing
that was fetched before counts.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import cast

from pyroaring import BitMap64

from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.producers.tuples import RECORD_BYTES, Place, Record, size_of
from acktree.wire.state_records import LogEpoch

MAX_RECORDS = 5_000
"""At most this many are read at a time, and kept of a partition before it is paused."""
MAX_BYTES = 32 << 20
"""With this many bytes fetched and not taken by the code, only partitions without a record are read."""


class _Fetched:
    """What was fetched of a partition: records in [next, end), and what else is known of its offsets."""

    __slots__ = ("damaged", "end", "next", "records", "removed", "size")

    def __init__(self, next_offset: int) -> None:
        self.records: deque[Record] = deque()
        self.next = self.end = next_offset
        self.removed: deque[tuple[int, int]] = deque()
        """What was removed before it was fetched: first and following offsets."""
        self.damaged: deque[tuple[int, int]] = deque()
        """What nobody can read, likewise."""
        self.size = 0

    def add(self, log_range: LogRange) -> None:
        if log_range.found is Found.READ:
            self.records.extend(cast(Record, message) for message in log_range.records)
            self.size += sum(map(size_of, log_range.records))
        else:
            spans = self.removed if log_range.found is Found.REMOVED else self.damaged
            spans.append((log_range.start, log_range.end))
        self.end = log_range.end

    def skip_to(self, offset: int) -> Iterator[Record]:
        """Yield the records below an offset, and forget them."""
        while self.records and (self.records[0].offset() or 0) < offset:
            record = self.records.popleft()
            self.size -= size_of(record)
            yield record
        self.next = offset
        for spans in (self.removed, self.damaged):
            while spans and spans[0][1] <= offset:
                spans.popleft()


class SourceReader:
    """The records of a spout's source partitions, in order, through one consumer outside of the group."""

    max_records, max_bytes = MAX_RECORDS, MAX_BYTES

    def __init__(self, bootstrap: str, group: str, user: Settings) -> None:
        """Connect; nothing is read before ``follow``."""
        settings = reader_settings(bootstrap, group, user)
        self._consumer = make_consumer(settings)
        self._log = LogReader(self._consumer, bootstrap, group, user)
        self._fetched: dict[Place, _Fetched] = {}
        self.ended: set[Place] = set()
        """What is not read any more before ``follow``: its log has fallen, or is gone."""
        self._record_bytes = RECORD_BYTES
        """The size of the largest record that was read last."""

    def follow(self, wanted: Mapping[Place, int], epochs: Mapping[Place, LogEpoch]) -> None:
        """Read these partitions and no others, each from its next offset on; forget what has ended.

        ``epochs``: whose logs were read up to there, by this process or by an earlier one.
        """
        for place in self.ended:
            del self._fetched[place]
        self.ended.clear()
        gone = [place for place in self._fetched if place not in wanted]
        self._log.end(gone)
        for place in gone:
            del self._fetched[place]
        moved = {place: at for place, at in wanted.items() if self._is_moved(place, at)}
        if moved:
            self._log.begin(moved, epochs)
        self._fetched |= {place: _Fetched(at) for place, at in moved.items()}

    def _is_moved(self, place: Place, next_offset: int) -> bool:
        """Return whether a partition has to be begun; skip what is fetched before its next offset."""
        fetched = self._fetched.get(place)
        if fetched is None or not fetched.next <= next_offset <= fetched.end:
            return True
        deque(fetched.skip_to(next_offset), 0)
        return False

    def read(self, wait_s: float, held_bytes: int) -> list[LogRange]:
        """Take what has come, and wait for it if nothing has; return what cannot be read.

        ``held_bytes`` is the size of the records that were taken and not executed yet.

        Raises:
            BrokerUnreachable, BrokerRefused, NotAuthorized: see their docstrings.
        """
        troubles = []
        room = (self.max_bytes - held_bytes - self._size) // self._record_bytes
        for log_range in self._log.read(min(self.max_records, max(1, room)), wait_s):
            if log_range.found in (Found.FELL, Found.GONE):
                self.ended.add(log_range.place)
            else:
                self._fetched[log_range.place].add(log_range)
            if log_range.records:
                self._record_bytes = max(map(size_of, log_range.records))
            if log_range.found is not Found.READ:
                troubles.append(log_range)
        self._pause(is_full=held_bytes + self._size >= self.max_bytes)
        return troubles

    @property
    def _size(self) -> int:
        return sum(fetched.size for fetched in self._fetched.values())

    def _pause(self, *, is_full: bool) -> None:
        """Pause what has too much waiting, and resume what has little; read a record of each in any case."""
        full, some = [], []
        for place, fetched in self._fetched.items():
            count = len(fetched.records)
            if place in self.ended:
                continue
            if count >= self.max_records or (is_full and count):
                full.append(place)
            elif count < self.max_records / 2:
                some.append(place)
        self._log.pause(full)
        self._log.resume(some)

    def end(self, place: Place) -> int | None:
        """Return the offset behind the last one that is known of a partition, None for one not followed."""
        fetched = self._fetched.get(place)
        return None if fetched is None else fetched.end

    def epoch(self, place: Place) -> LogEpoch:
        """Return whose log was read of a partition that is followed."""
        return self._log.epoch(place)

    def gap(self, place: Place) -> int:
        """Return how many offsets at the start of what is fetched are known to hold nothing."""
        if (fetched := self._fetched.get(place)) is None:
            return 0
        following = [(fetched.records[0].offset() or 0) if fetched.records else fetched.end]
        following += [spans[0][0] for spans in (fetched.removed, fetched.damaged) if spans]
        return max(0, min(following) - fetched.next)

    def holds(self, place: Place, offsets: range) -> bool:
        """Return whether all of some offsets have come and are not taken."""
        fetched = self._fetched.get(place)
        return fetched is not None and fetched.next <= offsets.start and offsets.stop <= fetched.end

    def take(self, place: Place, start: int, end: int) -> tuple[list[Record], BitMap64, BitMap64]:
        """Return the records of [start, end), which must have come, and what was removed and is damaged."""
        fetched = self._fetched[place]
        assert fetched.next <= start <= end <= fetched.end, (place, fetched.next, start, end, fetched.end)
        removed, damaged = (_within(spans, start, end) for spans in (fetched.removed, fetched.damaged))
        records = [record for record in fetched.skip_to(end) if (record.offset() or 0) >= start]
        return records, removed, damaged

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


def _within(spans: deque[tuple[int, int]], start: int, end: int) -> BitMap64:
    found = BitMap64()
    for first, following in spans:
        found.add_range(max(first, start), max(min(following, end), first, start))
    return found
