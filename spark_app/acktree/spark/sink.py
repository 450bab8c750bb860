"""``writeStream.format("acktree")``: the rows of a plan that the user declares narrow, as tuples.

Takes the place of ``foreachBatch`` and its stage, and needs no part of Spark's JVM, so it also works in
Spark Connect. Whether the plan is narrow is seen by its tasks (``tasks/handoff.py``) and, once a batch has
ended, by the source (``driver/written_batches.py``).
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from acktree.spark.shared.options import NARROW, BadOption, SourceOptions
from acktree.spark.tasks.writing.declared_task import write_declared
from acktree.spark.tasks.writing.row_columns import check_columns

ROWS = 10_000
"""Rows that are laid out together where Spark hands them over one by one."""
OF_SPARK = ("checkpointlocation", "queryname", "path")
"""Options of ``writeStream`` that Spark hands on to a sink."""
_PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
_KINDS = {
    "binary": pa.binary(),
    "string": pa.string(),
    "void": pa.null(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "bigint": pa.int64(),
}


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of a query: of Arrow batches where Spark has such writers (4.1), else of rows.

    Raises:
        BadOption: the plan is not declared, or another option is wrong.
        BadColumn: columns are missing or of a type that cannot be written.
    """
    # Life of a record, step 4.
    checked = SourceOptions.parse({name: options[name] for name in options if name.lower() not in OF_SPARK})
    if not checked.plan:
        raise BadOption(
            f"writeStream.format('acktree') needs option plan={NARROW}, and the source needs it, too; for a "
            "plan of another shape use foreachBatch and a stage"
        )
    if overwrite:
        raise BadOption("writeStream.format('acktree') has output modes append and update, not complete")
    columns = check_columns(schema, target_of(checked.topic))
    writer: DataSourceStreamWriter = KIND(checked, columns, schema)
    return writer


def target_of(topic: str) -> str:
    """Return what rows are written to, for messages."""
    return f"topic {topic!r}" if topic else "writeStream.format('acktree')"


class RowWriter(DataSourceStreamWriter):
    """Writes what one task is given, row by row."""

    def __init__(self, options: SourceOptions, columns: list[str], schema: StructType) -> None:
        self._options, self._columns, self._schema = options, columns, schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Write the rows and commit them; raises what ``write_declared`` raises."""
        places = [self._schema.names.index(name) for name in self._columns]
        kinds = [_KINDS.get(self._schema[at].dataType.simpleString(), pa.list_(_PAIR)) for at in places]

        def batches() -> Iterator[pa.RecordBatch]:
            while rows := list(islice(iterator, ROWS)):
                cells = [[_plain(row[at]) for row in rows] for at in places]
                columns = [pa.array(each, kind) for each, kind in zip(cells, kinds, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, self._columns)

        write_declared(batches(), self._options)
        return WriterCommitMessage()


def _plain(cell: Any) -> Any:
    """Return a cell as Arrow takes it."""
    if isinstance(cell, bytearray):
        return bytes(cell)
    if isinstance(cell, list):
        return [pair and {"key": pair[0], "value": _plain(pair[1])} for pair in cell]
    return cell


KIND: Any = RowWriter
"""What queries are written with."""
if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class ArrowWriter(datasource.DataSourceStreamArrowWriter):
        """Writes what one task is given, as Arrow batches."""

        def __init__(self, options: SourceOptions, columns: list[str], _schema: StructType) -> None:
            self._options, self._columns = options, columns

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Write the rows and commit them; raises what ``write_declared`` raises."""
            write_declared((batch.select(self._columns) for batch in iterator), self._options)
            return WriterCommitMessage()

    KIND = ArrowWriter
