"""Running a bolt over a batch of input records, one loop for each kind of bolt.

Invariant: one record's exception fails that tuple alone; a record with a broken header is set aside, counted
and logged with its coordinates. A Misuse or a failed delivery is no tuple's fault and ends the worker.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError

from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import BasicBolt, BatchBolt, Bolt, Context, Emit, SyncBolt
from acktree.producers.collector import Collector
from acktree.producers.errors import DeliveryFailed, Misuse, reason_of
from acktree.producers.intake import Intake
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Hand, Record, Tuple
from acktree.schemas.errors import MalformedRecord, UnknownVersion

log = logging.getLogger("acktree.bolt")

FindHand = Callable[[str, int], Hand]
CheckError = Callable[[KafkaError], None]


class Execution(ABC):
    """How one kind of bolt is run; all calls come from the thread of the Kafka loop."""

    max_in_hand: int | None = None
    """So many tuples in hand stop the reading; None where none stays in hand."""
    turn_s = 0.1
    """How long acks, commits and a stop may wait for the bolt."""
    least_records = 1
    """So many records a turn may have though they take longer."""
    busy_s = 0.0
    """How long tuples have been executed in all."""
    process_s = 0.0
    """The same, each tuple by itself, from its start to its ack; without the time in hand."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether tuples are executed beside the Kafka loop."""

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""

    @abstractmethod
    def run(self, records: Sequence[Record]) -> None:
        """Execute every record."""

    @abstractmethod
    def cleanup(self) -> None:
        """Clean the bolt up."""

    @abstractmethod
    def collect(self) -> None:
        """Take in what tuples have said that were executed beside the Kafka loop."""

    @abstractmethod
    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Bring tuples that are being executed to their end; start no other of them."""

    @abstractmethod
    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Let go of tuples in hand that another worker will read again."""


