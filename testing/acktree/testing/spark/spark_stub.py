"""Stands in for Spark: calls a source and a stage in the order of MicroBatchExecution, without a JVM.

Invariant: the source and the stage are the product's own, and are called as Spark calls them: an offset is
logged before anything of its batch is read, a batch is logged as done after its stage, and the source notices
with the next call. Only the checkpoint survives the process.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from acktree.core.reports.breaker import Breaker
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.spark.driver.source_check import check_source
from acktree.spark.shared.options import SourceOptions
from acktree.spark.source import AcktreeStreamReader
from acktree.spark.stage import QUERY_ID, Stage
from acktree.spark.tasks.writing.row_columns import COLUMNS
from acktree.testing.spark.spark_executors import EXECUTORS, Executors
from acktree.testing.spark.spark_frame import Context, SimulatedFrame
from acktree.testing.spark.spark_stage import RowFunction, RowTransform
from acktree.testing.virtual.kernel import Kernel, Process
from acktree.wire.errors import AcktreeError

POLLING_DELAY_S = 0.01
"""spark.sql.streaming.pollingDelay."""
KEPT_BATCHES = 100
"""spark.sql.streaming.minBatchesToRetain."""

Json = dict[str, Any]


class Calls(Enum):
    """Spark's ways to ask a source for offsets."""

    WITH_START = "4.2 and newer"
    WITHOUT_START = "4.0 and 4.1"
    REPORTED = "4.0 and 4.1, with availableNow again and again, and its wrapper enabled"
    """Spark asks before it has read the checkpoint, and once more at each trigger: that is only reported."""


class ConcurrentQuery(AcktreeError):
    """Two queries write to one checkpoint; Spark ends the second."""


@dataclass
class Checkpoint:
    """The part of a query that Spark keeps on disk: a name, and the logs of offsets and of commits."""

    query: str = ""
    offsets: dict[int, str] = field(default_factory=dict)
    """By batch, the end offset as JSON, logged before the batch is run."""
    commits: set[int] = field(default_factory=set)
    """Batches whose stage has ended."""

    def log_offset(self, batch: int, offset: Json) -> None:
        """Log what a batch reads. Raises ConcurrentQuery."""
        if batch in self.offsets:
            raise ConcurrentQuery(f"batch {batch} is already logged: another query uses this checkpoint")
        self.offsets[batch] = json.dumps(offset)

    def log_commit(self, batch: int) -> None:
        """Log that a batch is written. Raises ConcurrentQuery."""
        if batch in self.commits:
            raise ConcurrentQuery(f"batch {batch} is already committed: another query uses this checkpoint")
        self.commits.add(batch)

    def offset(self, batch: int) -> Json | None:
        """Return what a batch reads, None if that is not logged."""
        text = self.offsets.get(batch)
        return None if text is None else json.loads(text)

    def purge(self, batch: int) -> None:
        """Forget batches below one."""
        for old in [number for number in self.offsets if number < batch]:
            del self.offsets[old]
        self.commits = {number for number in self.commits if number >= batch}


