"""Runs a bolt in its own thread, next to the loop that talks to Kafka.

Invariant: every method of the bolt is called by its one thread, one call after the other, without the
collector's guard. The loop gives it a chunk and waits for no longer than a turn. Then it may commit the done
part of the chunk, take the rest away, and give up the tuple being executed: its outcome is ignored.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from acktree.core import world
from acktree.core.reports.liveness import Liveness
from acktree.producers.bolt import Context
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.traces import named
from acktree.producers.kafka.back_pressure import BATCH_RECORDS
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Place, Record, Tuple, place_of
from acktree.producers.worker.executing.batch_sizing import BatchSizer, Turn
from acktree.producers.worker.executing.bolt_thread import BoltThread
from acktree.producers.worker.executing.execution import (
    Chunk,
    Execution,
    SyncExecution,
    find_late,
    tuples_of,
)

MAX_WAIT_S = 0.1
"""How long the loop waits at a time for a bolt that takes longer than a turn."""

log = logging.getLogger("acktree.bolt")

PutBack = Callable[[Sequence[Record]], object]


class ThreadedExecution(Execution):
    """Runs the work of ``inner`` in a separate thread."""

    def __init__(
        self, inner: SyncExecution, collector: Collector, turn: Turn, put_back: PutBack, progress: Liveness
    ) -> None:
        """``put_back`` takes records that were not executed."""
        self._inner, self._collector, self._turn, self._put_back = inner, collector, turn, put_back
        self._progress = progress
        self._thread = BoltThread("acktree-bolt")
        self._sizer = BatchSizer(inner.turn_s, inner.min_records, BATCH_RECORDS)
        self._chunk: Chunk | None = None
        self._dropped: list[Tuple] = []
        self._seen: tuple[int, int] | None = None
        self._left_call = 0
        self.turn_s, self.tick_interval_s = inner.turn_s, inner.tick_interval_s
        self.max_in_hand = inner.max_in_hand

    @property
    def max_records(self) -> int:  # type: ignore[override]
        """How many records to read next."""
        return self._sizer.records

    @property
    def busy_s(self) -> float:
        """Total time spent executing tuples, up to now."""
        return self._inner.busy_s

    @property
    def process_s(self) -> float:  # type: ignore[override]
        """The sum of the tuples' times from start to ack, without the time in hand."""
        return self._inner.process_s

    @property
    def is_busy(self) -> bool:
        """Whether the thread runs anything, or its outcome was not collected yet."""
        return self._thread.is_busy or self._chunk is not None

    @property
    def takes_records(self) -> bool:
        """Whether the thread waits for a chunk."""
        return not self.is_busy

    @property
    def may_time_out(self) -> bool:
        """Whether the thread waits for a call."""
        return not self.is_busy

    @property
    def moves(self) -> bool:
        """Whether the thread has ended a call, or a tuple of its chunk, since the last turn."""
        before = self._seen
        done = self._chunk.done if self._chunk is not None else 0
        self._seen = (self._thread.calls, done) if self._thread.is_busy else None
        return self._seen is None or self._seen != before

    @property
    def thread(self) -> int | None:
        """The thread of the bolt."""
        return self._thread.thread_id

    def executing(self) -> Tuple | TupleBatch | None:
        """Return what the bolt executes."""
        return self._inner.executing()

    def unfinished(self) -> Sequence[Record]:
        """Return the records of the chunk that are neither done nor in hand."""
        return self._chunk.left() if self._chunk is not None else ()

    def prepare(self, context: Context) -> None:
        """Start the thread and prepare the bolt in it."""
        self._thread.start()
        self._thread.begin(partial(self._inner.prepare, context))
        self._thread.wait()
        self._thread.check()

    def cleanup(self) -> None:
        """Clean the bolt up, unless its thread does not come back."""
        self._turn.stop()
        if self._wait_for_end():
            self._thread.error = None  # whatever it was, the worker ends
            self._thread.begin(self._inner.cleanup)
            self._thread.wait()
        self._thread.end()
        self._thread.check()

    def run(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give the records to the thread; return them if it is busy.

        A rebalance or a lost transaction in the read that returned them may have begun the bolt's ``drop``.
        """
        if self._turn.is_stopped or self.is_busy:
            return records
        self._thread.check()
        if (chunk := self._inner.take(records)) is not None:
            self._chunk = chunk
            self._begin(partial(self._inner.run_chunk, chunk))
        else:
            self._sizer.update(len(records), 0.0)
        return ()

    def _begin(self, call: Callable[[], object]) -> None:
        self._turn.begin(world.monotonic_s() + self.turn_s)
        self._thread.begin(call)

    def wait(self) -> None:
        """Wait until the thread has ended its call, for the rest of the turn or a moment."""
        if self._thread.is_busy:
            self._thread.wait(max(self._turn.until_s - world.monotonic_s(), MAX_WAIT_S))

    def collect(self) -> None:
        """Take what has ended. Raises what it has raised."""
        if not self._thread.is_busy:
            chunk, self._chunk = self._chunk, None
            self._thread.check()
            if chunk is not None:
                self._put_back(chunk.left())
                if chunk.executed and not chunk.is_given_up:
                    self._sizer.update(chunk.executed, chunk.took_s)
            if self._dropped:
                dropped, self._dropped = self._dropped, []
                self._call("drop", partial(self._inner.drop, dropped))
        self._inner.collect()

    def tick(self) -> None:
        """Call the bolt's ``tick``."""
        self._call("tick", self._inner.tick)

    def time_out(self, tuples: Sequence[Tuple], timeout_s: float) -> None:
        """Have tuples fail that were in hand for longer."""
        if self._inner.max_in_hand is not None and find_late(tuples, timeout_s):
            self._call("timed_out", partial(self._inner.time_out, tuples, timeout_s))

    def _call(self, name: str, method: Callable[[], object]) -> None:
        """Begin a call of a method that is no ``execute``."""

        def call() -> None:
            self._progress.calling = name
            try:
                method()
            finally:
                self._progress.calling = ""

        self._begin(call)

    def finish(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> None:
        """Wait for the tuple that is executed, if it is of these partitions; take the others away."""
        if not self.is_busy:
            return
        self._turn.end()
        if self._is_of(places):
            self._wait_for_end()
        with self._collector.guard:
            if self._thread.is_busy:
                self._cut()
            else:
                self.collect()

    def _is_of(self, places: Collection[Place] | None) -> bool:
        executing = self.executing()
        if places is None or not isinstance(executing, Tuple):
            return True
        return (executing.topic, executing.partition) in places

    def _wait_for_end(self) -> bool:
        """Return whether the thread has come back; wait for a call once, and log if it does not return."""
        is_known, self._left_call = self._left_call == self._thread.calls, self._thread.calls
        if self._thread.wait(0 if is_known else self._inner.finish_timeout_s):
            return True
        if is_known:
            return False
        executing = self.executing()
        text = "%s did not return within finish_timeout_s = %g: the next worker reads it again"
        about = named(tuples_of(executing)[0]) if executing is not None else "the bolt"
        log.warning(text, about, self._inner.finish_timeout_s, extra={"action": "execute_unfinished"})
        return False

    def _cut(self) -> None:
        """Take away what the bolt has not begun with; its thread ends the chunk after this tuple."""
        self._turn.end()
        if self._chunk is not None:
            self._put_back(self._chunk.cut(self._inner.begun(self._chunk)))

    def drop(self, tuples: Sequence[Tuple], places: Collection[Place] | None = None) -> bool:
        """Give up what is executed of these partitions, and call the bolt's ``drop`` as soon as it can be.

        What the bolt has not begun with is put back, whatever its partition: the caller clears it there.
        """
        self._dropped += tuples
        if not self._thread.is_busy:
            self.collect()
            return False
        self._cut()
        if self._chunk is None or not self._is_of(places):
            return False
        if (executing := self.executing()) is not None:
            self._collector.drop(tup for tup in tuples_of(executing) if tup._state is IN_HAND)
        others = places is not None and any(place_of(record) not in places for record in self._chunk.records)
        self._chunk.give_up()
        return others

    def fail_executing(self, executing: Tuple | TupleBatch, reason: str, stack: str) -> None:
        """Fail what does not return, take the rest of its chunk away, and ignore what comes of it."""
        self._cut()
        if self._chunk is not None:
            self._chunk.give_up()
        self._inner.fail_executing(executing, reason, stack)
