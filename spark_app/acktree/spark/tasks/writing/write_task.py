"""The executor side of the stage: writes tuples, then one init (or ack) per root.

Invariant: a task ends only when everything it produced is in the broker's log; a failed delivery fails the
task. A root's init is written by exactly one task, from the XOR over every tuple of the root in the batch. No
task sends an init or ack, or commits, before it has proof that it was given all of its rows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import History
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.collecting.retry_rules import RetryRules
from acktree.producers.columns import Rows, plain
from acktree.producers.errors import Unwritable
from acktree.spark.runtime.task_runs import TaskRuns
from acktree.spark.runtime.whole_input import check_input_is_whole
from acktree.spark.shared.batch_commits import BatchName, batch_commits
from acktree.spark.shared.bolt_claim import check_claim
from acktree.spark.tasks.handoff import clear_handoff, handoff_anchors, read_handoff
from acktree.spark.tasks.producers import TaskOutput, task_producer
from acktree.spark.tasks.trace_handoff import HandedTrace, HandedTraces
from acktree.spark.tasks.writing.acker_updates import AckerUpdates
from acktree.spark.tasks.writing.anchoring import (
    Headers,
    RootFailure,
    RootUpdates,
    anchor_rows,
    failed_roots,
    fold,
    from_arrow,
    own_values,
    to_arrow,
)
from acktree.spark.tasks.writing.failed_rows import failures_of
from acktree.spark.tasks.writing.row_limits import StageLimits
from acktree.spark.tasks.writing.source_traces import SourceTraces
from acktree.spark.tasks.writing.transactions import begin_transaction
from acktree.wire.errors import AcktreeError
from acktree.wire.header import ANCHOR, HEADER, is_reserved
from acktree.wire.ids import fnv1a64
from acktree.wire.trace_context import child_headers

COUNT_SCHEMA = "roots bigint"


class NotNarrow(AcktreeError):
    """A task was given a row whose root it did not read: the plan is not narrow."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of a batch that its tasks need; ``version`` is the emission's, ``bolt`` "" for a spout.

    ``declared_by`` is the group whose source says that the plan is narrow, "" if a stage checks it.
    """

    bootstrap: str
    user: Settings = field(repr=False)  # may hold a password
    history: History
    version: int
    group: str
    batch: BatchName
    spout: str = ""
    bolt: str = ""
    limits: StageLimits = field(default_factory=StageLimits)
    declared_by: str = ""

    @property
    def own_hashes(self) -> tuple[int, ...]:
        return (fnv1a64(self.bolt),) if self.bolt else ()

    def acker_updates(self, output: TaskOutput) -> AckerUpdates:
        return AckerUpdates(self.bootstrap, self.user, self.history, self.spout, self.bolt, output)

    def source_traces(self) -> SourceTraces:
        return SourceTraces(self.bootstrap, self.user, self.group, self.history.latest)


class Traces(Protocol):
    """Finds the trace contexts of rows."""

    def of_rows(self, anchors: pa.Array, /) -> list[HandedTrace | None] | None:
        """Return the trace of each row of the column ``anchors``, None if there is none at all."""
        ...


Begin = Callable[[StagePlan], TaskOutput | None]
"""Returns what a task writes to, None if all was written before."""


class Writer:
    """Writes the rows of one task to one topic."""

    def __init__(self, plan: StagePlan, topic: str, output: TaskOutput, traces: Traces | None) -> None:
        self._version, self._topic, self._output, self._traces = plan.version, topic, output, traces
        self._reader_hashes = plan.history.readers(plan.version, topic).hashes
        self._limit = plan.limits.by_topic.get(topic)
        self._rules = RetryRules(plan.history)

    def write(self, batch: pa.RecordBatch) -> list[RootUpdates]:
        """Write rows of the columns of ``row_columns``; return what they add to their roots."""
        updates: list[RootUpdates] = []
        if "fail" in batch.schema.names and batch.column("fail").null_count < len(batch):
            failed = batch.filter(pc.is_valid(batch.column("fail")))
            updates += failed_roots(failed.column("anchors").to_pylist(), failures_of(failed, self._rules))
            batch = batch.filter(pc.is_null(batch.column("fail")))
        if self._limit is not None and (refused := self._limit.refused(batch)):
            batch, unwritable = _without(batch, refused)
            updates += unwritable
        anchors = batch.column("anchors")
        headers, values = anchor_rows(anchors, self._version, self._output.edges, self._reader_hashes)
        traces = self._traces.of_rows(anchors) if self._traces else None
        self._produce({name: batch.column(name) for name in batch.schema.names}, headers, traces)
        self._output.serve()
        return updates + values

    def _produce(
        self, columns: dict[str, pa.Array], headers: Headers, traces: list[HandedTrace | None] | None
    ) -> None:
        values, keys, others = columns["value"], columns.get("key"), columns.get("headers")
        if traces is None and (others is None or others.null_count == len(values)):
            for _, error in self._output.produce_rows(self._topic, Rows(values, keys, headers)):
                raise error
            return
        count = len(values)
        cells = (plain(column, count) for column in (values, keys, others, headers, traces))
        for value, key, pairs, header, trace in zip(*cells, strict=True):
            kept: UserHeaders = [(p["key"], p["value"]) for p in pairs or () if not is_reserved(p["key"])]
            own: UserHeaders = [(HEADER, header)] if header else []
            if trace is not None:
                traced = child_headers(trace.context, trace.parent, kept)
                if self._limit is None or self._limit.fits(value, key, [*traced, *own]):
                    kept = traced
            self._output.produce(self._topic, value, key, [*kept, *own])


def _without(
    batch: pa.RecordBatch, refused: Mapping[int, Unwritable]
) -> tuple[pa.RecordBatch, list[RootUpdates]]:
    """Return the other rows, and that the roots of those refused fail; one without roots raises its error."""
    rows = np.fromiter(refused, np.int64, len(refused))
    anchors = batch.column("anchors").take(pa.array(rows)).to_pylist()
    for row, of_row in zip(refused, anchors, strict=True):
        if not of_row:
            raise refused[row]
    kept = np.ones(len(batch), bool)
    kept[rows] = False
    failures = [RootFailure(f"{type(error).__name__}: {error}") for error in refused.values()]
    return batch.filter(pa.array(kept)), failed_roots(anchors, failures)


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
        NoHandoff, NotNarrow: the plan was not narrow; no init has been sent.
        InputEndedEarly, ReadingUnfinished: rows are missing; no init has been sent and nothing is committed.
    """
    # Life of a record, step 5.
    try:
        count = write_rows(batches, plan, topic, begin)
    finally:
        clear_handoff()
    yield _counted(count)
    if runs is not None:
        runs.record(topic)


