"""Simulates topics and the logs of their partitions, as a broker keeps them.

Invariant: offsets only grow, control records take one each, and a read_committed reader sees nothing beyond
the first offset of the oldest open transaction, and no record of an aborted one.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

Header = tuple[str, bytes | None]
CREATE_TIME, LOG_APPEND_TIME = 1, 2


class Outcome(Enum):
    """The outcome of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction of a producer."""

    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome = Outcome.OPEN


@dataclass(eq=False, slots=True)
class StoredRecord:
    """One record of a log."""

    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    transaction: Transaction | None = None
    is_control: bool = False
    is_damaged: bool = False
    expires_ms: int | None = None
    """Until when the log cleaner keeps a tombstone, None before it was cleaned."""
    producer: str = ""
    """Which simulated process wrote it; for those who judge a run."""
    epoch: int = 0
    """That of the leader which appended it."""

    @property
    def is_committed(self) -> bool:
        """Whether no open or aborted transaction holds it."""
        return self.transaction is None or self.transaction.outcome is Outcome.COMMITTED


class PartitionLog:
    """The log of one partition."""

    def __init__(
        self,
        topic: "Topic",
        number: int,
        now_ms: Callable[[], int],
        appended: "dict[PartitionLog, None]",
    ) -> None:
        """``appended`` remembers every log that was appended to or cut, for those who watch a run."""
        self.topic, self.number, self._now_ms, self._appended = topic, number, now_ms, appended
        self.records: list[StoredRecord] = []
        self._offsets: list[int] = []
        self.start_offset = 0
        self.end_offset = 0
        self.epoch_starts = [0]
        """Where the records of each leader epoch begin."""
        self.open: dict[Transaction, int] = {}
        """Open transactions, by the offset of their first record."""
        self.waiting: dict[Callable[[], None], None] = {}
        """Called once when something changes, then forgotten."""

    @property
    def epoch(self) -> int:
        """The epoch of the leader."""
        return len(self.epoch_starts) - 1

    def epoch_before(self, offset: int) -> int:
        """Return the epoch of the last record below an offset."""
        return max(0, bisect_left(self.epoch_starts, offset) - 1)

    def end_of_epoch(self, epoch: int) -> int:
        """Return the offset behind the last record of an epoch, or of earlier ones, that the log holds."""
        return self.end_offset if epoch >= self.epoch else self.epoch_starts[epoch + 1]

    @property
    def stable_offset(self) -> int:
        """The last stable offset: where a read_committed reader ends."""
        if not self.open:
            return self.end_offset
        return max(self.start_offset, min(self.open.values(), default=self.end_offset))

    @property
    def last_committed(self) -> int:
        """The offset of the last record that a read_committed reader is or will be given, -1 for none."""
        records = (
            record for record in reversed(self.records) if not record.is_control and record.is_committed
        )
        return next((record.offset for record in records), -1)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[Header] = (),
        timestamp_ms: int | None = None,
        transaction: Transaction | None = None,
        producer: str = "",
    ) -> StoredRecord:
        """Append a record."""
        is_log_time = self.topic.config["message.timestamp.type"] == "LogAppendTime"
        now_ms = self._now_ms()
        if transaction is not None:
            self.open.setdefault(transaction, self.end_offset)
        record = StoredRecord(
            self.end_offset,
            LOG_APPEND_TIME if is_log_time else CREATE_TIME,
            now_ms if is_log_time or timestamp_ms is None else timestamp_ms,
            key,
            value,
            tuple(headers),
            transaction,
            producer=producer,
        )
        self._add(record)
        return record

    def as_lost(
        self, key: bytes | None, value: bytes | None, headers: Iterable[Header], timestamp_ms: int | None
    ) -> StoredRecord:
        """Return the record that its producer believes is in the log, where a fault has lost it."""
        return StoredRecord(
            self.end_offset, CREATE_TIME, timestamp_ms or self._now_ms(), key, value, tuple(headers)
        )

    def append_marker(self, transaction: Transaction) -> None:
        """Append the control record that ends a transaction here, and show its records or hide them."""
        self.open.pop(transaction, None)
        self._add(
            StoredRecord(
                self.end_offset, LOG_APPEND_TIME, self._now_ms(), None, None, (), transaction, is_control=True
            )
        )

    def _add(self, record: StoredRecord) -> None:
        record.epoch = self.epoch
        self.records.append(record)
        self._offsets.append(record.offset)
        self.end_offset += 1
        self._appended[self] = None
        self.wake()

    def wake(self) -> None:
        """Call everyone who waits for a change."""
        waiting, self.waiting = self.waiting, {}
        for call in waiting:
            call()

    def read(self, offset: int, is_committed_only: bool) -> Iterator[StoredRecord]:
        """Return the records from an offset on that a reader may see; control records are left in."""
        end = self.stable_offset if is_committed_only else self.end_offset
        for index in range(self.index_of(offset), len(self.records)):
            record = self.records[index]
            if record.offset >= end:
                return
            hidden = is_committed_only and not record.is_committed and not record.is_control
            if not hidden:
                yield record

    def index_of(self, offset: int) -> int:
        """Return the index of the first record at or behind an offset."""
        first = offset - self.start_offset
        if 0 <= first < len(self._offsets) and self._offsets[first] == offset:
            return first
        return bisect_left(self._offsets, offset)

    # What operators and time do to a log.

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset, as retention and ``delete_records`` do."""
        offset = min(offset, self.end_offset)
        if offset <= self.start_offset:
            return
        index = self.index_of(offset)
        del self.records[:index], self._offsets[:index]
        self.start_offset = offset
        self._appended[self] = None
        self.wake()

    def truncate(self, offset: int, *, by_new_leader: bool = False) -> None:
        """Lose the records from an offset on, as a leader that had fallen behind does.

        ``by_new_leader``: clients learn of it by the leader epochs (KIP-320); not after a loss of power.
        """
        if by_new_leader:
            self.epoch_starts = [min(start, offset) for start in self.epoch_starts] + [offset]
        index = self.index_of(offset)
        del self.records[index:], self._offsets[index:]
        self.end_offset = offset
        self.open = {transaction: first for transaction, first in self.open.items() if first < offset}
        self._appended[self] = None
        self.wake()

    def damage(self, offset: int) -> None:
        """Change the bytes of a record: its checksum is wrong, so no consumer gets past it."""
        self.records[self.index_of(offset)].is_damaged = True

    def delete_older(self, than_ms: int) -> None:
        """Delete the records from the start that are older."""
        old = itertools.takewhile(lambda record: record.timestamp_ms < than_ms, self.records)
        if (last := next(reversed(list(old)), None)) is not None:
            self.delete_before(min(last.offset + 1, self.stable_offset))

    def compact(self) -> None:
        """Clean below the last stable offset, except the last record, which is in the active segment.

        The last committed record of each key stays, a tombstone for ``delete.retention.ms``.
        """
        if not self.records:
            return
        index = self.index_of(min(self.stable_offset, self.records[-1].offset))
        counting = [each for each in self.records[:index] if each.is_committed and not each.is_control]
        last = {record.key: record for record in counting}
        kept = [each for each in counting if last[each.key] is each and not self._is_expired(each)]
        self.records[:index] = kept
        self._offsets = [record.offset for record in self.records]
        self._appended[self] = None

    def _is_expired(self, record: StoredRecord) -> bool:
        """Return whether a tombstone has been kept for long enough since it was cleaned first."""
        if record.value is not None:
            return False
        if record.expires_ms is None:
            record.expires_ms = self._now_ms() + int(self.topic.config["delete.retention.ms"])
            return False
        return self._now_ms() >= record.expires_ms


TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
}


@dataclass(eq=False)
class Topic:
    """One topic; a topic that is deleted and created again is a different one."""

    name: str
    topic_id: str
    config: dict[str, str]
    partitions: list[PartitionLog] = field(default_factory=list)
    is_deleted: bool = False
