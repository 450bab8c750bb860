"""The executor side of the stage: write tuples, then one init (or ack) per root.

Invariant: a task ends only when everything it produced is in the broker's log; a failed delivery fails the
task. A root's init is written by exactly one task, from the XOR over every tuple of the root in the batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from acktree.producers.columns import Rows, plain
from acktree.producers.packing import fold_entries
from acktree.schemas.clients import Settings
from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import HEADER
from acktree.schemas.ids import IdArray, fnv1a64
from acktree.schemas.registry import History
from acktree.spark.anchoring import VALUES, Headers, anchor_rows, by_version, failed_roots, own_values
from acktree.spark.marks import BatchName
from acktree.spark.outbox import Box, outbox
from acktree.spark.task_notes import forget_note, noted_anchors, read_note
from acktree.spark.task_runs import TaskRuns
from acktree.spark.telling import Telling
from acktree.spark.transactions import begin_transaction

COUNT_SCHEMA = "roots bigint"


class NotNarrow(AcktreeError):
    """A task was given a row whose root it has not read: the plan between is not narrow."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What the tasks of one batch need to know; ``version`` is the emission's, ``bolt`` "" for a spout."""

    bootstrap: str
    user: Settings = field(repr=False)  # may hold a password
    history: History
    version: int
    group: str
    batch: BatchName
    spout: str = ""
    bolt: str = ""

    @property
    def own_hashes(self) -> tuple[int, ...]:
        return (fnv1a64(self.bolt),) if self.bolt else ()

    def telling(self, box: Box) -> Telling:
        return Telling(self.bootstrap, self.user, self.history, self.spout, self.bolt, box)


Begin = Callable[[StagePlan], Box | None]
"""Returns what a task writes to, None if all was written before."""