class SyncExecution(Execution):
    """Runs a bolt within the Kafka loop: when ``run`` returns, nothing is being executed."""

    def __init__(self, bolt: SyncBolt) -> None:
        self._sync_bolt = bolt

    @property
    def is_busy(self) -> bool:
        """Nothing is executed elsewhere."""
        return False

    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""
        self._sync_bolt.prepare(context)

    def cleanup(self) -> None:
        """Clean the bolt up."""
        self._sync_bolt.cleanup()

    def run(self, records: Sequence[Record]) -> None:
        """Execute every record, and take the time."""
        began_s = time.perf_counter()
        self.execute(records)
        busy_s = time.perf_counter() - began_s
        self.busy_s += busy_s
        self.process_s += busy_s * self.lasting(records)

    def lasting(self, records: Sequence[Record]) -> int:
        """Return how many tuples last as long as the run: one after the other, so one."""
        return 1

    def collect(self) -> None:
        """Nothing is executed elsewhere."""

    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Nothing is being executed."""

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """None stays in hand."""

    @abstractmethod
    def execute(self, records: Sequence[Record]) -> None:
        """Execute every record."""


class BasicExecution(SyncExecution):
    """Executes a BasicBolt: each tuple is done when ``execute`` returns, so none stays in hand."""

    def __init__(self, bolt: BasicBolt, collector: Collector, intake: Intake, check: CheckError) -> None:
        super().__init__(bolt)
        self._bolt, self._collector, self._intake, self._check = bolt, collector, intake, check

    def execute(self, records: Sequence[Record]) -> None:
        """Execute and ack or fail every record."""
        collector, execute = self._collector, self._bolt.execute
        emit = Emit(collector)
        taken, all_anchors = take_in(records, self._intake, self._check, collector)
        for record, anchors in zip(taken, all_anchors, strict=True):
            emit.current = tuple = Tuple(record, anchors, collector)
            try:
                execute(tuple, emit)
            except (Misuse, DeliveryFailed):
                raise
            except Exception as error:
                fail(tuple, error, collector)
            else:
                collector.ack(tuple)
        emit.current = None
        collector.counters.executed += len(taken)


class BatchExecution(SyncExecution):
    """Executes a batch at once: every tuple is done when ``execute`` returns, so none stays in hand.

    What a batch costs need not be the sum of its tuples, so it is not cut as short as other turns.
    """

    turn_s = 2.0
    least_records = 100

    def __init__(self, bolt: SyncBolt, collector: Collector, intake: Intake, check: CheckError) -> None:
        super().__init__(bolt)
        self._collector, self._intake, self._check = collector, intake, check
        self._batch = BatchCollector(collector)

    @abstractmethod
    def give(self, batch: TupleBatch) -> None:
        """Let the bolt handle a batch."""

    def lasting(self, records: Sequence[Record]) -> int:
        """Return how many tuples last as long as the run: all of the batch."""
        return len(records)

    def execute(self, records: Sequence[Record]) -> None:
        """Execute all records as one batch and ack those that were not failed."""
        collector = self._collector
        taken, anchors = take_in(records, self._intake, self._check, collector)
        if not taken:
            return
        batch = TupleBatch(taken, anchors, collector)
        self._batch.begin(batch)
        try:
            self.give(batch)
        except (Misuse, DeliveryFailed):
            raise
        except Exception as error:
            for tuple in batch:
                if tuple._state is IN_HAND:
                    fail(tuple, error, collector)
        self._batch.finish()
        collector.counters.executed += len(batch)


class ListExecution(BatchExecution):
    """Executes a BatchBolt."""

    def __init__(self, bolt: BatchBolt, collector: Collector, intake: Intake, check: CheckError) -> None:
        super().__init__(bolt, collector, intake, check)
        self._bolt = bolt

    def give(self, batch: TupleBatch) -> None:
        """Let the bolt handle a batch."""
        self._bolt.execute(batch, self._batch)


class HandExecution(SyncExecution):
    """Executes a Bolt, which acks by itself: tuples are in hand from here until then."""

    def __init__(
        self, bolt: Bolt, collector: Collector, intake: Intake, check: CheckError, hand: FindHand
    ) -> None:
        super().__init__(bolt)
        self._bolt = bolt
        self._collector, self._intake, self._check = collector, intake, check
        self._find_hand = hand
        self.max_in_hand = bolt.max_in_hand

    def lasting(self, records: Sequence[Record]) -> int:
        """Return how many tuples last as long as the run: none, the worker counts what is in hand."""
        return 0

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Tell the bolt."""
        self._bolt.drop(tuples)

    def execute(self, records: Sequence[Record]) -> None:
        """Execute every record; the bolt acks or fails it now or later."""
        collector = self._collector
        taken, all_anchors = take_in(records, self._intake, self._check, collector)
        for record, anchors in zip(taken, all_anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tuple = Tuple(record, anchors, collector, hand)
            hand[tuple.offset] = tuple
            collector.counters.executed += 1
            try:
                self._bolt.execute(tuple, collector)
            except (Misuse, DeliveryFailed):
                raise
            except Exception as error:
                fail(tuple, error, collector)


def take_in(
    records: Sequence[Record], intake: Intake, check: CheckError, collector: Collector
) -> tuple[Sequence[Record], list[bytes]]:
    """Return the records that are tuples, and the anchors of each; judge errors, set the rest aside."""
    errors = [error for record in records if (error := record.error()) is not None]
    if errors:
        for error in errors:
            check(error)
        records = [record for record in records if record.error() is None]
    anchors = intake.single_anchors(records)
    if anchors is not None:
        return records, anchors
    taken, anchors = [], []
    for record in records:
        try:
            anchors.append(intake.anchors_of(record))
        except (MalformedRecord, UnknownVersion) as wrong:
            set_aside(record, wrong, collector)
        else:
            taken.append(record)
    return taken, anchors


def fail(tuple: Tuple, error: BaseException, collector: Collector) -> None:
    """Fail a tuple with an exception, unless the bolt has said something of it before."""
    tracked = "" if tuple.tracked else "; it is untracked, so nobody emits it again"
    log.warning(
        "%r failed: %s%s", tuple, reason_of(error), tracked, exc_info=error, extra={"action": "tuple_failed"}
    )
    if tuple._state is IN_HAND:
        collector.fail(tuple, reason_of(error))


def set_aside(record: Record, error: Exception, collector: Collector) -> None:
    """Pass over a record that cannot be a tuple; its trees, if it has any, time out and are replayed."""
    collector.counters.set_aside += 1
    log.warning(
        "record %s[%s]@%s set aside: %s",
        record.topic(),
        record.partition(),
        record.offset(),
        error,
        extra={"action": "record_set_aside"},
    )
