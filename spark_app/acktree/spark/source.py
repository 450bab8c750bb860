"""``format("acktree")``: a spout, or a bolt, as a Spark streaming source, and the sink of a narrow plan.

Invariant: Spark's log alone decides what is read; the driver-side state is in Kafka and in that log. Spark
builds the reader in several processes, so nothing is opened before the first offset is requested.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from acktree.core.topology.registry import History, Published, read_history
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.spouts.driver.spout_driver import IDLE_WAIT_S, SpoutDriver
from acktree.producers.spouts.driver.task_fencing import fence_tasks
from acktree.spark.driver.bolt_driver import BoltDriver
from acktree.spark.driver.spark_spout import SparkSpoutDriver
from acktree.spark.driver.written_batches import WrittenBatches
from acktree.spark.runtime.begun_batch import BegunBatch
from acktree.spark.runtime.spark_version import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from acktree.spark.shared.options import SourceOptions
from acktree.spark.sink import stream_writer
from acktree.spark.tasks.handoff import DECLARED_WRONGLY
from acktree.spark.tasks.reading.read_task import (
    HEADERS_COLUMN,
    SCHEMA,
    ReadTask,
    declared_tasks,
    read_offsets,
    read_tasks,
)
from acktree.wire.errors import AcktreeError

FORMAT = "acktree"


class RequestedTooEarly(AcktreeError):
    """Spark requested an offset before it passed the one from its checkpoint: records would be skipped."""


class ScannedTwice(AcktreeError):
    """The plan of a query with ``plan=narrow`` reads its source more than once in a batch."""


class AcktreeSource(DataSource):
    """Records of a spout or bolt with Spark's Kafka columns, plus ``anchors``: keep that column."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        options = SourceOptions.parse(dict(self.options))
        if "includeheaders" not in options.given:
            options = options.within(_read_history(options).latest)
        return SCHEMA + (HEADERS_COLUMN if options.include_headers else "")

    def streamReader(self, schema: StructType) -> "AcktreeStreamReader":
        options = SourceOptions.parse(dict(self.options))
        return AcktreeStreamReader(options.with_headers("headers" in schema.names))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(dict(self.options), schema, overwrite)


def _read_history(options: SourceOptions) -> History:
    return read_history(options.bootstrap, options.topology, options.kafka)


def register(spark: SparkSession) -> None:
    """Make ``format("acktree")`` known to a session."""
    spark.dataSource.register(AcktreeSource)


class AcktreeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches with a driver of its role; reads them from their description alone."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._history: History | None = None
        self._driver: SpoutDriver | BoltDriver | None = None
        self._first: PlannedBatch | None = None
        self._has_begun = False
        self._is_done = False
        self._begun = BegunBatch()
        self._targets: dict[int, int] | None = None
        self._ends: dict[int, int] = {}
        self._written: WrittenBatches | None = None
        self._scanned: dict[str, Any] | None = None

    def _settled(self) -> SourceOptions:
        """Return the options with those of the topology, as it is published when this is first asked."""
        if self._history is None:
            self._history = _read_history(self._options)
            self._options = self._options.within(self._history.latest)
        return self._options

    def _connected(self) -> SpoutDriver | BoltDriver:
        if self._driver is None:
            options = self._settled()
            self._driver = (SparkSpoutDriver if options.spout else BoltDriver)(options)
            if options.transactions:
                places = [(source.topic, source.partition) for source in self._driver.topics.partitions]
                fence_tasks(options.bootstrap, options.group, places, options.kafka)
        return self._driver

    def _opened(self, logged: PlannedBatch | None) -> SpoutDriver | BoltDriver:
        driver = self._connected()
        if not driver.is_open:
            driver.open(logged)
        return driver

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins; Spark asks once more when it runs the first batch.

        And if that was logged before a crash: then what is logged says it, and nobody plans anything yet.
        """
        if self._first is None and self._begun.end is not None:
            return PlannedBatch.from_json(self._begun.end).without_records().to_json()
        if self._first is None:
            self._first = self._opened(None).position()
        return self._first.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = self._settled().max_offsets
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = _all_ends(self._connected())

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` if there is nothing to read.

        Spark 4.0 and 4.1 give neither ``start``, the end of the batch that has ended last, nor a limit.
        """
        # Life of a record, step 2.
        is_told = start is not None
        if start is None:
            if self._begun.awaited is not None:
                return self._begun.awaited
            start = self._begun.end or self.initialOffset()
        logged = PlannedBatch.from_json(start)
        if self._options.plan:
            self._check_written(logged)
        if not self._has_begun and self._first not in (None, logged):
            self.stop()  # Spark has finished a first batch that it logged before a crash: continue behind it
        self._has_begun = True
        driver = self._opened(logged)
        driver.written(logged)
        if self._options.available_now and self._targets is None:
            self._targets = _all_ends(driver)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if limit is None:
            max_rows = self._settled().max_offsets
        wait_s = 0.0 if not self._is_done else IDLE_WAIT_S
        while True:
            driver.service(wait_s)
            self._ends = ends = driver.log_ends() if self._targets is None else self._targets
            batch = driver.next_batch(ends, max_rows)
            if batch is not None:
                self._begun.planned(end := batch.to_json())
                return end
            # Where Spark gives no start it may end after this call: who never reads a result gets nowhere.
            if self._targets is None and wait_s and (is_told or driver.has_caught_up):
                return start
            if self._targets is not None and driver.all_done(self._targets):
                driver.commit_and_report()
                self._is_done = True
                return start
            wait_s = IDLE_WAIT_S

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what the query's progress shows as the source's ``latestOffset``: how far the spout is."""
        return self._driver.progress(self._ends) if self._driver is not None else None

    def _check_written(self, logged: PlannedBatch) -> None:
        """Check that a batch which Spark has ended was written. Raises NotWritten."""
        if self._written is None:
            self._written = WrittenBatches(self._options)
        self._written.check(logged, lambda: [task.name for task in self._tasks(logged)])

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        batch = PlannedBatch.from_json(end)
        if self._has_begun and self._begun.end is None and start == end:
            self._check_begin(batch)
        self._begun.begun(end)
        if start == end:
            # Given no tasks, Spark runs one that writes without reading, which a task takes as not narrow.
            return list(declared_tasks([], self._options.group)) if self._options.plan else []
        tasks = self._tasks(batch)
        if not self._options.plan:
            return list(tasks)
        if end == self._scanned:
            raise ScannedTwice(
                "the plan reads the source more than once, as a union or a self-join does: "
                f"{DECLARED_WRONGLY}"
            )
        self._scanned = end
        return list(declared_tasks(tasks or [ReadTask(())], self._options.group))

    def _tasks(self, batch: PlannedBatch) -> list[ReadTask]:
        tasks = read_tasks(self._settled(), self._published(batch.version), batch)
        if self._options.spout or not isinstance(driver := self._connected(), BoltDriver):
            return tasks
        return [replace(task, claim=driver.claim) for task in tasks]

    def _check_begin(self, logged: PlannedBatch) -> None:
        """Check what Spark has logged after it has asked for an offset: nothing behind it is skipped.

        Spark 4.0 and 4.1 do this under ``availableNow`` with its wrapper. The group's offsets say where to
        begin then; where they have expired it is startingOffsets, and that may be ``latest``.

        Raises:
            RequestedTooEarly: it was, and nothing has been logged yet.
        """
        ends = {(range_.topic, range_.partition): range_.end for range_ in logged.ranges}
        begins = {
            (r.topic, r.partition): r.start for r in reversed(self._first.ranges if self._first else ())
        }
        for place, begin in begins.items():
            if self._settled().starting_offsets == "latest" and begin > ends.get(place, begin):
                raise RequestedTooEarly(
                    f"offsets {ends[place]} to {begin} of {place[0]}/{place[1]} would be skipped: this "
                    "version of Spark passes its checkpoint's offset too late. Start with "
                    "startingOffsets=earliest, without "
                    "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
                )

    def _published(self, version: int) -> Published:
        if self._history is None or version not in self._history.versions:
            self._history = _read_history(self._options)
        return self._history.at(version)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask), partition
        return read_offsets(partition)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        if self._written is not None:
            self._written.close()
            self._written = None


def _all_ends(driver: SpoutDriver | BoltDriver) -> dict[int, int]:
    """Return by slot where logs end. Raises BrokerUnreachable: nobody knows where one of them does."""
    return driver.topics.whole(driver.log_ends(), driver.topics.partitions)
