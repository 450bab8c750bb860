"""Running a bolt over a batch of input records, with one loop for each kind of bolt.

Invariant: one record's exception, or a call that breaks a rule, fails that tuple alone; a record with a
malformed header is rejected, counted and logged with its coordinates. A failed delivery is no tuple's fault
and stops the worker. Bolts executed tuple by tuple stop when the turn is over; ``run`` returns the rest.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from acktree.producers.bolt import BasicBolt, Bolt, Context, Emit, SyncBolt
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.traces import about, named
from acktree.producers.errors import InvalidRetry, Misuse, Reject, RetryLater, is_of_tuple, reason_of
from acktree.producers.loading import check_returned
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Hand, Record, Tuple
from acktree.producers.worker.batch_sizing import Turn
from acktree.producers.worker.intake import CheckError, Intake, read_anchors
from acktree.schemas import world
from acktree.schemas.control_records import BACK_OFF

log = logging.getLogger("acktree.bolt")

FindHand = Callable[[str, int], Hand]

HELD_TOO_LONG = "held longer than the message timeout"
"""The reason with which such a tuple fails."""


class Execution(ABC):
    """How one kind of bolt is run; all calls come from the thread of the Kafka loop."""

    max_in_hand: int | None = None
    """At this many tuples in hand, reading stops; None if none stays in hand."""
    turn_s = 0.1
    """How long acks, commits and a stop may wait for the bolt."""
    min_records = 1
    """The number of records that a turn may have even if they take longer."""
    process_s = 0.0
    """The sum of the tuples' times from start to ack, without the time in hand."""
    tick_interval_s: float | None = None
    """How often to call ``tick``; None: never."""

    @property
    @abstractmethod
    def busy_s(self) -> float:
        """Total time spent executing tuples, up to now; may be called by any thread."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether tuples are being executed outside the Kafka loop."""

    @property
    def moves(self) -> bool:
        """Whether what runs outside the Kafka loop has gone on since the last turn."""
        return True

    @abstractmethod
    def executing(self) -> Tuple | TupleBatch | None:
        """Return what the bolt executes; may be called by any thread."""

    @abstractmethod
    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""

    @abstractmethod
    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Execute records until the turn is over, at least one unless it is stopped; return the rest."""

    def tick(self) -> None:
        """Call the bolt's ``tick``, if its kind has one."""
        return

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Fail the tuples that were in hand for longer than this; most kinds hold none."""
        return

    def cut_off(self, timeout_s: float, reason: str) -> None:
        """Cancel and fail the tuples that were executed for longer than this; most kinds cannot."""
        return

    @property
    @abstractmethod
    def thread(self) -> int | None:
        """The thread that runs the bolt; None if it does not run."""

    @abstractmethod
    def cleanup(self) -> None:
        """Clean the bolt up."""

    @abstractmethod
    def collect(self) -> None:
        """Send the outcomes of tuples that were executed outside the Kafka loop."""

    @abstractmethod
    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Wait for those of the tuples that are being executed; do not start the others."""

    @abstractmethod
    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Release tuples in hand that another worker will read again."""


class SyncExecution(Execution):
    """Runs a bolt in the Kafka loop's thread: when ``run`` returns, nothing is being executed."""

    def __init__(
        self, bolt: SyncBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        self._sync_bolt, self._collector, self._turn = bolt, collector, turn
        self._intake, self._check = intake, check
        self._busy: tuple[float, float | None] = 0.0, None  # (before this run, when this run began)

    @property
    def busy_s(self) -> float:
        """Total time spent executing tuples, up to now."""
        before_s, began_s = self._busy
        return before_s if began_s is None else before_s + world.monotonic_s() - began_s

    @property
    def is_busy(self) -> bool:
        """Nothing runs outside the Kafka loop."""
        return False

    @property
    def thread(self) -> int | None:
        """The thread of the Kafka loop."""
        return self._collector.faults.thread

    def executing(self) -> Tuple | TupleBatch | None:
        """Return what the bolt executes."""
        return self._collector.faults.executing

    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""
        self._sync_bolt.prepare(context)
        self._collector.faults.raises_between_tuples = False

    def cleanup(self) -> None:
        """Clean the bolt up."""
        self._sync_bolt.cleanup()

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Execute records until the turn is over, and measure the time; return the rest."""
        # Life of an ack, step 2.
        if self._turn.is_stopped:
            return records
        self._collector.faults.thread = world.thread_id()
        taken, anchors = read_anchors(records, self._intake, self._check, self._collector)
        if not taken:
            return ()
        faults, before_s = self._collector.faults, self.busy_s
        self._busy = before_s, world.monotonic_s()
        try:
            done = self.execute(taken, anchors)
        finally:
            faults.executing = None
            self._busy = self.busy_s, None
        self.process_s += (self.busy_s - before_s) * self.process_weight(done)
        return taken[done:]

    def process_weight(self, count: int) -> int:
        """Return how often a run's duration counts as process time: once, as its tuples run one by one."""
        return 1

    def collect(self) -> None:
        """Fail the tuples named by refused calls of other threads."""
        self._collector.faults.thread = world.thread_id()
        self._collector.fail_reported()

    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Nothing to wait for: nothing is being executed."""

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Nothing to release: no tuple stays in hand."""

    @abstractmethod
    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute records, at least one, until the turn is over; return how many were executed."""


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
        monotonic_s = world.current().monotonic_s
        faults, emit, done = collector.faults, Emit(collector), 0
        decodes = collector.payloads.reads
        for record, own in zip(records, anchors, strict=True):
            tup = Tuple(record, own, collector)
            if not decodes or read_payload(tup, collector):
                faults.executing = emit.current = tup
                try:
                    if (found := execute(tup, emit)) is not None:
                        check_returned(found)
                except BaseException as error:
                    fail(tup, error, collector)
                else:
                    collector.ack(tup)
            done += 1
            if monotonic_s() >= turn.until_s:
                break
        emit.current = None
        collector.counters.executed += done
        return done


class HandExecution(SyncExecution):
    """Executes a Bolt, which acks by hand: its tuples are in hand until then."""

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

    def process_weight(self, count: int) -> int:
        """Return 0: the worker measures the time in hand instead."""
        return 0

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Call the bolt's ``drop``."""
        self._bolt.drop(tuples)

    def tick(self) -> None:
        """Call the bolt's ``tick``. Raises what it raises, and the collector's fatal error."""
        self._collector.faults.thread = world.thread_id()
        self._bolt.tick(self._collector)
        self._collector.check()

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Call the bolt's ``timed_out`` for tuples whose trees have ended or will, and fail them.

        An untracked tuple is in no tree and would never be replayed, so it stays in hand.
        """
        collector, faults = self._collector, self._collector.faults
        faults.thread = world.thread_id()
        for tup in find_late(tuples, timeout_s):
            if tup._state is not IN_HAND:
                continue
            faults.executing = tup
            try:
                self._bolt.timed_out(tup, collector)
            except BaseException as error:
                fail(tup, error, collector)
            finally:
                faults.executing = None
            collector.fail_for_fault(tup, HELD_TOO_LONG)
        collector.check()

    def execute(self, records: Sequence[Record], anchors: Sequence[bytes]) -> int:
        """Execute tuples; the bolt acks or fails them now or later."""
        collector, turn, done = self._collector, self._turn, 0
        monotonic_s = world.current().monotonic_s
        faults, now_s, decodes = collector.faults, monotonic_s(), collector.payloads.reads
        for record, own in zip(records, anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tup = Tuple(record, own, collector, hand)
            tup._since_s = now_s
            hand[tup.offset] = tup
            collector.counters.executed += 1
            if not decodes or read_payload(tup, collector):
                faults.executing = tup
                try:
                    if (found := self._bolt.execute(tup, collector)) is not None:  # type: ignore[func-returns-value]
                        check_returned(found)
                except BaseException as error:
                    fail(tup, error, collector)
            done += 1
            now_s = monotonic_s()
            if now_s >= turn.until_s:
                break
        return done


def find_late(tuples: Iterable[Tuple], timeout_s: float) -> list[Tuple]:
    """Return, and log, the tracked tuples in hand that began, or were reset, ``timeout_s`` ago or earlier."""
    since_s = world.monotonic_s() - timeout_s
    late = [tup for tup in tuples if tup._state is IN_HAND and tup._since_s <= since_s and tup.tracked]
    if late:
        text, extra = "%d tuples in hand, first %s: %s", about(late[0], "held_too_long")
        log.warning(text, len(late), named(late[0]), HELD_TOO_LONG, extra=extra)
    return late


def fail(tup: Tuple, error: BaseException, collector: Collector) -> None:
    """Fail a tuple with an exception, unless the bolt has already acked or failed it.

    The exception says when its record is emitted again. Raises the collector's fatal error, or this one, if
    it is no tuple's fault.
    """
    collector.check()
    if not is_of_tuple(error):
        raise error
    try:
        retry_after_ms = collector.retry_rules.of_error(error)
    except InvalidRetry as invalid:
        error, retry_after_ms = invalid, BACK_OFF
    reason, tracked = reason_of(error), "" if tup.tracked else "; it is untracked, so it is never replayed"
    if not isinstance(error, Misuse) or not error.is_logged:
        stack = None if isinstance(error, RetryLater | Reject) else error
        text, extra = "%s failed: %s%s", about(tup, "tuple_failed")
        log.warning(text, named(tup), reason, tracked, exc_info=stack, extra=extra)
    collector.fail_for_fault(tup, reason, retry_after_ms, collector.fails.stack_of(tup, error))


def read_payload(tup: Tuple, collector: Collector) -> bool:
    """Read a tuple's payload; return False if it failed because that cannot be read.

    Nothing is executed meanwhile: a registry that is away uses up no time limit of ``execute``.

    Raises RegistryUnavailable, the collector's fatal error.
    """
    collector.faults.executing = None
    try:
        tup._payload = collector.payloads.read(tup._record)
    except BaseException as error:
        fail(tup, error, collector)
        return False
    return True
