"""The stage: what leaves a Spark job, as tuples on Kafka topics and one init (spout) or ack (bolt) per root.

Invariant: tuples are in the log before the init of their root, and a root has one message, over all outputs.

Two ways lead there. Right by construction for any plan (explode, union, join, several outputs): inputs and
outputs are united and shuffled by root. Where the plan is narrow, one task has read and written all rows of
a root, knows both, and sends the init itself: no shuffle, no second pass. Either way a record without output
is told, with value 0, and done at once.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from acktree.schemas.errors import AcktreeError
from acktree.schemas.registry import Registry
from acktree.spark.anchoring import VALUES_SCHEMA, BadColumn
from acktree.spark.options import SourceOptions
from acktree.spark.plan_shape import is_narrow
from acktree.spark.task_notes import NoNote
from acktree.spark.writing import (
    COUNT_SCHEMA,
    NotNarrow,
    StagePlan,
    input_values,
    write_control,
    write_tuples,
    write_whole,
)

log = logging.getLogger("acktree.spark")

Outputs = DataFrame | Mapping[str, DataFrame]
Transform = Callable[[DataFrame], Outputs]


class BadTransform(AcktreeError):
    """The user's function returned something that the stage cannot send anywhere."""


class Stage:
    """Use with ``foreachBatch``: applies a transform to each batch and writes what comes out of it."""

    def __init__(self, transform: Transform, options: Mapping[str, str]) -> None:
        """Read the topology; ``options`` are those given to the source.

        Raises:
            BadOption, UnknownTopology, BrokerUnreachable, BadTransform: see there.
        """
        self._transform = transform
        self._options = SourceOptions.parse(options)
        self._registry = Registry(self._options.bootstrap, self._options.topology, self._options.kafka)
        self._may_be_narrow = True
        self._emits()

    def __call__(self, batch: DataFrame, batch_id: int) -> int:
        """Write one batch; return the number of roots that an init or ack was written for."""
        self._registry.refresh()
        history = self._registry.history
        options = self._options
        version = history.latest.version
        plan = StagePlan(options.bootstrap, options.kafka, history, version, options.bolt)
        outputs = self._outputs(batch)
        if self._may_be_narrow and len(outputs) == 1:
            ((topic, output),) = outputs.items()
            if is_narrow(rows := _columns(output, topic)):
                try:
                    return _count(rows.mapInArrow(partial(write_whole, plan=plan, topic=topic), COUNT_SCHEMA))
                except Exception as error:
                    if not any(name in str(error) for name in (NoNote.__name__, NotNarrow.__name__)):
                        raise
                    log.warning("the rows were shuffled before the stage; it shuffles roots from here on")
                    self._may_be_narrow = False
        return self._write_shuffled(batch, plan)

    def _write_shuffled(self, batch: DataFrame, plan: StagePlan) -> int:
        batch = batch.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            values = batch.select("anchors").mapInArrow(partial(input_values, plan=plan), VALUES_SCHEMA)
            for topic, output in self._outputs(batch).items():
                written = partial(write_tuples, plan=plan, topic=topic)
                values = values.union(_columns(output, topic).mapInArrow(written, VALUES_SCHEMA))
            tasks = batch.sparkSession.sparkContext.defaultParallelism
            shuffled = values.repartition(tasks, "root")
            return _count(shuffled.mapInArrow(partial(write_control, plan=plan), COUNT_SCHEMA))
        finally:
            batch.unpersist()

    def _emits(self) -> tuple[str, ...]:
        latest, options = self._registry.history.latest, self._options
        table = latest.spouts.get(options.spout) if options.spout else latest.bolts.get(options.bolt)
        if table is None:
            raise BadTransform(f"topology {latest.name} has no spout or bolt {options.component!r}")
        return table.emits

    def _outputs(self, batch: DataFrame) -> Mapping[str, DataFrame]:
        emits, name = self._emits(), self._options.component
        made = self._transform(batch)
        if isinstance(made, DataFrame):
            if len(emits) != 1:
                raise BadTransform(
                    f"the transform returned one DataFrame, but {name} emits "
                    f"{', '.join(emits) or 'nothing'}; return a dict of topic to DataFrame"
                )
            return {emits[0]: made}
        if not isinstance(made, Mapping):
            raise BadTransform(
                f"the transform returned a {type(made).__name__}; it may return a DataFrame "
                "or a dict of topic to DataFrame"
            )
        if unknown := [topic for topic in made if topic not in emits]:
            raise BadTransform(
                f"the transform returned rows for topic {unknown[0]!r}, which {name} does not "
                f"emit in the topology; it emits: {', '.join(emits) or 'nothing'}"
            )
        return made


def _columns(output: DataFrame, topic: str) -> DataFrame:
    missing = [name for name in ("value", "anchors") if name not in output.columns]
    if missing:
        raise BadColumn(
            f"the rows for topic {topic!r} have no column {missing[0]!r}; it needs value and anchors "
            "(carry anchors along from the source), and may have key and headers"
        )
    return output.select(*[name for name in ("value", "anchors", "key", "headers") if name in output.columns])


def _count(roots: DataFrame) -> int:
    return sum(row["roots"] for row in roots.collect())
