"""A bolt on Arrow tables: a batch of tuples in, tables or columns out. Needs pyarrow, the extra ``arrow``.

Invariant: the column ``row`` links output to input, as ``anchors`` do in Spark: an emitted row is anchored to
the tuple, or the list of tuples, whose row it names.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from acktree.producers.batch import BatchCollector, UnevenBatch
from acktree.producers.bolt import Context, SyncBolt
from acktree.producers.collector import Collector, UserHeaders
from acktree.producers.errors import MissingExtra, Misuse
from acktree.producers.kafka.intake import CheckError, Intake
from acktree.producers.native.columns import Column, plain
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.worker.batch_execution import BatchExecution
from acktree.producers.worker.batch_sizing import Turn

if TYPE_CHECKING:
    from pyarrow import Table


class BadTable(Misuse):
    """An emitted table has no column ``value`` or ``row``, or a row names no tuple of the batch."""


class ArrowCollector:
    """Emits children of a table's rows, and fails some of them; the others are acked after ``execute``."""

    def __init__(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        self._tuples, self._collector = tuples, collector
        self._all_rows = list(range(len(tuples)))

    def emit(self, table: "Table", *, topic: str | None = None, headers: UserHeaders | None = None) -> None:
        """Emit a child per row from the columns ``value``, ``row`` and optionally ``key``; ignore others.

        ``row`` is an integer, or a list of them for a child of several tuples.

        Raises:
            BadTable: see there. WrongTopic, EmitAfterAck, ReservedHeader: see there.
        """
        names = table.column_names
        if not {"value", "row"} <= set(names):
            self._collector.refuse(BadTable(f"a table to emit has columns value, row and key, not {names}"))
        keys = table["key"] if "key" in names else None
        self.emit_many(table["value"], table["row"], topic=topic, keys=keys, headers=headers)

    def emit_many(
        self,
        values: Column,
        rows: Any,
        *,
        topic: str | None = None,
        keys: Column = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Emit a child per value, anchored to the row at the same index; each an Arrow array or a sequence.

        Raises:
            UnevenBatch: values, rows and keys are not of one length. Otherwise as ``emit``.
        """
        if len(rows) != len(values) or (keys is not None and len(keys) != len(values)):
            self._collector.refuse(
                UnevenBatch(
                    f"{len(values)} values, {len(rows)} rows, {len(values if keys is None else keys)} keys: "
                    "one of each"
                )
            )
        rows = plain(rows, len(values))
        if rows == self._all_rows:
            self._collector.emit_many(values, self._tuples, topic=topic, keys=keys, headers=headers)
            return
        parents = [self._parents(row) for row in rows]
        if all(len(tuples) == 1 for tuples in parents):
            anchors = [tuples[0] for tuples in parents]
            self._collector.emit_many(values, anchors, topic=topic, keys=keys, headers=headers)
            return
        columns = (plain(values, len(parents)), plain(keys, len(parents)), parents)
        for value, key, anchors in zip(*columns, strict=True):
            self._collector.emit(value, anchors=anchors, topic=topic, key=key, headers=headers)

    def fail(
        self, row: int, reason: str | BaseException, *, retry_after_s: float | None = None, retry: bool = True
    ) -> None:
        """Fail one tuple by its row, as ``BatchCollector.fail``."""
        for tup in self._parents(row):
            self._collector.fail(tup, reason, retry_after_s=retry_after_s, retry=retry)

    def _parents(self, row: Any) -> list[Any]:
        rows, count = row if isinstance(row, list) else [row], len(self._tuples)
        if not rows or not all(isinstance(number, int) and 0 <= number < count for number in rows):
            self._collector.refuse(BadTable(f"row {row!r} names no tuple of this batch of {count}"))
        return [self._tuples[number] for number in rows]


class ArrowBolt(SyncBolt):
    """Handles a table of tuples at a time: those it does not fail are acked when it returns.

    What it emits is sent when it returns. After an exception nothing of it is sent, and the rows that were
    not failed before are executed again in halves, until those that raise alone fail, with type and text.
    """

    def execute(self, table: "Table", collector: ArrowCollector) -> None:
        """Handle a table of at least one row.

        Columns: row int32, value and key binary, both null where the record has none, topic string,
        partition int32, offset int64, timestamp_ms int64.
        """
        raise NotImplementedError


class ArrowExecution(BatchExecution):
    """Executes an ArrowBolt: every tuple is done when ``execute`` returns, so none stays in hand."""

    def __init__(
        self, bolt: ArrowBolt, collector: Collector, intake: Intake, check: CheckError, turn: Turn
    ) -> None:
        super().__init__(bolt, collector, intake, check, turn)
        self._arrow_bolt = bolt

    def prepare(self, context: Context) -> None:
        """Prepare the bolt. Raises MissingExtra."""
        if find_spec("pyarrow") is None:
            raise MissingExtra("an ArrowBolt needs pyarrow: pip install 'acktree[arrow]'")
        super().prepare(context)

    def give(self, batch: TupleBatch) -> object:
        """Let the bolt handle a batch as a table."""
        collector = ArrowCollector(batch, self._batch)
        return self._arrow_bolt.execute(make_table(batch), collector)  # type: ignore[func-returns-value]


def make_table(tuples: TupleBatch) -> "Table":
    """Return a batch as a table with a row per tuple."""
    import pyarrow

    count = len(tuples)
    places = [(tup.topic, tup.partition, tup.offset, tup.timestamp_ms) for tup in tuples]
    topics, partitions, offsets, times = zip(*places, strict=True)
    return pyarrow.table(
        {
            "row": pyarrow.array(range(count), pyarrow.int32()),
            "value": pyarrow.array(tuples.values, pyarrow.binary()),
            "key": pyarrow.array(tuples.keys, pyarrow.binary()),
            "topic": pyarrow.array(topics, pyarrow.string()),
            "partition": pyarrow.array(partitions, pyarrow.int32()),
            "offset": pyarrow.array(offsets, pyarrow.int64()),
            "timestamp_ms": pyarrow.array(times, pyarrow.int64()),
        }
    )
