"""The executor side of ``writeStream.format("acktree")``: one transaction per task of a declared plan.

The task finds out for itself what a stage's driver passes to its tasks: the batch, from Spark's properties;
the topology's version, from Kafka, once per task; the limits of its topic, once per process.
Invariant: nothing is written by a task whose hand-off does not show that it has read its rows itself.
"""

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from acktree.core.topology.registry import History, Registry
from acktree.spark.shared.options import SourceOptions
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.handoff import DECLARED_WRONGLY, batch_of_task, clear_handoff, read_handoff
from acktree.spark.tasks.writing.row_limits import StageLimits, read_stage_limits
from acktree.spark.tasks.writing.write_task import StagePlan, in_transaction, write_rows
from acktree.wire.errors import AcktreeError


class BadTarget(AcktreeError):
    """The topology does not determine where the rows of ``writeStream.format("acktree")`` go, or names
    another topic.
    """


class NotInAQuery(AcktreeError):
    """A task cannot determine its query and its batch."""


class RowsOfNothing(AcktreeError):
    """A task without records was given rows to write."""


_registries: PerProcess[Registry] = PerProcess()
_limits: PerProcess[StageLimits] = PerProcess()


def write_declared(batches: Iterator[pa.RecordBatch], options: SourceOptions) -> int:
    """Write the tuples of a task and the inits, or acks, of all that it has read; return how many roots.

    Raises:
        NoHandoff, NotNarrow: the plan is not narrow; nothing is committed.
        InputEndedEarly, ReadingUnfinished: rows are missing; nothing is committed.
        BadTarget: the topology has no such component, or another topic.
    """
    # Life of a record, step 5.
    group = options.declared_by
    try:
        first = next(batches, None)
        rows = chain(() if first is None else (first,), batches)
        if read_handoff(group) is None:
            return _write_nothing(rows)
        history = _history(options)
        return write_rows(rows, _plan(options, history), topic_of(options, history), in_transaction)
    finally:
        clear_handoff(group)


def _write_nothing(batches: Iterator[pa.RecordBatch]) -> int:
    if any(len(batch) for batch in batches):
        raise RowsOfNothing(
            "a task that had no records to read was given rows: with plan=narrow a function may make rows "
            f"only from records; or {DECLARED_WRONGLY}"
        )
    return 0


def _history(options: SourceOptions) -> History:
    """Return the versions published so far, so that each batch is written for the newest one."""
    where = (options.bootstrap, options.topology, options.kafka)
    registry = _registries.get(lambda: Registry(*where), *where)
    registry.catch_up()
    return registry.history


def topic_of(options: SourceOptions, history: History) -> str:
    """Return the topic that a component's rows go to. Raises BadTarget."""
    latest = history.latest
    table = latest.spouts.get(options.spout) if options.spout else latest.bolts.get(options.bolt)
    if table is None:
        raise BadTarget(f"topology {latest.name} has no spout or bolt {options.component!r}")
    emits = ", ".join(table.emits) or "nothing"
    if options.topic and options.topic not in table.emits:
        raise BadTarget(
            f"option topic={options.topic} is not what {options.component} emits in the topology: {emits}"
        )
    if not options.topic and len(table.emits) != 1:
        raise BadTarget(
            f"{options.component} emits {emits} in the topology: name one topic with option 'topic', or "
            "write with foreachBatch and a stage"
        )
    return options.topic or table.emits[0]


def _plan(options: SourceOptions, history: History) -> StagePlan:
    if (batch := batch_of_task()) is None:
        raise NotInAQuery(
            "Spark does not pass the batch to this task: use a version that acktree is tested with "
            "(see docs/spark.md)"
        )
    topic, where = topic_of(options, history), (options.bootstrap, options.kafka)
    return StagePlan(
        *where,
        history,
        history.latest.version,
        options.group,
        batch,
        options.spout,
        options.bolt,
        _limits.get(lambda: read_stage_limits(options.bootstrap, (topic,), options.kafka), *where, topic),
        options.declared_by,
    )