class SparkApplication:
    """One ``acktree spark run``, in the driver's simulated process; every step is a method.

    Before each step, and at the places of a task, the kernel's ``on_call`` is called: ``spark.recover``,
    ``spark.initial_offset``, ``spark.latest_offset``, ``spark.log_offset``, ``spark.partitions``,
    ``spark.stage``, ``spark.log_commit``, ``spark.stop``; in executors ``spark.read``, ``spark.read_end``,
    ``spark.write``, ``spark.write_end``.
    """

    calls = Calls.WITH_START
    """Which version of Spark this stands for."""

    def __init__(
        self,
        kernel: Kernel,
        process: Process,
        options: Mapping[str, str],
        function: RowFunction,
        checkpoint: Checkpoint,
        *,
        ready: Callable[[], None] = lambda: None,
        executors: int = EXECUTORS,
        is_narrow: bool = True,
    ) -> None:
        """Check the source and connect the stage.

        Args:
            function: what the stage makes of a row, see ``RowTransform``.
            is_narrow: whether the transform keeps rows in their task; with False it has a shuffle.
        """
        self._kernel, self._process, self._ready = kernel, process, ready
        self._options, self.checkpoint = dict(options), checkpoint
        self._parsed = SourceOptions.parse(options)
        check_source(self._parsed)
        self._function, self._is_narrow = function, is_narrow
        self.executors = Executors(kernel, process, executors)
        self.context = Context(kernel, self.executors)
        self.stage = Stage(self._transform, options)
        self._parsed = self._parsed.with_headers(self.stage.options.include_headers)
        self.reader = AcktreeStreamReader(self._parsed)
        self._fetched: Json = {}
        self.batch = 0
        self.is_constructed = False
        self.committed: Json | None = None
        self.available: Json | None = None
        self._is_stopping = self._has_begun = False
        if not checkpoint.query:
            checkpoint.query = str(uuid.UUID(int=kernel.random.getrandbits(128)))
        self.context.setLocalProperty(QUERY_ID, checkpoint.query)

    @property
    def breaker(self) -> Breaker | None:
        """The breaker of the spout that is read, None where there is none yet."""
        driver = self.reader._driver
        return driver.breaker if isinstance(driver, SpoutDriver) else None

    @property
    def processes(self) -> list[Process]:
        """The processes that die with the driver."""
        return self.executors.processes

    def _transform(self, rows: Any) -> dict[str, Any]:
        """Return what the user's function makes of a batch, by topic."""
        emits = self.stage._emits()
        transform = RowTransform(self._function, emits)
        columns = tuple(COLUMNS)
        made = {
            topic: rows.changed(lambda batch, topic=topic: transform.rows_for(topic, batch), columns)
            for topic in emits
        }
        if not self._is_narrow:
            for frame in made.values():
                frame.scan = None
        return made

    # The query.

    def run(self) -> None:
        """Run until stopped. Raises what ends the query: a task's error, or the source's."""
        self.recover()
        while not self._is_stopping:
            self.trigger()
        self.stop_source()

    def stop(self) -> None:
        """Ask ``run`` to end after the current trigger."""
        self._is_stopping = True

    def trigger(self) -> None:
        """Run one batch, if there is something to read."""
        if not self.is_constructed:
            self.construct_next_batch()
        if self.is_constructed:
            self.run_batch()
            self.log_commit()
        elif self.calls is Calls.REPORTED:
            self._start_again()
        else:
            self._kernel.sleep(POLLING_DELAY_S)
        if not self._has_begun:
            self._has_begun = True
            self._ready()

    def recover(self) -> None:
        """Find out from the checkpoint where to begin: with the batch that is logged and not committed."""
        self._step("spark.recover")
        logged = self.checkpoint
        if self.calls is Calls.REPORTED:
            self._fetched = self.latest_offset()
        if not logged.offsets:
            return
        self.batch = max(logged.offsets)
        self.available = logged.offset(self.batch)
        assert self.available is not None
        self.reader.partitions(self.available, self.available)  # how Spark says what it has logged last
        self.committed = logged.offset(self.batch - 1)
        self.is_constructed = True
        if self.batch in logged.commits:
            self.committed, self.is_constructed = self.available, False
            self.batch += 1

    def construct_next_batch(self) -> None:
        """Ask the source what there is to read, and log it if that is something."""
        if self.calls is Calls.WITH_START:
            start = self.committed if self.committed is not None else self.initial_offset()
            self.available = self.latest_offset(start)
        elif self.calls is Calls.WITHOUT_START:
            self.available = self.latest_offset()
        else:
            self.available = self._fetched
            self.latest_offset()
        if self.available != self.committed:
            self.log_offset()
            self.is_constructed = True

    def initial_offset(self) -> Json:
        """Ask the source where it begins."""
        self._step("spark.initial_offset")
        return _through_json(self.reader.initialOffset())

    def latest_offset(self, start: Json | None = None) -> Json:
        """Ask the source how far it can be read; it learns that everything up to ``start`` is written."""
        self._step("spark.latest_offset")
        if start is None:
            return _through_json(self.reader.latestOffset())
        return _through_json(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))

    def log_offset(self) -> None:
        """Log the end of the batch; from here on it will be run, by this process or the next."""
        self._step("spark.log_offset")
        assert self.available is not None
        self.checkpoint.log_offset(self.batch, self.available)
        self.checkpoint.purge(self.batch - KEPT_BATCHES)

    def run_batch(self) -> None:
        """Plan the batch's tasks, and call the stage with its rows. Raises what failed it."""
        start = self.committed if self.committed is not None else self.initial_offset()
        assert self.available is not None
        rows = self.plan(start, self.available)
        self._step("spark.stage")
        self.executors.failure = None
        try:
            self.stage(rows, self.batch)
        except Exception as error:
            if self.executors.failure is not None and error is not self.executors.failure:
                raise self.executors.failure from error
            raise

    def plan(self, start: Json, end: Json) -> SimulatedFrame:
        """Return the rows of the batch, to be read by tasks."""
        self._step("spark.partitions")
        partitions = self.reader.partitions(start, end)
        reader = AcktreeStreamReader(self._parsed)  # tasks have their own reader
        columns = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "anchors"]
        if self._parsed.include_headers:
            columns.append("headers")
        return SimulatedFrame.of_source(self.context, partitions, reader.read, columns)

    def log_commit(self) -> None:
        """Log that the batch is written; the source learns of it with the next ``latest_offset``."""
        self._step("spark.log_commit")
        self.checkpoint.log_commit(self.batch)
        self.committed, self.is_constructed = self.available, False
        self.batch += 1

    def _start_again(self) -> None:
        """Start the query again, as somebody does whenever it has read what was there."""
        self.reader.stop()
        self._kernel.sleep(POLLING_DELAY_S)
        self.reader = AcktreeStreamReader(self._parsed)
        self.recover()

    def stop_source(self) -> None:
        """Stop the source in order, and the executors."""
        self._step("spark.stop")
        self.reader.stop()
        self.executors.close()

    def _step(self, name: str) -> None:
        self._kernel.on_call(self._process, name)


def _through_json(offset: Json) -> Json:
    """Return an offset as Spark has it: it keeps only its JSON."""
    copy: Json = json.loads(json.dumps(offset))
    return copy
