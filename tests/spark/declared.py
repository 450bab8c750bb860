"""Queries that are written by ``writeStream.format("acktree")``, and functions that they use."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from acktree.spark import sink
from acktree.spark.runtime.available_now import stop_when_done
from acktree.spark.runtime.spark_version import HAS_ADMISSION_CONTROL
from acktree.spark.sink import RowWriter, narrow_writer
from acktree.spark.source import FORMAT, AcktreeSource, register
from acktree.spark.tasks.handoff import handoff_path
from producers.cluster import until
from spark.tester import StageTester

SCHEMA = "value binary, anchors binary"
ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class RowSource(AcktreeSource):
    """Writes as it does where Spark has no writers of Arrow batches (4.0)."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        sink.KIND = RowWriter
        return super().streamWriter(schema, overwrite)


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


def words(rows: DataFrame) -> DataFrame:
    """Return a row a word; a line that begins with a dash has none."""
    word = f.explode(f.split(f.col("value").cast("string"), " "))
    return rows.where("not startswith(cast(value as string), '-')").select(word.alias("value"), "anchors")


def first_batch_only(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from islice(batches, 1)


def first_batch_once_all_is_read(group: str) -> ArrowFunction:
    """Return a function that passes its first batch, and ends when its task has read all its records."""

    def is_all_read() -> bool:
        path = handoff_path(group)
        assert path is not None
        return path.read_bytes().endswith(b"end\n")

    def pass_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in islice(batches, 1):
            yield batch
            until(is_all_read, "the end of the rows")

    return pass_first


def raising_once(rows: DataFrame, flag: Path, guilty: bytes) -> DataFrame:
    """Pass all rows, but raise once at a record."""

    def check(value: bytes) -> bytes:
        if value.startswith(guilty) and not flag.exists():
            flag.touch()
            raise ValueError("a fault that passes")
        return value

    return rows.select(f.udf(check, "binary")("value").alias("value"), "anchors")


def options(tester: StageTester, **more: str) -> dict[str, str]:
    return tester.options(**({"spout": "in"} | more)) | {"plan": "narrow", "topic": f"{tester.name}.a"}


def lines(tester: StageTester, *, is_endless: bool = False, **more: str) -> DataFrame:
    """Return the rows of a source that ends when all that is there is done, unless it is endless."""
    register(tester.spark)
    is_ended_by_source = not (is_endless or HAS_ADMISSION_CONTROL)
    given = options(tester, **{"availableNow": f"{is_ended_by_source}"} | more)
    return tester.spark.readStream.format(FORMAT).options(**given).load()


def run(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that ends when all that is there is done, on any Spark."""
    if HAS_ADMISSION_CONTROL:
        return writer.trigger(availableNow=True).start()
    stop_when_done(query := writer.start())
    return query


def write(
    tester: StageTester, rows: DataFrame, *, of_sink: dict[str, str] | None = None, folder: str = "checkpoint"
) -> StreamingQuery:
    written = narrow_writer(rows, of_sink or options(tester))
    return run(written.option("checkpointLocation", str(tester.folder / folder)))


def start(tester: StageTester, plan: Callable[[DataFrame], DataFrame], **more: str) -> None:
    tester.query = write(tester, plan(lines(tester, **more)), of_sink=options(tester, **more))
