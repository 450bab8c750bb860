"""Runs a query like those of ``spark run``, without a broker, whose classes go into the archive.

    python -m acktree.spark.class_archive_query FILE

writes the archive when the JVM ends; see ``runtime/class_archive.py``.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from acktree.spark.app import make_session
from acktree.spark.runtime.class_archive import options_to_make
from acktree.spark.runtime.plan_shape import is_narrow, is_straight, rdds_before

SCHEMA = (
    "anchors binary, key binary, value binary, "
    "topic string, partition int, offset bigint, timestamp timestamp"
)
BATCHES = 3
EXIT_TIMEOUT_S = 120


class FewRows(DataSourceStreamReader):
    """Three batches of two rows."""

    def initialOffset(self) -> dict[str, int]:
        """See DataSourceStreamReader."""
        return {"batch": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """See DataSourceStreamReader."""
        return {"batch": min(BATCHES, (start or {"batch": 0})["batch"] + 1)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """See DataSourceStreamReader."""
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See DataSourceStreamReader."""
        yield pa.RecordBatch.from_pydict(
            {
                "anchors": [b"a"], "key": [b"k"], "value": [b"a word"],
                "topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [0],
                "timestamp": pa.array([0], pa.timestamp("us", "UTC")),
            }
        )  # fmt: skip

    def commit(self, end: dict[str, int]) -> None:
        """See DataSourceStreamReader."""


class RowSource(DataSource):
    """A source in Python, like acktree's."""

    @classmethod
    def name(cls) -> str:
        """See DataSource."""
        return "acktree-class-archive"

    def schema(self) -> str:
        """See DataSource."""
        return SCHEMA

    def streamReader(self, schema: Any) -> FewRows:
        """See DataSource."""
        return FewRows()


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"roots": [sum(batch.num_rows for batch in batches)]})


def _write(batch: DataFrame, _batch_id: int) -> None:
    assert is_straight(rdds_before(batch))
    words = batch.selectExpr("anchors", "key", "explode(split(cast(value as string), ' ')) as value")
    words = words.selectExpr("anchors", "cast(key as binary) key", "cast(value as binary) value").where(
        "value is not null"
    )
    assert is_narrow(words, batch)
    one_pass = words.mapInArrow(_count, "roots bigint")
    two_passes = words.union(words).repartition(2, "anchors").mapInArrow(_count, "roots bigint")
    for counted in (one_pass, two_passes):
        assert sum(row["roots"] for row in counted.collect())


def _run(session: SparkSession, checkpoint: Path) -> None:
    session.dataSource.register(RowSource)
    rows = session.readStream.format("acktree-class-archive").load()
    writer = rows.writeStream.foreachBatch(_write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        while query.lastProgress is None or query.lastProgress.batchId < BATCHES - 1:
            query.awaitTermination(1)
    finally:
        query.stop()


def main(path: str) -> None:
    """Run the query, and wait until the JVM has ended."""
    session = make_session("acktree class archive", options_to_make(Path(path)))
    with tempfile.TemporaryDirectory() as checkpoint:
        _run(session, Path(checkpoint))
    session.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_TIMEOUT_S)


if __name__ == "__main__":
    main(sys.argv[1])
