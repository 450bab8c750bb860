"""Running an AsyncBolt: many tuples at once on one event loop, beside the loop that speaks to Kafka.

Invariant: what a tuple says is kept until its ``execute`` has ended, and taken in by the Kafka loop's thread:
its children and its ack leave together, in whatever order tuples end. At most ``max_concurrent`` are executed
at once. The other thread touches no collector, but to check what is emitted and to report a mistake.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import NamedTuple

from acktree.producers.bolt import AsyncBolt, Context, Emit
from acktree.producers.collector import Collector, UserHeaders
from acktree.producers.errors import EmitAfterAck, Misuse, WrongThread
from acktree.producers.kafka.intake import CheckError, Intake, take_in
from acktree.producers.payloads import check_headers, check_payload
from acktree.producers.tuples import DROPPED, IN_HAND, Record, Tuple
from acktree.producers.worker.batch_sizing import Turn
from acktree.producers.worker.execution import HELD_TOO_LONG, Execution, FindHand, fail, find_late
from acktree.producers.worker.loop_thread import LoopThread

WAITING_TUPLES = 10_000
"""So many tuples are taken in ahead of those that are executed."""
EXECUTED_IN_A_ROW = 64
"""After so many tuples that did not need to wait, the others on the loop have their turn."""
LOOK_S = 0.005

End = tuple["LateEmit", BaseException | None]


class Child(NamedTuple):
    """What was emitted for one tuple."""

    value: bytes | str | None
    topic: str | None
    key: bytes | str | None
    headers: UserHeaders | None
    timestamp_ms: int | None


class LateEmit(Emit):
    """Keeps what one tuple emits until it ends."""

    __slots__ = ("children", "resets", "thread", "tuple")

    def __init__(self, collector: Collector, tuple: Tuple, resets: deque[Tuple]) -> None:
        super().__init__(collector)
        self.tuple = self.current = tuple
        self.resets = resets
        self.children: list[Child] = []
        self.thread = get_ident()

    def __call__(
        self,
        value: bytes | str | None,
        *,
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a child when ``execute`` has ended; raises as Emit does, and EmitAfterAck after that."""
        try:
            self._check()
            check_payload(value, key, timestamp_ms)
            if headers is not None:
                check_headers(headers)
            self._collector.targets.find(topic)
        except Misuse as misuse:
            self._collector.faults.report(misuse, self.tuple)
        self.children.append(Child(value, topic, key, headers and list(headers), timestamp_ms))

    def reset_timeout(self) -> None:
        """Let the message timeout begin anew; leaves at the worker's next turn, which waits for no tuple."""
        try:
            self._check()
        except Misuse as misuse:
            self._collector.faults.report(misuse, self.tuple)
        self.resets.append(self.tuple)

    def _check(self) -> None:
        if self.current is None:
            raise EmitAfterAck(f"cannot emit for {self.tuple!r}: its execute has ended; await what emits")
        if get_ident() != self.thread:
            raise WrongThread(
                f"cannot emit for {self.tuple!r} in thread {threading.current_thread().name!r}: an AsyncBolt "
                "emits on its event loop; let the thread return what is to be emitted"
            )


