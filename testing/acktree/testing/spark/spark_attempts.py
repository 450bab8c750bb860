"""Runs one attempt of a simulated Spark task: its two Python processes, and the rows between them.

Invariant: the writer sees its rows end in the same way whether or not all have arrived; only Spark's end
marker behind them proves that.
"""

import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.serializers import SpecialLengths

from acktree.testing.virtual.kernel import Kernel, Process
from acktree.wire.errors import AcktreeError

_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)

Batches = Iterator[pa.RecordBatch]


class TaskDied(AcktreeError):
    """A Python process of a simulated task died."""


class StepFailed(AcktreeError):
    """A step between the reading and the writing process of a simulated task failed."""


class State(Enum):
    """The state of an attempt."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True)
class TaskBody:
    """The work of a task: rows from a process that reads, through one that writes."""

    source: Callable[[], Batches]
    write: Callable[[Batches], Batches]


class Channel:
    """Rows on their way from the process that reads to the one that writes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._batches: deque[pa.RecordBatch] = deque()
        self._waiting: list[Any] = []
        self.is_closed = self.is_whole = False

    def put(self, batch: pa.RecordBatch) -> None:
        """Hand over rows."""
        self._batches.append(batch)
        self._wake()

    def close(self, *, is_whole: bool) -> None:
        """End it: the rows were all, or the reader is gone."""
        if not self.is_closed:
            self.is_closed, self.is_whole = True, is_whole
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._kernel.wake(task)

    def __iter__(self) -> Batches:
        """Yield the rows; as in Spark's Python processes the end looks the same, whole or not."""
        while True:
            while self._batches:
                yield self._batches.popleft()
            if self.is_closed:
                return
            self._waiting.append(self._kernel.current)
            self._kernel.wait(None, "rows of a Spark task")


class EndOfInput(io.RawIOBase):
    """Follows the rows on the socket of a Python process: Spark's end marker, if they were all."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def readable(self) -> bool:
        """See RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Give the marker, or nothing: the socket is closed."""
        if not self._channel.is_whole:
            return 0
        buffer[: len(_END)] = _END
        return len(_END)


@dataclass(eq=False)
class Attempt:
    """One attempt of a task; it is the TaskContext of its two processes."""

    executor: "Executor"
    index: int
    number: int
    id: int
    stage: int
    properties: Mapping[str, str]
    state: State = State.RUNNING
    result: list[pa.RecordBatch] = field(default_factory=list)
    error: BaseException | None = None
    updates: list[Callable[[], None]] = field(default_factory=list)
    """What it adds to accumulators, if it ends well."""
    processes: tuple[Process, ...] = ()
    channel: Channel = field(init=False)
    is_twin: bool = False

    @property
    def folder(self) -> Path:
        """See acktree.spark.runtime.task_context, as the methods below."""
        return self.executor.folder

    def attemptNumber(self) -> int:
        return self.number

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)

    def partitionId(self) -> int:
        return self.index

    def stageId(self) -> int:
        return self.stage

    def taskAttemptId(self) -> int:
        return self.id


@dataclass(eq=False)
class Executor:
    """A place for tasks: Python processes that are used again, and a folder."""

    name: str
    folder: Path
    idle: dict[str, list[Process]] = field(default_factory=lambda: {"reader": [], "writer": []})
    all: list[Process] = field(default_factory=list)
    running: list[Attempt] = field(default_factory=list)
    is_lost: bool = False
    silent_since_s: float | None = None
