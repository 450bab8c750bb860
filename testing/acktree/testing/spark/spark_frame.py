"""Simulates as much of Spark's DataFrame, context and plans as the stage uses.

Invariant: it describes its plan as Spark would, so the product decides for itself what is narrow and which
tasks have run twice. Any other attribute is an AttributeError.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from acktree.spark.runtime.task_context import SIMULATED_TASK
from acktree.testing.spark.spark_attempts import Batches, TaskBody
from acktree.testing.spark.spark_executors import Executors
from acktree.testing.virtual.errors import NotSimulated
from acktree.testing.virtual.kernel import Kernel

Change = Callable[[pa.RecordBatch], pa.RecordBatch]
PARALLELISM = 2


@dataclass
class Context:
    """The SparkContext of a simulated application."""

    kernel: Kernel
    executors: Executors
    properties: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    defaultParallelism: int = PARALLELISM
    applicationId: str = "simulated"
    scans: int = 0
    """How many there were."""

    def getLocalProperty(self, key: str) -> str | None:
        """See SparkContext, as all below."""
        return self.properties.get(key)

    def setLocalProperty(self, key: str, value: str | None) -> None:
        if value is None:
            self.properties.pop(key, None)
        else:
            self.properties[key] = value

    def accumulator(self, value: Any, param: Any) -> "SimulatedAccumulator":
        return SimulatedAccumulator(self.kernel, value, param)

    def statusTracker(self) -> "Context":
        return self

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(currentAttemptId=self.executors.stage_attempts[stage])


class SimulatedAccumulator:
    """A sum over attempts that ended well."""

    def __init__(self, kernel: Kernel, value: Any, param: Any) -> None:
        self._kernel, self.value, self._param = kernel, value, param

    def add(self, term: Any) -> None:
        """Add a term when the running attempt ends well."""

        def update() -> None:
            self.value = self._param.addInPlace(self.value, term)

        self._kernel.current.process.state[SIMULATED_TASK].updates.append(update)


def _as_they_are(batches: Batches) -> Batches:
    return batches


class SimulatedFrame(DataFrame):
    """A lazy chain of functions over tasks."""

    def __new__(cls, *_arguments: Any) -> "SimulatedFrame":
        """Make one of this class, which DataFrame's own would not."""
        made: SimulatedFrame = object.__new__(cls)
        return made

    def __init__(
        self,
        context: Context,
        bodies: Callable[[], list[TaskBody]],
        columns: Sequence[str],
        scan: "Scan | None" = None,
    ) -> None:
        """``scan`` is set as long as every row stays in the task that read it."""
        self.context, self.bodies, self._names, self.scan = context, bodies, list(columns), scan

    @classmethod
    def of_source(
        cls,
        context: Context,
        partitions: Sequence[Any],
        read: Callable[[Any], Batches],
        columns: Sequence[str],
    ) -> "SimulatedFrame":
        """Return the rows of a source; its partitions go to the tasks as Spark sends them, pickled."""
        context.scans += 1
        scan = Scan([pickle.dumps(partition) for partition in partitions], context.scans)

        def body(pickled: bytes) -> TaskBody:
            return TaskBody(lambda: read(pickle.loads(pickled)), _as_they_are)

        return cls(context, lambda: [body(each) for each in scan.pickled], columns, scan)

    # What the stage asks.

    @property
    def columns(self) -> list[str]:
        """See DataFrame, as all below."""
        return list(self._names)

    @property
    def sparkSession(self) -> Any:
        return SimpleNamespace(sparkContext=self.context)

    @property
    def _jdf(self) -> Any:
        return _Jvm(self.scan)

    def persist(self, *_level: Any) -> "SimulatedFrame":
        return self

    def unpersist(self, *_blocking: Any) -> "SimulatedFrame":
        return self

    def select(self, *names: Any) -> "SimulatedFrame":
        return self.changed(lambda batch: batch.select(list(names)), names)

    def where(self, condition: Any) -> "SimulatedFrame":
        if condition != "anchors is null":
            raise NotSimulated(f"where({condition!r}) is not simulated")
        return self.changed(
            lambda batch: batch.filter(pc.is_null(batch.column("anchors"))),
            self._names,
        )

    def changed(self, change: Change, columns: Sequence[str]) -> "SimulatedFrame":
        """Return the rows after a function that Spark applies where it reads them."""

        def body(before: TaskBody) -> TaskBody:
            return TaskBody(lambda: map(change, before.source()), before.write)

        return SimulatedFrame(self.context, lambda: [body(b) for b in self.bodies()], columns, self.scan)

    def mapInArrow(self, func: Any, schema: Any, *_more: Any) -> "SimulatedFrame":
        def body(before: TaskBody) -> TaskBody:
            return TaskBody(before.source, lambda batches: func(before.write(batches)))

        columns = [part.split()[0] for part in str(schema).split(",")]
        return SimulatedFrame(self.context, lambda: [body(b) for b in self.bodies()], columns, self.scan)

    def union(self, other: Any) -> "SimulatedFrame":
        return SimulatedFrame(self.context, lambda: [*self.bodies(), *other.bodies()], self._names)

    def repartition(self, count: Any, *by: Any) -> "SimulatedFrame":
        """Shuffle: run the tasks so far, and hand out their rows by a column."""

        def bodies() -> list[TaskBody]:
            batches = [batch for attempt in self._run() for batch in attempt.result]
            parts = [[_of_part(batch, by[0], part, count) for batch in batches] for part in range(count)]
            return [TaskBody(lambda part=part: iter(part), _as_they_are) for part in parts]  # type: ignore[misc]

        return SimulatedFrame(self.context, bodies, self._names)

    def collect(self) -> list[Any]:
        return [row for attempt in self._run() for batch in attempt.result for row in batch.to_pylist()]

    def _run(self) -> list[Any]:
        """Run a job; tasks whose executor is lost before all have ended are run again, as in Spark."""
        bodies, executors = self.bodies(), self.context.executors
        stage, properties = executors.new_stage(), self.context.properties
        ended = executors.run(bodies, properties, stage, range(len(bodies)))
        while gone := [index for index, attempt in ended.items() if attempt.executor.is_lost]:
            executors.stage_attempts[stage] += 1
            ended |= executors.run(bodies, properties, stage, gone)
        return [ended[index] for index in sorted(ended)]