def write_rows(batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str, begin: Begin) -> int:
    """Write what ``write_whole`` writes, and raise what it raises; return how many roots."""
    first = next(batches, None)
    output = begin(plan)
    if output is None:
        for _ in batches:
            pass
        return 0
    try:
        writer = Writer(plan, topic, output, HandedTraces(plan.declared_by))
        updates: list[RootUpdates] = []
        for batch in chain(() if first is None else (first,), batches):
            updates += writer.write(batch)
        check_input_is_whole()
        return _send_acker_updates(_fold_with_inputs(_inputs(plan), updates, plan), plan, output)
    except BaseException:
        output.abort()
        raise


def _inputs(plan: StagePlan) -> NDArray[np.void]:
    return handoff_anchors(plan.declared_by)


def _fold_with_inputs(
    inputs: NDArray[np.void], updates: list[RootUpdates], plan: StagePlan
) -> list[RootUpdates]:
    own = fold(own_values(inputs, plan.own_hashes))
    folded_all = fold([*own, *updates])
    if _roots_in(folded_all) > _roots_in(own):
        raise NotNarrow("a row of this task has a root that was read by another task")
    return folded_all


def in_transaction(plan: StagePlan) -> TaskOutput | None:
    """Begin the transaction of what this task reads; None if an earlier run of the task has committed it.

    Raises:
        NewerDriver: a bolt's tuples were planned by a driver that is not its newest one.
    """
    task = read_handoff(plan.declared_by)
    assert task is not None, "only a task that reads has something to write"
    where = (plan.bootstrap, plan.user, plan.group)
    transaction = begin_transaction(*where, plan.batch, task, plan.limits.settings)
    if transaction is not None and task.claim:
        try:
            with clear_errors(plan.bootstrap):
                check_claim(batch_commits(*where), plan.history.name, task.claim)
        except BaseException:
            transaction.abort()
            raise
    return transaction


