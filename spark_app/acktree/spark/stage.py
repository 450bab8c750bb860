"""The stage: writes the result of a Spark job as tuples, and one init (spout) or ack (bolt) per root.

Invariant: tuples are in the log before the init of their root, and a root has one message, over all outputs.

There are two ways to do this. The general one is correct for any plan (explode, union, join, several
outputs): inputs and outputs are unioned and shuffled by root. If the plan is narrow, one task has read and
written all rows of a root, so it sends the init itself: no shuffle, no second pass. Either way a record
without output gets an init with value 0 and is done immediately.

When a batch runs again after a crash, the transaction of a narrow task either holds all of its output, and
the task is skipped, or nothing. Otherwise it is unknown which tuples were written, so the batch's roots are
failed and replayed under new ids: no half-written tree waits for its timeout.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acktree.core.kafka.errors import clear_errors
from acktree.core.topology.file import BoltTable, SpoutTable
from acktree.core.topology.registry import Registry
from acktree.core.user_code import described
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.driver.one_stage import SecondStage, take_place
from acktree.spark.driver.timeout_resets import Resets, read_tasks_of, resetting
from acktree.spark.driver.writers import writers
from acktree.spark.runtime.plan_shape import (
    is_narrow,
    is_straight,
    operators_before,
    rdds_before,
    scans_before,
    tasks_of,
)
from acktree.spark.runtime.short_errors import with_short_errors
from acktree.spark.runtime.task_runs import TaskRuns
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, commit_of_batch, commit_of_task
from acktree.spark.shared.bolt_claim import check_claim
from acktree.spark.shared.options import SourceOptions
from acktree.spark.tasks.handoff import handoff_wanted
from acktree.spark.tasks.reading.read_task import ReadTask
from acktree.spark.tasks.writing.anchoring import VALUES_SCHEMA
from acktree.spark.tasks.writing.row_columns import check_types, written_columns
from acktree.spark.tasks.writing.row_limits import StageLimits, read_stage_limits
from acktree.spark.tasks.writing.write_task import (
    COUNT_SCHEMA,
    Begin,
    StagePlan,
    in_transaction,
    input_failures,
    input_values,
    without_transaction,
    write_control,
    write_fails,
    write_tuples,
    write_whole,
)
from acktree.wire.errors import AcktreeError

log = logging.getLogger("acktree.spark")

CUT_OFF = "the batch was cut off while it was written, and is emitted again"
INTERRUPTED_ACTION = {"action": "batch_interrupted"}
QUERY_ID = "sql.streaming.queryId"
RESET_FRACTION = 0.25
"""Part of its timeout after which a batch asks for more time: its records may have used up most of it."""
Outputs = DataFrame | Mapping[str, DataFrame]
Transform = Callable[[DataFrame], Outputs]


class BadTransform(AcktreeError):
    """The user's function raised an error, or returned a result that the stage cannot send."""


class ShuffledBeforeStage(AcktreeError):
    """Rows reached the stage through a filter, shuffle, union or state: their source records are unknown."""


