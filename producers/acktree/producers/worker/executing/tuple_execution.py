"""Runs bolts that are called with one tuple at a time: BasicBolt, and Bolt, which acks by hand.

Invariant: a record counts as done together with the outcome of its tuple, or once that is in hand: both under
the collector's guard.
"""

from collections.abc import Collection, Sequence

from acktree.core import world
from acktree.producers.bolt import BasicBolt, Bolt, Emit
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.held_output import TupleOutput
from acktree.producers.loading import check_returned
from acktree.producers.tuples import IN_HAND, Place, Tuple
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.execution import (
    HELD_TOO_LONG,
    Chunk,
    FindHand,
    SyncExecution,
    fail,
    find_late,
    log_late,
    read_payload,
)
from acktree.producers.worker.executing.intake import AnchorSource


class BasicExecution(SyncExecution):
    """Executes a BasicBolt: each tuple is done when ``execute`` returns, so none stays in hand.

    In a transaction its children are held until then, so that others can be committed meanwhile.
    """

    def __init__(
        self,
        bolt: BasicBolt,
        collector: Collector,
        intake: AnchorSource,
        turn: Turn,
        *,
        exactly_once: bool = False,
    ) -> None:
        super().__init__(bolt, collector, intake, turn)
        self._bolt = bolt
        self._held = TupleOutput(collector.children, collector.counters) if exactly_once else None

    def execute(self, chunk: Chunk) -> None:
        """Execute and ack or fail tuples."""
        collector, execute, turn = self._collector, self._bolt.execute, self._turn
        acquire, release = collector.guard.acquire, collector.guard.release
        monotonic_s, ack = world.current().monotonic_s, collector._ack if self._held is None else self._send
        faults, emit, done = collector.faults, Emit(collector), 0
        decodes = collector.payloads.reads
        for record, own in zip(chunk.records, chunk.anchors, strict=True):
            tup = Tuple(record, own, collector)
            if not decodes or read_payload(tup, collector):
                faults.executing = emit.current = tup
                release()
                try:
                    if (found := execute(tup, emit)) is not None:
                        check_returned(found)
                except BaseException as error:
                    acquire()
                    if self._held is not None:
                        self._held.discard()
                    fail(tup, error, collector)
                else:
                    acquire()
                    ack(tup)
            chunk.done = done = done + 1
            if monotonic_s() >= turn.until_s:
                break
        emit.current = None
        collector.counters.executed += done

    def _send(self, tup: Tuple) -> None:
        """Send what was held of a tuple, and ack it, unless the worker has given it up."""
        assert self._held is not None
        if tup._state is IN_HAND:
            self._held.send(tup)
        else:
            self._held.discard()
        self._collector._ack(tup)


class HandExecution(SyncExecution):
    """Executes a Bolt, which acks by hand: its tuples are in hand until then."""

    def __init__(
        self,
        bolt: Bolt,
        collector: Collector,
        intake: AnchorSource,
        hand: FindHand,
        turn: Turn,
    ) -> None:
        super().__init__(bolt, collector, intake, turn)
        self._bolt = bolt
        self._find_hand = hand
        self.max_in_hand, self.tick_interval_s = bolt.max_in_hand, bolt.tick_interval_s

    def process_weight(self, count: int) -> int:
        """Return 0: the worker measures the time in hand instead."""
        return 0

    def begun(self, chunk: Chunk) -> int:
        """Return how many records the bolt has begun with: they are in hand, so they count as done."""
        return chunk.done

    def drop(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> bool:
        """Call the bolt's ``drop``."""
        self._bolt.drop(tuples)
        return False

    def tick(self) -> None:
        """Call the bolt's ``tick``. Raises what it raises, and the collector's fatal error."""
        self._bolt.tick(self._collector)
        self._collector.check()

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Call the bolt's ``timed_out`` for tuples whose trees have ended or will, and fail them.

        An untracked tuple is in no tree and would never be replayed, so it stays in hand.
        """
        collector, faults = self._collector, self._collector.faults
        for tup in log_late(find_late(tuples, timeout_s)):
            if tup._state is not IN_HAND:
                continue
            faults.executing = tup
            try:
                self._bolt.timed_out(tup, collector)
            except BaseException as error:
                with collector.guard:
                    fail(tup, error, collector)
            finally:
                faults.executing = None
            with collector.guard:
                collector.fail_for_fault(tup, HELD_TOO_LONG)
        collector.check()

    def execute(self, chunk: Chunk) -> None:
        """Execute tuples; the bolt acks or fails them now or later."""
        collector, turn, done = self._collector, self._turn, 0
        acquire, release = collector.guard.acquire, collector.guard.release
        monotonic_s = world.current().monotonic_s
        faults, now_s, decodes = collector.faults, monotonic_s(), collector.payloads.reads
        for record, own in zip(chunk.records, chunk.anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tup = Tuple(record, own, collector, hand)
            tup._since_s = now_s
            hand[tup.offset] = tup
            collector.counters.executed += 1
            chunk.done = done = done + 1
            if not decodes or read_payload(tup, collector):
                faults.executing = tup
                release()
                try:
                    if (found := self._bolt.execute(tup, collector)) is not None:  # type: ignore[func-returns-value]
                        check_returned(found)
                except BaseException as error:
                    acquire()
                    fail(tup, error, collector)
                else:
                    acquire()
            now_s = monotonic_s()
            if now_s >= turn.until_s:
                break
