"""Runs a bolt over a chunk of input records, with one loop for each kind of bolt.

Invariant: one record's exception, or a call that breaks a rule, fails that tuple alone; a record with a
malformed header is rejected, counted and logged with its coordinates. A failed delivery is not a tuple's
fault and stops the worker. Bolts executed tuple by tuple stop when the turn is over. The collector's guard is
held except while user code runs; the done part of a chunk is known whenever the guard is free.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence

from acktree.core import world
from acktree.producers.bolt import Context, SyncBolt
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.fails import cut_traceback, place_of
from acktree.producers.collecting.traces import about, named
from acktree.producers.errors import InvalidRetry, Misuse, Reject, RetryLater, is_of_tuple, reason_of
from acktree.producers.kafka.back_pressure import BATCH_RECORDS
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Hand, Place, Record, Tuple
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.intake import AnchorSource, read_anchors
from acktree.wire.control_records import BACK_OFF

log = logging.getLogger("acktree.bolt")

FindHand = Callable[[str, int], Hand]

HELD_TOO_LONG = "held longer than the message timeout"
"""The reason with which such a tuple fails."""


class Execution(ABC):
    """Runs one kind of bolt; all calls come from the thread of the Kafka loop."""

    max_records = BATCH_RECORDS
    """How many records to read next."""
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

    @property
    def takes_records(self) -> bool:
        """Whether ``run`` takes records: not while a chunk is being executed that no other may join."""
        return True

    @property
    def may_time_out(self) -> bool:
        """Whether ``time_out`` may be called: not while a thread is busy that would have to call the bolt."""
        return True

    @abstractmethod
    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Begin to execute records; return those that it will not."""

    def wait(self) -> None:
        """Wait until what runs has ended, at most for the rest of the turn; without the guard."""
        return

    def unfinished(self) -> Sequence[Record]:
        """Return the records that were taken, and are neither done nor in hand."""
        return ()

    def tick(self) -> None:
        """Call the bolt's ``tick``, if its kind has one."""
        return

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Fail the tuples that were in hand for longer than this; most kinds hold none."""
        return

    def cut_off(self, timeout_s: float, reason: str) -> None:
        """Cancel and fail the tuples that were executed for longer than this; most kinds cannot."""
        return

    @abstractmethod
    def fail_executing(self, executing: Tuple | TupleBatch, reason: str, stack: str) -> None:
        """Fail what does not return; whatever its code does later is ignored."""

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
    def finish(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> None:
        """Wait for what is executed of these partitions, None for all, for a limited time; start no other.

        ``tuples`` are those in hand. Called without the guard.
        """

    @abstractmethod
    def drop(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> bool:
        """Release what is read again of these partitions, None for all: ``tuples`` in hand, and executed.

        Return whether tuples of other partitions were released with them, which must also be read again.
        """


class Chunk:
    """Records that a bolt executes in a row: the first ``done`` of them are acked, failed or in hand."""

    __slots__ = ("anchors", "done", "executed", "is_given_up", "records", "took_s")

    def __init__(self, records: Sequence[Record], anchors: Sequence[bytes]) -> None:
        self.records, self.anchors = records, anchors
        self.done = self.executed = 0
        self.took_s = 0.0
        self.is_given_up = False
        """Whether what is executed of it is read again, or has failed: its outcome no longer counts."""

    def left(self) -> Sequence[Record]:
        """Return the records that are not done."""
        return self.records[self.done :]

    def free(self) -> None:
        """Free what is done, once the bolt has returned: in its thread, whose cache has it."""
        self.executed, self.records, self.anchors, self.done = self.done, self.left(), (), 0

    def cut(self, begun: int) -> Sequence[Record]:
        """Remove and return the records that the bolt has not begun with."""
        rest, self.records = self.records[begun:], self.records[:begun]
        return rest

    def give_up(self) -> None:
        """Ignore what comes of the record that is executed."""
        self.records, self.is_given_up = self.records[: self.done], True


class SyncExecution(Execution):
    """Runs a bolt in the thread that calls ``run``: when that returns, nothing is being executed."""

    def __init__(self, bolt: SyncBolt, collector: Collector, intake: AnchorSource, turn: Turn) -> None:
        self._sync_bolt, self._collector, self._turn, self._intake = bolt, collector, turn, intake
        self._busy: tuple[float, float | None] = 0.0, None  # (before this chunk, when this chunk began)
        self.finish_timeout_s = bolt.finish_timeout_s

    @property
    def busy_s(self) -> float:
        """Total time spent executing tuples, up to now."""
        before_s, began_s = self._busy
        return before_s if began_s is None else before_s + world.monotonic_s() - began_s

    @property
    def is_busy(self) -> bool:
        """Nothing runs between two calls."""
        return False

    @property
    def thread(self) -> int | None:
        """The thread of the caller."""
        return world.thread_id()

    def executing(self) -> Tuple | TupleBatch | None:
        """Return what the bolt executes."""
        return self._collector.faults.executing

    def prepare(self, context: Context) -> None:
        """Prepare the bolt."""
        self._collector.faults.threads.add(world.thread_id())
        self._sync_bolt.prepare(context)
        self._collector.faults.raises_between_tuples = False

    def cleanup(self) -> None:
        """Clean the bolt up."""
        self._sync_bolt.cleanup()

    def take(self, records: Sequence[Record]) -> Chunk | None:
        """Return the chunk of the records that are tuples, if any is; reject the others."""
        taken, anchors = read_anchors(records, self._intake, self._collector)
        return Chunk(taken, anchors) if taken else None

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Execute records until the turn is over; return the rest."""
        if self._turn.is_stopped:
            return records
        if (chunk := self.take(records)) is None:
            return ()
        self.run_chunk(chunk)
        return chunk.left()

    def run_chunk(self, chunk: Chunk) -> None:
        """Execute a chunk until the turn is over, at least one record of it, and measure the time."""
        # Life of an ack, step 2.
        faults, before_s = self._collector.faults, self.busy_s
        self._busy = before_s, world.monotonic_s()
        self._collector.guard.acquire()
        try:
            if not chunk.is_given_up:
                self.execute(chunk)
        finally:
            faults.executing = None
            chunk.free()
            self._collector.guard.release()
            self._busy = self.busy_s, None
        chunk.took_s = self.busy_s - before_s
        self.process_s += chunk.took_s * self.process_weight(chunk.executed)

    def process_weight(self, count: int) -> int:
        """Return how often a run's duration counts as process time: once, as its tuples run one by one."""
        return 1

    def begun(self, chunk: Chunk) -> int:
        """Return how many records of a chunk the bolt has begun with, while user code runs."""
        return chunk.done + 1

    def collect(self) -> None:
        """Fail the tuples named by refused calls of other threads."""
        self._collector.fail_reported()

    def finish(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> None:
        """Nothing to wait for: nothing is being executed."""

    def drop(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> bool:
        """Nothing to release: no tuple stays in hand."""
        return False

    def fail_executing(self, executing: Tuple | TupleBatch, reason: str, stack: str) -> None:
        """Fail what is being executed."""
        for tup in tuples_of(executing):
            self._collector.fail_for_fault(tup, reason, stack=stack)

    @abstractmethod
    def execute(self, chunk: Chunk) -> None:
        """Execute records of a chunk, at least one, until the turn is over; called with the guard held."""


def tuples_of(executing: Tuple | TupleBatch) -> list[Tuple]:
    """Return the tuples of what is executed."""
    return [executing] if isinstance(executing, Tuple) else list(executing)


def find_late(tuples: Iterable[Tuple], timeout_s: float) -> list[Tuple]:
    """Return the tracked tuples in hand that began, or were reset, ``timeout_s`` ago or earlier."""
    since_s = world.monotonic_s() - timeout_s
    return [tup for tup in tuples if tup._state is IN_HAND and tup._since_s <= since_s and tup.tracked]


def log_late(late: list[Tuple]) -> list[Tuple]:
    """Log, and return, what ``find_late`` has found."""
    if late:
        text, extra = "%d tuples in hand, first %s: %s", about(late[0], "held_too_long")
        log.warning(text, len(late), named(late[0]), HELD_TOO_LONG, extra=extra)
    return late


def fail(tup: Tuple, error: BaseException, collector: Collector) -> None:
    """Fail a tuple with an exception, unless the bolt has already acked or failed it.

    The exception says when its record is emitted again. Raises the collector's fatal error, or this one, if
    no tuple caused it.
    """
    collector.check()
    if not is_of_tuple(error):
        raise error
    cut_traceback(error)
    try:
        retry_after_ms = collector.retry_rules.of_error(error)
    except InvalidRetry as invalid:
        error, retry_after_ms = invalid, BACK_OFF
    reason, place = reason_of(error), place_of(error)
    is_logged = isinstance(error, Misuse) and error.is_logged
    if not is_logged and not collector.lines.counts(kind := (type(error), place)):
        tracked = "" if tup.tracked else "; it is untracked, so it is never replayed"
        stack = None if isinstance(error, RetryLater | Reject) else error
        text, extra = f"{named(tup)} failed: {reason}{tracked}", about(tup, "tuple_failed")
        collector.lines.write_first(kind, logging.WARNING, text, extra, exc_info=stack)
    collector.fail_for_fault(tup, reason, retry_after_ms, collector.fails.stack_of(tup, error, place))


def read_payload(tup: Tuple, collector: Collector) -> bool:
    """Read a tuple's payload; return False if it failed because that cannot be read.

    Nothing is executed meanwhile: a registry that is away uses up no time limit of ``execute``. Called with
    the guard held, which is free meanwhile.

    Raises RegistryUnavailable, the collector's fatal error.
    """
    collector.faults.executing = None
    collector.guard.release()
    try:
        tup._payload = collector.payloads.read(tup._record)
    except BaseException as error:
        collector.guard.acquire()
        fail(tup, error, collector)
        return False
    collector.guard.acquire()
    return True
