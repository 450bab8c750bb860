"""Runs an AsyncBolt: many tuples at a time on one event loop, next to the loop that talks to Kafka.

Invariant: a tuple's output is buffered until its ``execute`` has ended, and sent by the Kafka loop's thread
together with its ack, in whatever order tuples end. At most ``max_concurrent`` tuples are executed at a time.
The event loop's thread uses the collector only to check emissions and to report a misuse.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from acktree.core import world
from acktree.producers.bolt import AsyncBolt, Context
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.traces import named
from acktree.producers.errors import is_of_tuple
from acktree.producers.kafka.back_pressure import BATCH_RECORDS
from acktree.producers.loading import check_returned
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import DROPPED, IN_HAND, Place, Record, Tuple
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.buffered_emit import BufferedEmit
from acktree.producers.worker.executing.execution import (
    HELD_TOO_LONG,
    Execution,
    FindHand,
    fail,
    find_late,
    log_late,
    read_payload,
    tuples_of,
)
from acktree.producers.worker.executing.intake import AnchorSource, read_anchors
from acktree.producers.worker.executing.loop_thread import LoopThread
from acktree.producers.worker.executing.waiting_tuples import WaitingTuples

log = logging.getLogger("acktree.bolt")

MAX_HELD_BYTES = 64 << 20
"""With this many bytes of tuples in hand, and of their children, no more are read."""
FIRST_RECORDS = 10
"""How many records are read before their size is known."""
EXECUTED_IN_A_ROW = 64
"""After this many tuples, a runner yields to the others even if no tuple has awaited anything."""
CHECK_INTERVAL_S = 0.005
MAX_ANSWER_S = 1.0
"""An event loop that has not answered for so long is blocked, by the tuple that it runs."""

End = tuple["BufferedEmit", BaseException | None]


class AsyncExecution(Execution):
    """Executes an AsyncBolt; a tuple is acked or failed when its ``execute`` has ended."""

    def __init__(
        self,
        bolt: AsyncBolt,
        collector: Collector,
        intake: AnchorSource,
        hand: FindHand,
        turn: Turn,
    ) -> None:
        self._bolt, self._collector, self._intake = bolt, collector, intake
        self._find_hand, self._turn = hand, turn
        self._max_open = 2 * bolt.max_concurrent
        self._loop = LoopThread("acktree-bolt", bolt.max_concurrent)
        self._waiting = WaitingTuples(has_key_order=bolt.order == "key")
        self._executing: dict[Tuple, asyncio.Task[None]] = {}
        self._ended: deque[End] = deque()
        self._resets: deque[Tuple] = deque()
        self._runners: dict[asyncio.Task[None], None] = {}
        self._abandoned: set[Tuple] = set()
        self._timed_out: set[Tuple] = set()
        self._open, self._busy_s = 0, 0.0
        self._taken_bytes, self._record_bytes = 0, MAX_HELD_BYTES // FIRST_RECORDS
        self._child_bytes = self._sent_bytes = 0  # each counted by one thread alone
        self._is_asked, self._asked_s = False, 0.0

    @property
    def busy_s(self) -> float:
        """Total time spent executing tuples."""
        return self._busy_s

    @property
    def max_records(self) -> int:  # type: ignore[override]
        """How many records to read next: as many as have room, by number and by size."""
        left_bytes = MAX_HELD_BYTES - self._taken_bytes - (self._child_bytes - self._sent_bytes)
        return max(0, min(BATCH_RECORDS, self._max_open - self._open, left_bytes // self._record_bytes))

    @property
    def takes_records(self) -> bool:
        """Whether there is room; for one record always."""
        return self._open == 0 or self.max_records > 0

    def wait(self) -> None:
        """Wait a moment if there is no room."""
        if not self.takes_records:
            world.sleep(CHECK_INTERVAL_S)

    @property
    def is_busy(self) -> bool:
        """Whether a tuple waits, is being executed, or has ended but was not collected yet."""
        return self._open > 0

    @property
    def moves(self) -> bool:
        """Whether the event loop has answered since the last turn; an idle one is not asked."""
        if self._is_asked:
            return False
        if self.is_busy:
            self._is_asked, self._asked_s = True, world.monotonic_s()
            self._loop.soon(self._answer)
        return True

    def _answer(self) -> None:
        self._is_asked = False

    def executing(self) -> Tuple | None:
        """Return the tuple that keeps the event loop from going on, else the first that is being executed."""
        executing = list(self._executing.items())
        running = self._loop.running_task()
        first = executing[0][0] if executing else None
        return next((tup for tup, task in executing if task is running), first)

    def prepare(self, context: Context) -> None:
        """Start the event loop and prepare the bolt on it."""
        self._loop.start()
        self._loop.wait(self._bolt.prepare(context))
        self._collector.faults.raises_between_tuples = False

    def cleanup(self) -> None:
        """Cancel what is still being executed, clean the bolt up, and end the event loop."""
        try:
            self._loop.wait_for_last(self._clean_up())
            self._loop.check()
        finally:
            self._loop.close()

    async def _clean_up(self) -> None:
        self._waiting.remove(set(self._waiting))
        for runner in (runners := list(self._runners)):
            runner.cancel()
        if runners:
            await asyncio.wait(runners, timeout=self._bolt.finish_timeout_s)
        await self._bolt.cleanup()

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Pass every record to the event loop, which executes it when there is room; none after a stop."""
        if self._turn.is_stopped:
            return records
        with self._collector.guard:
            self._take(records)
        self._loop.soon(self._start)
        return ()

    def _take(self, records: Sequence[Record]) -> None:
        collector = self._collector
        taken, all_anchors = read_anchors(records, self._intake, collector)
        decodes, total_bytes = collector.payloads.reads, 0
        for record, anchors in zip(taken, all_anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tup = Tuple(record, anchors, collector, hand)
            hand[tup.offset] = tup
            if decodes and not read_payload(tup, collector):
                collector.counters.executed += 1
                continue
            size = size_of(tup)
            self._taken_bytes += size
            total_bytes += size
            self._waiting.add(tup)
            self._open += 1
        if taken:
            self._record_bytes = max(1, total_bytes // len(taken))

    def _start(self) -> None:
        """Start as many runners as there are waiting tuples and free places."""
        for _ in range(min(len(self._waiting), self._bolt.max_concurrent - len(self._runners))):
            runner = asyncio.ensure_future(self._execute_waiting())
            self._runners[runner] = None
            runner.add_done_callback(self._runners.pop)

    async def _execute_waiting(self) -> None:
        """Execute waiting tuples one after the other until none is left, or until a stop."""
        executed, task = 0, asyncio.current_task()
        assert task is not None
        tup: Tuple | None = None
        while not self._turn.is_stopped and (tup := self._waiting.take(after=tup)) is not None:
            emit = BufferedEmit(self._collector, tup, self._resets)
            ended_by: BaseException | None = None
            began_s = world.monotonic_s()
            if tup._state is IN_HAND:
                tup._since_s = began_s
                self._executing[tup] = task
                try:
                    if (found := await self._bolt.execute(tup, emit)) is not None:  # type: ignore[func-returns-value]
                        check_returned(found)
                except BaseException as error:
                    if not is_of_tuple(error):
                        raise
                    ended_by = error
                del self._executing[tup]
                while task.cancelling():  # even if the bolt caught it: it must not cancel the next tuple
                    task.uncancel()
            emit.current = None
            self._child_bytes += emit.held_bytes
            self._busy_s += world.monotonic_s() - began_s
            self._ended.append((emit, ended_by))
            executed += 1
            if executed % EXECUTED_IN_A_ROW == 0:
                await asyncio.sleep(0)

    def collect(self) -> None:
        """Send what ended tuples emitted, and ack or fail them. Raises DeliveryFailed."""
        collector = self._collector
        self._loop.check()
        collector.fail_reported()
        while self._resets:
            tup = self._resets.popleft()
            if tup._state is IN_HAND:
                collector.reset_timeout(tup)
        while self._ended:
            emit, error = self._ended.popleft()
            tup = emit.tuple
            self._open -= 1
            self._taken_bytes -= size_of(tup)
            self._sent_bytes += emit.held_bytes
            if tup._state is DROPPED or tup in self._abandoned:
                self._abandoned.discard(tup)
                self._timed_out.discard(tup)
                continue
            collector.counters.executed += 1
            if tup in self._timed_out:
                self._timed_out.discard(tup)
            elif error is not None:
                fail(tup, error, collector)
            elif tup._state is IN_HAND and tup._fault is not None:
                collector.fail_for_fault(tup, tup._fault)
            elif tup._state is IN_HAND:
                for child in emit.children:
                    collector._emit_for(*child)
                collector.ack(tup)

    @property
    def thread(self) -> int | None:
        """The thread of the event loop."""
        return self._loop.thread_id

    def cut_off(self, timeout_s: float, reason: str) -> None:
        """Cancel and fail the tuples that have been executed for longer, including untracked ones.

        None while the event loop does not answer: the time counts against the one that blocks it alone.
        """
        now_s = world.monotonic_s()
        if self._is_asked and now_s - self._asked_s > min(MAX_ANSWER_S, timeout_s / 2):
            return
        since_s = now_s - timeout_s
        late = [tup for tup in list(self._executing) if tup._state is IN_HAND and tup._since_s <= since_s]
        if late:
            text, action = "%d tuples, first %s: %s", {"action": "execute_timeout"}
            log.warning(text, len(late), named(late[0]), reason, extra=action)
            self._cancel_and_fail(late, reason)

    def fail_executing(self, executing: Tuple | TupleBatch, reason: str, stack: str) -> None:
        """Fail the tuple that blocks the event loop; whatever its code does later is ignored."""
        self._timed_out.update(tuples := tuples_of(executing))
        for tup in tuples:
            self._collector.fail_for_fault(tup, reason, stack=stack)

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Cancel and fail tuples that have been executed for longer: their trees have ended or will.

        They fail immediately, even if the bolt ignores the cancellation, to make room for others.
        """
        late = log_late(find_late([tup for tup in tuples if tup in self._executing], timeout_s))
        if late:
            self._cancel_and_fail(late, HELD_TOO_LONG)

    def _cancel_and_fail(self, late: list[Tuple], reason: str) -> None:
        self._timed_out.update(late)
        self._loop.soon(self._cancel, late)
        for tup in late:
            self._collector.fail_for_fault(tup, reason)
        self._collector.check()

    def finish(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> None:
        """Wait up to ``finish_timeout_s`` for those of the tuples that are executed; drop the others."""
        waiting = self._loop.wait(self._end(set(tuples)))
        self._collector.drop(waiting)
        self._open -= len(waiting)
        self._taken_bytes -= sum(map(size_of, waiting))
        self.collect()

    async def _end(self, tuples: set[Tuple]) -> list[Tuple]:
        """Return the waiting ones, which will not be executed; cancel what takes longer than the timeout."""
        dropped = self._waiting.remove(tuples)
        deadline_s = world.monotonic_s() + self._bolt.finish_timeout_s
        while not tuples.isdisjoint(self._executing) and world.monotonic_s() < deadline_s:
            await asyncio.sleep(CHECK_INTERVAL_S)
        self._give_up(tuples)
        return dropped

    def drop(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> bool:
        """Stop executing tuples that another worker will read again."""
        self._loop.soon(self._give_up, set(tuples))
        return False

    def _give_up(self, tuples: set[Tuple]) -> None:
        """Cancel those of the tuples that are being executed, without outcome: they are read again."""
        executed = [tup for tup in self._executing if tup in tuples]
        self._abandoned.update(executed)
        self._cancel(executed)

    def _cancel(self, tuples: Iterable[Tuple]) -> None:
        """Cancel those of the tuples that are being executed."""
        for tup in tuples:
            if (task := self._executing.get(tup)) is not None:
                task.cancel()


def size_of(tup: Tuple) -> int:
    """Return the bytes of a tuple's value and key."""
    return len(tup.value or b"") + len(tup.key or b"")