class Writer:
    """Writes the rows of one task to one topic."""

    def __init__(self, plan: StagePlan, topic: str, box: Box) -> None:
        self._version, self._topic, self._box = plan.version, topic, box
        self._reader_hashes = plan.history.readers(plan.version, topic).hashes

    def write(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Write rows (value, anchors, optional key, headers, fail); return what they say of their roots."""
        said = []
        if "fail" in batch.schema.names and batch.column("fail").null_count < len(batch):
            rejected = batch.filter(pc.is_valid(batch.column("fail")))
            said.append(failed_roots(*(rejected.column(n).to_pylist() for n in ("anchors", "fail"))))
            batch = batch.filter(pc.is_null(batch.column("fail")))
        anchors = batch.column("anchors")
        headers, values = anchor_rows(anchors, self._version, self._box.edges, self._reader_hashes)
        if values is not None:
            said.append(values)
        self._produce({name: batch.column(name) for name in batch.schema.names}, headers)
        self._box.serve()
        return said

    def _produce(self, columns: dict[str, pa.Array], headers: Headers) -> None:
        values, keys = columns["value"], columns.get("key")
        if "headers" not in columns or columns["headers"].null_count == len(values):
            for _, error in self._box.produce_rows(self._topic, Rows(values, keys, headers)):
                raise error
            return
        count, extra = len(values), columns["headers"].to_pylist()
        rows = zip(plain(values, count), plain(keys, count), extra, plain(headers, count), strict=True)
        for value, key, pairs, header in rows:
            kept = [(pair["key"], pair["value"]) for pair in pairs or () if pair["key"] != HEADER]
            self._box.produce(self._topic, value, key, [*kept, *([(HEADER, header)] if header else ())])


def write_whole(
    batches: Iterator[pa.RecordBatch],
    plan: StagePlan,
    topic: str,
    begin: Begin,
    runs: TaskRuns | None = None,
) -> Iterator[pa.RecordBatch]:
    """Write tuples and then the inits of all roots that this task has read; yield how many roots.

    Only for a narrow plan with one output: every row of a root is read and written in one task.

    Raises:
        NoNote, NotNarrow: the plan was not narrow; no init has been sent.
    """
    try:
        count = _write_noted(batches, plan, topic, begin)
    finally:
        forget_note()
    yield _counted(count)
    if runs is not None:
        runs.note(topic)


def _write_noted(batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str, begin: Begin) -> int:
    first = next(batches, None)
    box = begin(plan)
    if box is None:
        for _ in batches:
            pass
        return 0
    try:
        writer = Writer(plan, topic, box)
        said: list[pa.RecordBatch] = []
        for batch in chain(() if first is None else (first,), batches):
            said += writer.write(batch)
        inputs = own_values(noted_anchors(), plan.own_hashes)
        return _tell([inputs, *said], plan, box, most=len(inputs))
    except BaseException:
        box.give_up()
        raise


def in_transaction(plan: StagePlan) -> Box | None:
    """Begin the transaction of what this task reads; None if an earlier run of the task has committed it."""
    return begin_transaction(plan.bootstrap, plan.user, plan.group, plan.batch, read_note())


def without_transaction(plan: StagePlan) -> Box:
    """Return what to write to, in a task that has read its rows itself."""
    read_note()
    return outbox(plan.bootstrap, plan.user)


def write_tuples(
    batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str, runs: TaskRuns
) -> Iterator[pa.RecordBatch]:
    """Write rows to a topic; yield what they say of their roots."""
    box = outbox(plan.bootstrap, plan.user)
    writer = Writer(plan, topic, box)
    for batch in batches:
        yield from writer.write(batch)
    box.settle()
    runs.note(topic)


def input_values(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Yield what the inputs themselves add per root, so that a record that yields no row is told, too."""
    for batch in batches:
        yield own_values(b"".join(filter(None, batch.column("anchors").to_pylist())), plan.own_hashes)


def input_failures(batches: Iterator[pa.RecordBatch], reason: str) -> Iterator[pa.RecordBatch]:
    """Yield that all roots of the inputs failed."""
    for batch in batches:
        anchors = batch.column("anchors").to_pylist()
        yield failed_roots(anchors, [reason] * len(anchors))


def write_control(
    batches: Iterator[pa.RecordBatch], plan: StagePlan, runs: TaskRuns
) -> Iterator[pa.RecordBatch]:
    """Fold all values of each root of this task and write its one init, ack or fail; yield how many roots."""
    yield _counted(_tell(list(batches), plan, outbox(plan.bootstrap, plan.user)))
    runs.note("control")


def write_fails(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Fail all roots of this task, of which an init or ack is written; yield how many roots."""
    failures = pa.Table.from_batches(list(batches), VALUES)
    box = outbox(plan.bootstrap, plan.user)
    telling = plan.telling(box)
    for version in failures.column("version").unique().to_pylist():
        telling.fail(version, _reasons(failures, version))
    box.settle()
    yield _counted(len(failures))


def _tell(parts: list[pa.RecordBatch], plan: StagePlan, box: Box, most: int | None = None) -> int:
    """Tell the acker of every root, and wait; more than ``most`` roots are refused before."""
    table = pa.Table.from_batches(parts, VALUES)
    reasons = table.column("reason")
    failures = table.filter(pc.is_valid(reasons)) if reasons.null_count < len(table) else table.slice(0, 0)
    versions = table.column("version").to_numpy()
    roots = table.column("root").to_numpy().view(np.uint64)
    values = table.column("value").to_numpy().view(np.uint64)
    folded = {}
    for version, mine in by_version(versions):
        folded[version] = fold_entries(roots[mine], values[mine])
    count = sum(map(len, folded.values()))
    if most is not None and count > most:
        raise NotNarrow("a row of this task has a root that was read by another one")
    box.settle_tuples()
    telling = plan.telling(box)
    for version, entries in folded.items():
        telling.tell(version, entries, _reasons(failures, version))
    box.settle()
    return count


def _reasons(failures: pa.Table, version: int) -> dict[int, str]:
    failed = failures.filter(pc.equal(failures.column("version"), version))
    return dict(zip(_roots(failed).tolist(), failed.column("reason").to_pylist(), strict=True))


def _roots(table: pa.Table) -> IdArray:
    column: NDArray[np.int64] = table.column("root").to_numpy()
    return column.view(np.uint64)


def _counted(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["roots"])