def _of_part(batch: pa.RecordBatch, column: str, part: int, count: int) -> pa.RecordBatch:
    values = batch.column(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return batch.filter(pa.array(values.view(np.uint64) % np.uint64(count) == part))


@dataclass
class Scan:
    """The scan of a source: the reads of its tasks, pickled."""

    pickled: list[bytes]
    number: int


@dataclass
class _Jvm:
    """Answers the product's questions to the JVM about a plan, as in ``runtime/plan_shape.py``."""

    scan: Scan | None

    def queryExecution(self) -> "_Jvm":
        return self

    def analyzed(self) -> "_Jvm":
        return self

    def optimizedPlan(self) -> "_Jvm":
        return self

    def children(self) -> Any:
        return SimpleNamespace(isEmpty=lambda: True)

    def nodeName(self) -> str:
        return "LogicalRDD" if self.scan is not None else "Union"

    def rdd(self) -> "_Jvm":
        return self

    def toRdd(self) -> "_Jvm":
        return self

    def id(self) -> int:
        return id(self.scan)

    def getNumPartitions(self) -> int:
        return len(self.scan.pickled) if self.scan is not None else 0

    def toDebugString(self) -> str:
        number = self.scan.number if self.scan is not None else 0
        return f"(1) MapPartitionsRDD[0] at x\n |  DataSourceRDD[{number}] at x"

    def getClass(self) -> Any:
        return SimpleNamespace(getSimpleName=lambda: "DataSourceRDD")

    def partitions(self) -> Iterator[Any]:
        for pickled in self.scan.pickled if self.scan is not None else ():
            picked = SimpleNamespace(pickedPartition=lambda pickled=pickled: pickled)
            given = SimpleNamespace(get=lambda picked=picked: picked)
            yield SimpleNamespace(inputPartition=lambda given=given: given)
