"""Running a bolt over a batch of input records, one loop for each kind of bolt.

Invariant: one record's exception, or a call that breaks a rule, fails that tuple alone; a record with a
broken header is set aside, counted and logged with its coordinates. A failed delivery is no tuple's fault and
ends the worker. Whoever executes tuple by tuple stops when the turn is over, and gives the rest back.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import monotonic

from acktree.producers.batch import BatchCollector
from acktree.producers.bolt import BasicBolt, BatchBolt, Bolt, Context, Emit, SyncBolt
from acktree.producers.collector import Collector
from acktree.producers.errors import Misuse, reason_of
from acktree.producers.kafka.intake import CheckError, Intake, take_in
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Hand, Record, Tuple
from acktree.producers.worker.batch_sizing import Turn

log = logging.getLogger("acktree.bolt")

FindHand = Callable[[str, int], Hand]

HELD_TOO_LONG = "held longer than the message timeout"
"""The reason of such a tuple's failure."""


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
    tick_interval_s: float | None = None
    """How often ``tick`` is wanted; None: never."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether tuples are executed beside the Kafka loop."""

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""

    @abstractmethod
    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Execute records until the turn is over, at least one unless it is stopped; return the rest."""

    def tick(self) -> None:
        """Let the bolt do what is due by the clock; most kinds have nothing of the sort."""
        return

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Fail those of the tuples in hand that are held for longer; most kinds hold none."""
        return

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

    def __init__(
        self, bolt: SyncBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        self._sync_bolt, self._collector, self._turn = bolt, collector, turn
        self._intake, self._check = intake, check

    @property
    def is_busy(self) -> bool:
        """Nothing is executed elsewhere."""
        return False

    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""
        self._sync_bolt.prepare(context)
        self._collector.faults.raises_between = False

    def cleanup(self) -> None:
        """Clean the bolt up."""
        self._sync_bolt.cleanup()

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Execute records until the turn is over, and take the time; return the rest."""
        if self._turn.is_stopped:
            return records
        self._collector.faults.thread = get_ident()
        taken, anchors = take_in(records, self._intake, self._check, self._collector)
        if not taken:
            return ()
        faults, began_s = self._collector.faults, time.perf_counter()
        try:
            done = self.execute(taken, anchors)
        finally:
            faults.executing = None
        busy_s = time.perf_counter() - began_s
        self.busy_s += busy_s
        self.process_s += busy_s * self.lasting(done)
        return taken[done:]

    def lasting(self, count: int) -> int:
        """Return how many of the tuples last as long as the run: one after the other, so one."""
        return 1

    def collect(self) -> None:
        """Fail tuples that another thread has called the collector for."""
        self._collector.faults.thread = get_ident()
        self._collector.fail_reported()

    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Nothing is being executed."""

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """None stays in hand."""

    @abstractmethod
    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute records, at least one, until the turn is over; return how many."""


class BasicExecution(SyncExecution):
    """Executes a BasicBolt: each tuple is done when ``execute`` returns, so none stays in hand."""

    def __init__(
        self, bolt: BasicBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        super().__init__(bolt, collector, intake, check, turn)
        self._bolt = bolt

    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute and ack or fail tuples."""
        collector, execute, turn = self._collector, self._bolt.execute, self._turn
        faults, emit, done = collector.faults, Emit(collector), 0
        for record, own in zip(records, anchors, strict=True):
            faults.executing = emit.current = tuple = Tuple(record, own, collector)
            try:
                execute(tuple, emit)
            except Exception as error:
                fail(tuple, error, collector)
            else:
                collector.ack(tuple)
            done += 1
            if monotonic() >= turn.until_s:
                break
        emit.current = None
        collector.counters.executed += done
        return done


class BatchExecution(SyncExecution):
    """Executes a batch at once: every tuple is done when ``execute`` returns, so none stays in hand.

    What a batch costs need not be the sum of its tuples, so it is not cut as short as other turns. It is one
    call of the bolt, so it ends when that returns.
    """

    turn_s = 2.0
    least_records = 100

    def __init__(
        self, bolt: SyncBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        super().__init__(bolt, collector, intake, check, turn)
        self._batch = BatchCollector(collector)

    @abstractmethod
    def give(self, batch: TupleBatch) -> None:
        """Let the bolt handle a batch."""

    def lasting(self, count: int) -> int:
        """Return how many of the tuples last as long as the run: all of the batch."""
        return count

    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute all records as one batch and ack those that were not failed."""
        collector = self._collector
        collector.faults.executing = batch = TupleBatch(records, anchors, collector)
        self._batch.begin(batch)
        try:
            self.give(batch)
        except Exception as error:
            for tuple in batch:
                if tuple._state is IN_HAND:
                    fail(tuple, error, collector)
        self._batch.finish()
        collector.counters.executed += len(batch)
        return len(batch)


class ListExecution(BatchExecution):
    """Executes a BatchBolt."""

    def __init__(
        self, bolt: BatchBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        super().__init__(bolt, collector, intake, check, turn)
        self._bolt = bolt

    def give(self, batch: TupleBatch) -> None:
        """Let the bolt handle a batch."""
        self._bolt.execute(batch, self._batch)


class HandExecution(SyncExecution):
    """Executes a Bolt, which acks by itself: tuples are in hand from here until then."""

    def __init__(
        self,
        bolt: Bolt,
        collector: Collector,
        intake: Intake,
        check: CheckError,
        hand: FindHand,
        turn: Turn,
    ) -> None:
        super().__init__(bolt, collector, intake, check, turn)
        self._bolt = bolt
        self._find_hand = hand
        self.max_in_hand, self.tick_interval_s = bolt.max_in_hand, bolt.tick_interval_s

    def lasting(self, count: int) -> int:
        """Return how many of the tuples last as long as the run: none, the worker counts what is in hand."""
        return 0

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Tell the bolt."""
        self._bolt.drop(tuples)

    def tick(self) -> None:
        """Let the bolt do what is due by the clock. Raises what it raises, and what ended the way out."""
        self._collector.faults.thread = get_ident()
        self._bolt.tick(self._collector)
        self._collector.check()

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Let the bolt forget, and fail, tuples whose trees have ended or will: their room is needed.

        An untracked tuple is in no tree, and nobody would emit it again.
        """
        collector, faults = self._collector, self._collector.faults
        faults.thread = get_ident()
        for tuple in find_late(tuples, timeout_s):
            if tuple._state is not IN_HAND:
                continue
            faults.executing = tuple
            try:
                self._bolt.timed_out(tuple, collector)
            except Exception as error:
                fail(tuple, error, collector)
            finally:
                faults.executing = None
            collector.fail_for_fault(tuple, HELD_TOO_LONG)
        collector.check()

    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute tuples; the bolt acks or fails them now or later."""
        collector, turn, done = self._collector, self._turn, 0
        faults, now_s = collector.faults, monotonic()
        for record, own in zip(records, anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            faults.executing = tuple = Tuple(record, own, collector, hand)
            tuple._since_s = now_s
            hand[tuple.offset] = tuple
            collector.counters.executed += 1
            try:
                self._bolt.execute(tuple, collector)
            except Exception as error:
                fail(tuple, error, collector)
            done += 1
            now_s = monotonic()
            if now_s >= turn.until_s:
                break
        return done


def find_late(tuples: Iterable[Tuple], timeout_s: float) -> list[Tuple]:
    """Return, and log, those of the begun tuples that are in hand and in a tree, and have had their time."""
    since_s = monotonic() - timeout_s
    late = [each for each in tuples if each._state is IN_HAND and each._since_s <= since_s and each.tracked]
    if late:
        text, action = "%d tuples in hand, first %r: %s", {"action": "held_too_long"}
        log.warning(text, len(late), late[0], HELD_TOO_LONG, extra=action)
    return late


def fail(tuple: Tuple, error: BaseException, collector: Collector) -> None:
    """Fail a tuple with an exception, unless the bolt has said something of it before.

    Raises what ended the way out: that is no tuple's fault.
    """
    collector.check()
    reason, tracked = reason_of(error), "" if tuple.tracked else "; it is untracked, so nobody emits it again"
    if not isinstance(error, Misuse) or not error.is_logged:
        log.warning(
            "%r failed: %s%s", tuple, reason, tracked, exc_info=error, extra={"action": "tuple_failed"}
        )
    collector.fail_for_fault(tuple, reason)