def without_transaction(plan: StagePlan) -> TaskOutput:
    """Return what to write to, in a task that has read its rows itself."""
    read_handoff()
    return task_producer(plan.bootstrap, plan.user, plan.limits.settings)


def write_tuples(
    batches: Iterator[pa.RecordBatch], plan: StagePlan, topic: str, runs: TaskRuns
) -> Iterator[pa.RecordBatch]:
    """Write rows to a topic; yield what they add to their roots."""
    output = task_producer(plan.bootstrap, plan.user, plan.limits.settings)
    with closing(plan.source_traces()) as traces:
        writer = Writer(plan, topic, output, traces if plan.spout else None)
        for batch in batches:
            yield from map(to_arrow, fold(writer.write(batch)))
    check_input_is_whole()
    output.flush_and_commit()
    runs.record(topic)


def input_values(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Yield what the inputs add per root, so that a record without output rows also gets an init or ack."""
    for batch in batches:
        anchors = b"".join(filter(None, batch.column("anchors").to_pylist()))
        yield from map(to_arrow, fold(own_values(np.frombuffer(anchors, ANCHOR), plan.own_hashes)))


def input_failures(batches: Iterator[pa.RecordBatch], reason: str) -> Iterator[pa.RecordBatch]:
    """Yield that all roots of the inputs failed."""
    for batch in batches:
        anchors = batch.column("anchors").to_pylist()
        yield from map(to_arrow, failed_roots(anchors, [RootFailure(reason)] * len(anchors)))


def write_control(
    batches: Iterator[pa.RecordBatch], plan: StagePlan, runs: TaskRuns
) -> Iterator[pa.RecordBatch]:
    """Fold all values of each root of this task and write its one init, ack or fail; yield how many roots."""
    folded = fold(from_arrow(batches))
    check_input_is_whole()
    yield _counted(
        _send_acker_updates(folded, plan, task_producer(plan.bootstrap, plan.user, plan.limits.settings))
    )
    runs.record("control")


def write_fails(batches: Iterator[pa.RecordBatch], plan: StagePlan) -> Iterator[pa.RecordBatch]:
    """Fail all roots of this task, of which an init or ack is written; yield how many roots."""
    failures = fold(from_arrow(batches))
    check_input_is_whole()
    output = task_producer(plan.bootstrap, plan.user, plan.limits.settings)
    acker_updates = plan.acker_updates(output)
    for updates in failures:
        acker_updates.fail(updates.version, updates.failed)
    output.flush_and_commit()
    yield _counted(_roots_in(failures))


def _send_acker_updates(folded: list[RootUpdates], plan: StagePlan, output: TaskOutput) -> int:
    """Send the updates of every root to the acker and wait; return how many roots."""
    output.flush_tuples()
    acker_updates = plan.acker_updates(output)
    for updates in folded:
        acker_updates.send(updates)
    output.flush_and_commit()
    return _roots_in(folded)


def _roots_in(folded: list[RootUpdates]) -> int:
    return sum(len(updates.entries) for updates in folded)


def _counted(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["roots"])
