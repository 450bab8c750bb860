"""Bolts, stages and a spout that the benchmarks run, in their own process or in one of a deployment.

A bolt that is given ``count`` calls it with how many tuples it has executed.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acktree.producers import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Child,
    Collector,
    Context,
    Emit,
    Failure,
    Message,
    Spout,
    SpoutEmitter,
    Tuple,
    stage,
)
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.tuple_batch import TupleBatch

Count = Callable[[int], None]


def work(value: bytes | None) -> bytes | None:
    """The user's function."""
    return value


class PassBasic(BasicBolt):
    def __init__(self, count: Count) -> None:
        self._count = count

    def execute(self, tup: Tuple, emit: Emit) -> None:
        emit(work(tup.value))
        self._count(1)


class PassBatch(BatchBolt):
    """Works on tuples, one by one."""

    def __init__(self, count: Count) -> None:
        self._count = count

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        collector.emit_many([work(tup.value) for tup in tuples], tuples)
        self._count(len(tuples))


class PassColumns(PassBatch):
    """Works on the column of values."""

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        collector.emit_many([work(value) for value in tuples.values], tuples)
        self._count(len(tuples))


class PassAsync(AsyncBolt):
    """Awaits nothing, so what is left is the cost of the event loop and of acks in any order."""

    def __init__(self, count: Count) -> None:
        self._count = count

    async def execute(self, tup: Tuple, emit: Emit) -> None:
        emit(work(tup.value))
        self._count(1)


@stage(reads=(), name="split")
def split_line(line: bytes) -> list[Child]:
    """Emit each word, its key as well: a stage."""
    return [Child(word, key=word) for word in line.split()]


class SplitBatches(BatchBolt):
    """The same for many lines in one call."""

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        words: list[bytes] = []
        anchors: list[Tuple] = []
        for tup in tuples:
            assert tup.value is not None
            of_line = tup.value.split()
            words += of_line
            anchors += [tup] * len(of_line)
        collector.emit_many(words, anchors, keys=words)


class CutOrders(BatchBolt):
    """Emits the items of each order: how many, and of how many bytes, says the file `load`."""

    def prepare(self, context: Context) -> None:
        self._items, size, _ = (float(word) for word in Path("load").read_text().split())
        self._keys = [b"%08d" % number for number in range(10_000)]
        self._value, self._next = b"x" * int(size), 0

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        items = int(self._items)
        keys = [self._keys[(self._next + number) % 10_000] for number in range(items * len(tuples))]
        self._next += len(keys)
        collector.emit_many(
            [self._value] * len(keys), [tup for tup in tuples for _ in range(items)], keys=keys
        )


class Busy(BasicBolt):
    """Uses so much CPU for each tuple, in ms, as the file `load` says."""

    def prepare(self, context: Context) -> None:
        self._work_s = float(Path("load").read_text().split()[2]) / 1000

    def execute(self, tup: Tuple, emit: Emit) -> None:
        until_s = time.thread_time() + self._work_s
        while time.thread_time() < until_s:
            pass


class CountValues(BatchBolt):
    """Counts in memory."""

    def __init__(self) -> None:
        self.counts: Counter[bytes | None] = Counter()

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        self.counts.update(tuples.values)


class Ack(BasicBolt):
    """Acks what it gets."""

    def execute(self, tup: Tuple, emit: Emit) -> None:
        pass


class FailPoison(Bolt):
    """Fails poison plainly, so it is tried again."""

    retry = True

    def execute(self, tup: Tuple, collector: Collector) -> None:
        if tup.value is not None and tup.value.startswith(b"poison"):
            collector.fail(tup, "poison", retry=self.retry)
        else:
            collector.ack(tup)


class RejectPoison(FailPoison):
    """Has poison never tried again."""

    retry = False


class FailWhileBad(BatchBolt):
    """Fails everything while there is a file `bad` in its folder."""

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        if Path("bad").exists():
            for tup in tuples:
                collector.fail(tup, "KeyError: 'city'")


class Paced(BasicBolt):
    """Works as slowly as the file `rate` says, in tuples a second, and counts in its own file."""

    def prepare(self, context: Context) -> None:
        self._counts = os.open(f"executed-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._next_s = self._looked_s = 0.0
        self._every_s = 0.0

    def execute(self, tup: Tuple, emit: Emit) -> None:
        now_s = time.monotonic()
        if now_s >= self._looked_s + 0.2:
            self._every_s, self._looked_s = 1 / float(Path("rate").read_text()), now_s
        self._next_s = max(self._next_s, now_s - 0.05) + self._every_s
        time.sleep(max(0.0, self._next_s - now_s))
        os.write(self._counts, b".")


def keyed(records: Any) -> Any:
    """Emit each record's key and value: a stage."""
    return records.select("key", "value", "anchors")


def values(records: Any) -> Any:
    """Emit each record's value: a stage."""
    return records.select("value", "anchors")


class Metronome(Spout):
    """Emits a record at each beat, late or not, and records how long after its beat each one was acked."""

    def __init__(self, rate_per_s: int, seconds: float, finished: Callable[[], None]) -> None:
        self.total = round(rate_per_s * seconds)
        self.latency_s: NDArray[np.float64] = np.full(self.total, np.nan)
        self.failed = 0
        self._beat_s, self._finished = 1 / rate_per_s, finished
        self._begin_s: float | None = None
        self._next = self._acked = 0

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        now_s = time.perf_counter()
        if self._begin_s is None:
            self._begin_s = now_s
        due = min(self.total, int((now_s - self._begin_s) / self._beat_s) + 1)
        for number in range(self._next, due):
            emitter.emit(b"x" * 100, number)
        self._next = due

    def ack(self, message: Message) -> None:
        assert isinstance(message.id, int)
        assert self._begin_s is not None
        self.latency_s[message.id] = time.perf_counter() - (self._begin_s + message.id * self._beat_s)
        self._count_finished()

    def fail(self, message: Message, failure: Failure) -> None:
        self.failed += 1
        self._count_finished()

    def _count_finished(self) -> None:
        self._acked += 1
        if self._acked == self.total:
            self._finished()
