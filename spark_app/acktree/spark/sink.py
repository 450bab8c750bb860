"""``writeStream.format("acktree")``: writes the rows of a plan that the user declares narrow as tuples.

It replaces ``foreachBatch`` and its stage, and needs no part of Spark's JVM, so it also works in Spark
Connect. Whether the plan is narrow is checked by its tasks (``tasks/handoff.py``) and, once a batch has
ended, by the source (``driver/written_batches.py``).
Invariant: a query starts only if every join in it is a broadcast join. Spark may run any other join as a
Cartesian product: it reads each record in several tasks, and the first ones look like those of a narrow plan.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.shared.options import NARROW, SourceOptions
from acktree.spark.tasks.writing.declared_task import write_declared
from acktree.spark.tasks.writing.row_columns import check_columns
from acktree.wire.errors import AcktreeError

ROWS = 10_000
"""Rows that are laid out together where Spark hands them over one by one."""
OF_SPARK = ("checkpointlocation", "queryname", "path")
"""Options of ``writeStream`` that Spark hands on to a sink."""
JOINS_CHECKED = "joinschecked"
"""The option by which ``narrow_writer`` tells the sink that it has looked at the plan."""
_OPTIMIZED = re.compile(r"^== Optimized Logical Plan ==$(.*)^== Physical Plan ==$", re.MULTILINE | re.DOTALL)
_JOIN = re.compile(r"^[^\w\n]*(\w*Join\b.*)", re.MULTILINE)
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


class NotABroadcastJoin(AcktreeError):
    """A plan that is declared narrow has a join that Spark need not run as a broadcast join."""


def narrow_writer(rows: DataFrame, options: Mapping[str, str]) -> DataStreamWriter:
    """Return what writes the rows of a narrow plan; ``options`` are those of its source.

    Raises:
        NotABroadcastJoin: the plan has a join without the hint to broadcast a side.
    """
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        rows.explain(extended=True)
    plan = _OPTIMIZED.search(printed.getvalue())
    assert plan is not None, f"Spark explains this plan in another form: {printed.getvalue()}"
    if joins := [join for join in _JOIN.findall(plan[1]) if "strategy=broadcast" not in join]:
        raise NotABroadcastJoin(
            f"the plan has a join that may read a record in several tasks ({joins[0]}): with plan=narrow "
            "add a broadcast hint to the table, or leave plan=narrow out and write with a stage"
        )
    return rows.writeStream.format("acktree").options(**options).option(JOINS_CHECKED, "true")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of a query: of Arrow batches where Spark has such writers (4.1), else of rows.

    Raises:
        BadOption: the plan is not declared, or another option is wrong.
        BadColumn: columns are missing or of a type that cannot be written.
    """
    # Life of a record, step 4.
    given = {name.lower(): value for name, value in options.items() if name.lower() not in OF_SPARK}
    is_checked = given.pop(JOINS_CHECKED, "") == "true"
    checked = SourceOptions.parse(given)
    if not checked.plan:
        raise BadOption(
            f"writeStream.format('acktree') needs option plan={NARROW}, as does the source; for a "
            "plan of another shape use foreachBatch and a stage"
        )
    if not is_checked:
        raise BadOption(
            f"start a query with plan={NARROW} through acktree.spark.app.start(), or make its writer with "
            "acktree.spark.sink.narrow_writer(rows, options): both check its joins"
        )
    if overwrite:
        raise BadOption("writeStream.format('acktree') supports output modes append and update, not complete")
    columns = check_columns(schema, target_of(checked.topic))
    writer: DataSourceStreamWriter = KIND(checked, columns, schema)
    return writer


def target_of(topic: str) -> str:
    """Return what rows are written to, for messages."""
    return f"topic {topic!r}" if topic else "writeStream.format('acktree')"


class RowWriter(DataSourceStreamWriter):
    """Writes the rows of one task, one by one."""

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
        """Writes the rows of one task, as Arrow batches."""

        def __init__(self, options: SourceOptions, columns: list[str], _schema: StructType) -> None:
            self._options, self._columns = options, columns

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Write the rows and commit them; raises what ``write_declared`` raises."""
            write_declared((batch.select(self._columns) for batch in iterator), self._options)
            return WriterCommitMessage()

    KIND = ArrowWriter
