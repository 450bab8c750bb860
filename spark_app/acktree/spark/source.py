"""``format("acktree")``: a spout, or a bolt, as a Spark streaming source, and the sink of a narrow plan.

Invariant: what Spark has logged is what is read; the driver-side state is in Kafka and in that log. Spark
builds the reader in several processes, so nothing is opened before the first offset is asked for.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from acktree.schemas.errors import AcktreeError
from acktree.schemas.registry import Published, read_history
from acktree.spark.driver.bolt_driver import BoltDriver
from acktree.spark.driver.spout_driver import IDLE_WAIT_S, SpoutDriver
from acktree.spark.driver.written_batches import WrittenBatches
from acktree.spark.options import SourceOptions
from acktree.spark.runtime.logged_batch import PlannedBatch
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

FORMAT = "acktree"


class ScannedTwice(AcktreeError):
    """The plan of a query with ``plan=narrow`` reads its source more than once in a batch."""


class AcktreeSource(DataSource):
    """Records of a spout or bolt with Spark's Kafka columns, plus ``anchors``: keep that column."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        wanted = SourceOptions.parse(dict(self.options)).include_headers
        return SCHEMA + (HEADERS_COLUMN if wanted else "")

    def streamReader(self, schema: StructType) -> "AcktreeStreamReader":
        return AcktreeStreamReader(SourceOptions.parse(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(dict(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make ``format("acktree")`` known to a session."""
    spark.dataSource.register(AcktreeSource)


class AcktreeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches with a driver of its role; reads them from their description alone."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._driver: SpoutDriver | BoltDriver | None = None
        self._first: PlannedBatch | None = None
        self._has_begun = False
        self._targets: dict[int, int] | None = None
        self._ends: dict[int, int] = {}
        self._versions: dict[int, Published] = {}
        self._written: WrittenBatches | None = None
        self._scanned: dict[str, Any] | None = None

    def _connected(self) -> SpoutDriver | BoltDriver:
        if self._driver is None:
            self._driver = (SpoutDriver if self._options.spout else BoltDriver)(self._options)
        return self._driver

    def _opened(self, logged: PlannedBatch | None) -> SpoutDriver | BoltDriver:
        driver = self._connected()
        if not driver.is_open:
            driver.open(logged)
        return driver

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins; Spark asks once more when it runs the first batch."""
        if self._first is None:
            self._first = self._opened(None).position()
        return self._first.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = self._options.max_offsets
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = self._connected().log_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Life of a record, step 2.
        logged = PlannedBatch.from_json(start)
        if self._options.plan:
            self._check_written(logged)
        if not self._has_begun and self._first not in (None, logged):
            self.stop()  # Spark has finished a first batch that it logged before a crash: go on behind it
        self._has_begun = True
        driver = self._opened(logged)
        driver.written(logged)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        wait_s = 0.0
        while True:
            driver.service(wait_s)
            self._ends = ends = driver.log_ends() if self._targets is None else self._targets
            batch = driver.next_batch(ends, max_rows)
            if batch is not None:
                return batch.to_json()
            if self._targets is None and wait_s:
                return start
            if self._targets is not None and driver.all_done(self._targets):
                driver.commit_and_report()
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
        tasks = [] if start == end else self._tasks(PlannedBatch.from_json(end))
        if not self._options.plan:
            return list(tasks)
        if end == self._scanned:
            raise ScannedTwice(
                "the plan reads the source more than once, as a union or a join of it with itself does: "
                f"{DECLARED_WRONGLY}"
            )
        self._scanned = end
        return list(declared_tasks(tasks, self._options.group))

    def _tasks(self, batch: PlannedBatch) -> list[ReadTask]:
        return read_tasks(self._options, self._published(batch.version), batch)

    def _published(self, version: int) -> Published:
        if version not in self._versions:
            options = self._options
            history = read_history(options.bootstrap, options.topology, options.kafka)
            self._versions[version] = history.at(version)
        return self._versions[version]

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