class AsyncExecution(Execution):
    """Executes an AsyncBolt: a tuple is acked or failed when its ``execute`` has ended."""

    def __init__(
        self,
        bolt: AsyncBolt,
        collector: Collector,
        intake: Intake,
        check: CheckError,
        hand: FindHand,
        turn: Turn,
    ) -> None:
        self._bolt, self._collector, self._intake, self._check = bolt, collector, intake, check
        self._find_hand, self._turn = hand, turn
        self.max_in_hand = bolt.max_concurrent + WAITING_TUPLES
        self._loop = LoopThread()
        self._waiting: deque[Tuple] = deque()
        self._executing: dict[Tuple, asyncio.Task[None]] = {}
        self._ended: deque[End] = deque()
        self._resets: deque[Tuple] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._given_up: set[Tuple] = set()
        self._timed_out: set[Tuple] = set()
        self._open = 0

    @property
    def is_busy(self) -> bool:
        """Whether a tuple waits, is executed, or has ended and was not taken in."""
        return self._open > 0

    def prepare(self, context: Context) -> None:
        """Start the event loop and prepare the bolt on it."""
        self._loop.start()
        self._loop.wait(self._bolt.prepare(context))
        self._collector.faults.raises_between = False

    def cleanup(self) -> None:
        """Clean the bolt up and end the event loop; what is still executed is cancelled before."""
        try:
            self._loop.wait(self._clean_up())
        finally:
            self._loop.close()

    async def _clean_up(self) -> None:
        self._waiting.clear()
        for runner in (runners := list(self._runners)):
            runner.cancel()
        if runners:
            await asyncio.wait(runners, timeout=self._bolt.finish_timeout_s)
        await self._bolt.cleanup()

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Let the event loop execute every record, now or when there is room, unless there was a stop."""
        if self._turn.is_stopped:
            return records
        collector = self._collector
        taken, all_anchors = take_in(records, self._intake, self._check, collector)
        for record, anchors in zip(taken, all_anchors, strict=True):
            hand = self._find_hand(record.topic() or "", record.partition() or 0)
            tuple = Tuple(record, anchors, collector, hand)
            hand[tuple.offset] = tuple
            self._waiting.append(tuple)
        self._open += len(taken)
        self._loop.soon(self._start)
        return ()

    def _start(self) -> None:
        """Start as many runners as there is work and room for."""
        for _ in range(min(len(self._waiting), self._bolt.max_concurrent - len(self._runners))):
            runner = asyncio.ensure_future(self._execute_waiting())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _execute_waiting(self) -> None:
        """Execute tuple after tuple until none waits, or until a stop."""
        executed, task = 0, asyncio.current_task()
        assert task is not None
        while self._waiting and not self._turn.is_stopped:
            tuple = self._waiting.popleft()
            emit = LateEmit(self._collector, tuple, self._resets)
            ended_by: BaseException | None = None
            began_s = time.perf_counter()
            if tuple._state is IN_HAND:
                tuple._since_s = time.monotonic()
                self._executing[tuple] = task
                try:
                    await self._bolt.execute(tuple, emit)
                except (asyncio.CancelledError, Exception) as error:
                    ended_by = error
                del self._executing[tuple]
                while task.cancelling():  # also where the bolt has caught it: the next tuple is not to blame
                    task.uncancel()
            emit.current = None
            self.busy_s += time.perf_counter() - began_s
            self._ended.append((emit, ended_by))
            executed += 1
            if executed % EXECUTED_IN_A_ROW == 0:
                await asyncio.sleep(0)

    def collect(self) -> None:
        """Send what ended tuples have emitted, and ack or fail them. Raises DeliveryFailed."""
        collector = self._collector
        collector.faults.thread = get_ident()
        self._loop.check()
        collector.fail_reported()
        while self._resets:
            tuple = self._resets.popleft()
            if tuple._state is IN_HAND:
                collector.reset_timeout(tuple)
        while self._ended:
            emit, error = self._ended.popleft()
            tuple = emit.tuple
            self._open -= 1
            if tuple._state is DROPPED or tuple in self._given_up:
                self._given_up.discard(tuple)
                self._timed_out.discard(tuple)
                continue
            collector.counters.executed += 1
            if tuple in self._timed_out:
                self._timed_out.discard(tuple)
            elif error is not None:
                fail(tuple, error, collector)
            elif tuple._state is IN_HAND and tuple._fault is not None:
                collector.fail_for_fault(tuple, tuple._fault)
            elif tuple._state is IN_HAND:
                for child in emit.children:
                    collector.emit(anchors=tuple, **child._asdict())
                collector.ack(tuple)

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Cancel, and fail, tuples that are executed for longer: their trees have ended or will.

        They fail at once, whatever the bolt makes of its cancellation: their room is needed.
        """
        late = find_late([tuple for tuple in tuples if tuple in self._executing], timeout_s)
        if not late:
            return
        self._timed_out.update(late)
        self._loop.soon(self._cancel, late)
        self._collector.faults.thread = get_ident()
        for tuple in late:
            self._collector.fail_for_fault(tuple, HELD_TOO_LONG)
        self._collector.check()

    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Wait ``finish_timeout_s`` for those of the tuples that are executed; drop those that wait."""
        waiting = self._loop.wait(self._end(set(tuples)))
        self._collector.drop(waiting)
        self._open -= len(waiting)
        self.collect()

    async def _end(self, tuples: set[Tuple]) -> list[Tuple]:
        """Return those that were waiting; they will not be executed."""
        dropped = self._take_out(tuples)
        deadline_s = time.monotonic() + self._bolt.finish_timeout_s
        while not tuples.isdisjoint(self._executing) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
        self._give_up(tuples)
        return dropped

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Stop executing tuples that another worker will read again."""
        self._loop.soon(self._give_up, set(tuples))

    def _take_out(self, tuples: set[Tuple]) -> list[Tuple]:
        """Return those of the tuples that wait, and let them wait no longer."""
        kept = [tuple for tuple in self._waiting if tuple not in tuples]
        taken = [tuple for tuple in self._waiting if tuple in tuples]
        self._waiting.clear()
        self._waiting.extend(kept)
        return taken

    def _give_up(self, tuples: Iterable[Tuple]) -> None:
        """Cancel those of the tuples that are executed; they are read again, so nothing is said of them."""
        executed = [tuple for tuple in tuples if tuple in self._executing]
        self._given_up.update(executed)
        self._cancel(executed)

    def _cancel(self, tuples: Iterable[Tuple]) -> None:
        """Cancel those of the tuples that are executed."""
        for tuple in tuples:
            if (task := self._executing.get(tuple)) is not None:
                task.cancel()
