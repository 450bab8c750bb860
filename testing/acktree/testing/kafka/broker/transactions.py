"""Simulates the transaction coordinator: producer ids, epochs, and the outcomes of transactions.

Invariant: at most one producer of a transactional id may write, that of the newest epoch; a transaction ends
once, by its producer, by the next one's start, or by its timeout. Its markers reach the partitions one by
one. The protocol is that of KIP-98, as librdkafka speaks it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import KafkaError

from acktree.testing.kafka.broker.log import Outcome, PartitionLog, Transaction
from acktree.testing.virtual.kernel import Kernel, Timer

FENCE_S = 0.002
"""How long a fence takes. Kafka prepares it and aborts the transaction in two steps, and answers its producer
in between with UNKNOWN, as the state of the transaction is not what it expects."""


class Refused(Exception):
    """A broker's refusal, as one of Kafka's error codes."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


@dataclass(eq=False)
class TransactionalId:
    """The coordinator's state of one transactional id."""

    name: str
    producer_id: int
    epoch: int = -1
    timeout_ms: int = 60_000
    transaction: Transaction | None = None
    is_fencing: bool = False
    is_ending: bool = False
    partitions: dict[PartitionLog, None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    """The groups that hold offsets of the transaction."""
    timer: Timer | None = None
    at_end: list[Callable[[], None]] = field(default_factory=list)


class TransactionCoordinator:
    """Coordinates all transactional ids of a cluster."""

    def __init__(self, kernel: Kernel, end_offsets: Callable[[str, Transaction], None]) -> None:
        """``end_offsets`` is called when the marker of a transaction has reached a group."""
        self._kernel, self._end_offsets = kernel, end_offsets
        self.ids: dict[str, TransactionalId] = {}
        self._next_producer_id = 0
        self.marker_delay_s: Callable[[], float] = lambda: 0.0
        """How long the next marker takes to its partition."""
        self.present_log: Callable[[PartitionLog], PartitionLog] = lambda log: log
        """Return the log that has a log's topic and partition at present: markers go by names."""
        self.ended: list[Transaction] = []

    def new_producer_id(self) -> int:
        """Return a producer id for a producer that is idempotent only."""
        self._next_producer_id += 1
        return self._next_producer_id

    def init(self, name: str, timeout_ms: int) -> tuple[int, int] | None:
        """Return id and epoch for a producer that starts, None while its predecessor is being ended."""
        entry = self.ids.get(name)
        if entry is None:
            entry = self.ids[name] = TransactionalId(name, self.new_producer_id())
        if entry.is_ending:
            return None
        if entry.transaction is not None:
            self._fence(entry)
            return None
        entry.epoch += 1
        entry.timeout_ms = timeout_ms
        return entry.producer_id, entry.epoch

    def check(self, name: str, producer_id: int, epoch: int, code: int) -> TransactionalId:
        """Return the entry of a producer; raise ``code`` if a newer one has its id."""
        entry = self.ids.get(name)
        if entry is None or entry.producer_id != producer_id:
            raise Refused(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if entry.epoch != epoch:
            raise Refused(code, "Producer attempted an operation with an old epoch")
        return entry

    def begin(self, name: str, producer_id: int, epoch: int) -> TransactionalId | None:
        """Return the entry, with an open transaction; None while the last one is being ended."""
        entry = self.check(name, producer_id, epoch, KafkaError.PRODUCER_FENCED)
        if entry.is_ending or entry.is_fencing:
            return None
        if entry.transaction is None:
            entry.transaction = Transaction(name, producer_id, epoch)
            entry.timer = self._kernel.call_after(entry.timeout_ms / 1000, lambda: self.time_out(entry))
        return entry

    def end(self, name: str, producer_id: int, epoch: int, is_commit: bool) -> None:
        """Commit or abort; repeating the last decision is harmless."""
        entry = self.check(name, producer_id, epoch, KafkaError.PRODUCER_FENCED)
        if entry.is_fencing:
            raise Refused(KafkaError.UNKNOWN, "The server experienced an unexpected error")
        if entry.transaction is not None and not entry.is_ending:
            self._end(entry, Outcome.COMMITTED if is_commit else Outcome.ABORTED)

    def time_out(self, entry: TransactionalId) -> None:
        """Abort a transaction that its producer has not ended in time."""
        if entry.transaction is not None and not entry.is_ending:
            self._fence(entry)

    def _fence(self, entry: TransactionalId) -> None:
        """Abort a transaction, and reject its producer from then on: librdkafka does not start again."""
        if not entry.is_fencing:
            entry.is_fencing = True
            self._kernel.call_after(FENCE_S, partial(self._abort_fenced, entry))

    def _abort_fenced(self, entry: TransactionalId) -> None:
        entry.is_fencing = False
        entry.epoch += 1
        self._end(entry, Outcome.ABORTED)

    def _end(self, entry: TransactionalId, outcome: Outcome) -> None:
        """Decide, then write the markers one by one; only then may the next transaction begin."""
        transaction = entry.transaction
        assert transaction is not None
        if entry.timer is not None:
            entry.timer.cancel()
        entry.is_ending = True
        transaction.outcome = outcome
        places: list[PartitionLog | str] = [*entry.partitions, *entry.groups]
        left = len(places)

        def finish() -> None:
            entry.transaction, entry.is_ending = None, False
            entry.partitions.clear()
            entry.groups.clear()
            self.ended.append(transaction)
            at_end, entry.at_end = entry.at_end, []
            for call in at_end:
                call()

        def mark(place: PartitionLog | str) -> None:
            nonlocal left
            if isinstance(place, PartitionLog):
                self.present_log(place).append_marker(transaction)
            else:
                self._end_offsets(place, transaction)
            left -= 1
            if not left:
                finish()

        for place in places:
            self._kernel.call_after(self.marker_delay_s(), partial(mark, place))
        if not places:
            finish()