class Stage:
    """Use with ``foreachBatch``: applies a transform to each batch and writes its result."""

    def __init__(self, transform: Transform, options: Mapping[str, str]) -> None:
        """Read the topology; ``options`` are those of the source, and override the topology's.

        Raises:
            BadOption, UnknownTopology, BrokerUnreachable, BadTransform: see each error.
        """
        self._transform = transform
        options_ = SourceOptions.parse(options)
        if options_.plan:
            raise BadOption(
                f"plan={options_.plan} is for writeStream.format('acktree'), which takes the place of "
                "foreachBatch and its stage: leave it out here and at the source, or write without a stage"
            )
        self._registry = Registry(options_.bootstrap, options_.topology, options_.kafka)
        self.options = options_.within(self._registry.history.latest)
        self._batch_commits = BatchCommits(options_.bootstrap, options_.kafka, options_.group)
        self._is_plan_checked = False
        self._known_limits: tuple[tuple[str, ...], StageLimits] = ((), StageLimits())
        self._emits()
        self._place = take_place(options_.bootstrap, options_.group)

    @with_short_errors
    def __call__(self, batch: DataFrame, batch_id: int) -> int:
        """Write one batch; return the number of roots that an init, ack or fail was written for.

        Raises:
            ShuffledBeforeStage: the batch is not what the source has read.
            SecondStage: the batch has another stage, or was given to this one before.
            BadTransform, BadColumn: the transform returned something that cannot be sent.
        """
        # Life of a record, step 4.
        self._place.check_alone()
        self._check_plan(batch)
        context = batch.sparkSession.sparkContext
        name = BatchName(context.getLocalProperty(QUERY_ID) or "", batch_id)
        try:
            with self._place.writing((name, context.applicationId, scans_before(batch))):
                return self._write(batch, name)
        except SecondStage:
            self._remove_commits(batch, name)
            raise

    def _write(self, batch: DataFrame, name: BatchName) -> int:
        self._registry.refresh()
        history, options = self._registry.history, self.options
        plan = StagePlan(
            options.bootstrap,
            options.kafka,
            history,
            history.latest.version,
            options.group,
            name,
            options.spout,
            options.bolt,
            self._limits(),
        )
        outputs = self._outputs(batch)
        if len(outputs) == 1:
            ((topic, output),) = outputs.items()
            if is_narrow(rows := _columns(output, topic), batch):
                if options.transactions:
                    return self._in_transactions(batch, rows, plan, topic)
                return self._guarded(
                    batch, plan, partial(_write_whole, rows, plan, topic, without_transaction)
                )
        return self._guarded(batch, plan, partial(self._write_shuffled, batch, plan))

    def try_transform(self, schema: StructType, session: SparkSession) -> None:
        """Try the transform on no rows, so that its mistakes show before the first batch.

        ``schema`` is the source's.

        Raises:
            BadTransform, BadColumn: it raises, or returns what cannot be sent.
        """
        for topic, output in self._outputs(session.createDataFrame([], schema)).items():
            check_types(_columns(output, topic).schema, f"topic {topic!r}")

    def _in_transactions(self, batch: DataFrame, rows: DataFrame, plan: StagePlan, topic: str) -> int:
        """Write one transaction per task; a spout's tuples are unseen until it commits: no tree times out."""

        def is_written(task: ReadTask) -> bool:
            return self._batch_commits.is_set(commit_of_task(plan.batch, task.name))

        with resetting(self._reset_every_s if plan.bolt else 0.0, Resets(batch, plan, is_written).send):
            return _write_whole(rows, plan, topic, in_transaction)

    def _remove_commits(self, batch: DataFrame, name: BatchName) -> None:
        """Remove a batch's commit records: another stage has to write it, and would take it for written."""
        tasks = [commit_of_task(name, task.name) for task in read_tasks_of(batch)]
        with clear_errors(self.options.bootstrap):
            for record in (*tasks, commit_of_batch(name, self._source_topic())):
                self._batch_commits.remove(record)

    def _check_plan(self, batch: DataFrame) -> None:
        if hiding := operators_before(batch):
            raise ShuffledBeforeStage(
                "rows were dropped or multiplied between the batch and the stage "
                f"({', '.join(dict.fromkeys(hiding))}); do that in the transform that is given to the stage"
            )
        if not self._is_plan_checked and not is_straight(kinds := rdds_before(batch)):
            raise ShuffledBeforeStage(
                "rows were shuffled, unioned, aggregated or kept as state between the source and the stage "
                f"({', '.join(dict.fromkeys(kinds))}); do that in the transform that is given to the stage"
            )
        self._is_plan_checked = True

    @property
    def _reset_every_s(self) -> float:
        """Return a fraction of the shorter timeout: a spout's trees may so far have acks only."""
        latest = self._registry.history.latest
        return (
            min(latest.message_timeout_s or latest.orphan_timeout_s, latest.orphan_timeout_s) * RESET_FRACTION
        )

    def _guarded(self, batch: DataFrame, plan: StagePlan, write: Callable[[TaskRuns], int]) -> int:
        """Write without transactions, once: the roots of a batch that was cut off are failed."""
        context = batch.sparkSession.sparkContext
        commit_record = commit_of_batch(plan.batch, self._source_topic())
        with clear_errors(self.options.bootstrap):
            for claim in {task.claim for task in read_tasks_of(batch)} - {""}:
                check_claim(self._batch_commits, plan.history.name, claim)
            is_begun = self._batch_commits.is_set(commit_record)
        self._batch_commits.set(commit_record)  # even if it is already set: Kafka expires old offsets
        if is_begun:
            untracked = batch.where("anchors is null")
            self._write_shuffled(untracked, plan, TaskRuns(context))
            return self._fail(batch, partial(write_control, plan=plan, runs=TaskRuns(context)), plan)
        runs = TaskRuns(context)
        with resetting(self._reset_every_s, Resets(batch, plan, lambda _task: False).send):
            roots = write(runs)
        if runs.show_a_repetition(context):
            return self._fail(batch, partial(write_fails, plan=plan), plan)
        return roots

    def _write_shuffled(self, batch: DataFrame, plan: StagePlan, runs: TaskRuns) -> int:
        tasks = batch.sparkSession.sparkContext.defaultParallelism
        batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            values = batch.select("anchors").mapInArrow(partial(input_values, plan=plan), VALUES_SCHEMA)
            for topic, output in self._outputs(batch).items():
                written = partial(write_tuples, plan=plan, topic=topic, runs=runs)
                values = values.union(_columns(output, topic).mapInArrow(written, VALUES_SCHEMA))
            shuffled = values.repartition(tasks, "root")
            return _count(shuffled.mapInArrow(partial(write_control, plan=plan, runs=runs), COUNT_SCHEMA))
        finally:
            batch.unpersist()

    def _fail(self, batch: DataFrame, write: Callable[..., Iterator[Any]], plan: StagePlan) -> int:
        """Fail all roots of a batch; failing them twice is harmless."""
        log.warning(
            "batch %d was interrupted: its records are replayed", plan.batch.number, extra=INTERRUPTED_ACTION
        )
        failures = batch.select("anchors").mapInArrow(partial(input_failures, reason=CUT_OFF), VALUES_SCHEMA)
        return _count(failures.mapInArrow(write, COUNT_SCHEMA))

    def _table(self) -> SpoutTable | BoltTable:
        latest, options = self._registry.history.latest, self.options
        table = latest.spouts.get(options.spout) if options.spout else latest.bolts.get(options.bolt)
        if table is None:
            raise BadTransform(f"topology {latest.name} has no spout or bolt {options.component!r}")
        return table

    def _source_topic(self) -> str:
        table = self._table()
        return (self.options.subscribe or (table.topics if isinstance(table, SpoutTable) else table.reads))[0]

    def _emits(self) -> tuple[str, ...]:
        return self._table().emits

    def _limits(self) -> StageLimits:
        """Return the limits of the topics it emits to, read once."""
        emits = self._emits()
        if emits != self._known_limits[0]:
            options = self.options
            self._known_limits = emits, read_stage_limits(options.bootstrap, emits, options.kafka)
        return self._known_limits[1]

    def _outputs(self, batch: DataFrame) -> Mapping[str, DataFrame]:
        emits, name = self._emits(), self.options.component
        try:
            outputs = self._transform(batch)
        except AcktreeError:
            raise
        except Exception as error:
            raise BadTransform(f"the transform of {name} raised {described(error)}") from error
        if isinstance(outputs, DataFrame):
            if len(emits) != 1:
                raise BadTransform(
                    f"the transform returned one DataFrame, but {name} emits "
                    f"{', '.join(emits) or 'nothing'}; return a dict of topic to DataFrame"
                )
            return {emits[0]: outputs}
        if not isinstance(outputs, Mapping):
            raise BadTransform(
                f"the transform returned a {type(outputs).__name__}; it may return a DataFrame "
                "or a dict of topic to DataFrame"
            )
        if unknown := [topic for topic in outputs if topic not in emits]:
            raise BadTransform(
                f"the transform returned rows for topic {unknown[0]!r}, which {name} does not "
                f"emit in the topology; it emits: {', '.join(emits) or 'nothing'}"
            )
        return outputs


def _write_whole(
    rows: DataFrame,
    plan: StagePlan,
    topic: str,
    begin: Begin,
    runs: TaskRuns | None = None,
) -> int:
    context = rows.sparkSession.sparkContext
    with writers(context, tasks_of(rows)):
        written = rows.mapInArrow(
            partial(write_whole, plan=plan, topic=topic, begin=begin, runs=runs), COUNT_SCHEMA
        )
    with handoff_wanted(context, plan.batch):
        return _count(written)


def _columns(output: DataFrame, topic: str) -> DataFrame:
    return output.select(*written_columns(output.columns, f"topic {topic!r}"))


def _count(roots: DataFrame) -> int:
    return sum(row["roots"] for row in roots.collect())
