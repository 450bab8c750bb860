"""Counts how often the tasks of one job ran: a task that wrote outside a transaction must have run once.

Invariant: a second completed run of a task is detected, whether it is another attempt or a rerun after its
rows were lost on the way to the shuffle: Spark adds up an accumulator for every completed run. A run that did
not end is detected by its attempt number, or its stage's: if a task cannot fetch its input, Spark runs the
stage again and counts the tasks' attempts from 0. A stage that Spark no longer knows proves nothing: it
counts as run again.
"""

from typing import NamedTuple

from pyspark import SparkContext
from pyspark.accumulators import AccumulatorParam

from acktree.core import world
from acktree.spark.runtime.task_context import running_task

STAGE_INFO_TIMEOUT_S = 1.0


class TaskRun(NamedTuple):
    """A run of a task that ended; ``part`` of the job has a task of number ``partition``."""

    part: str
    partition: int
    attempt: int
    stage: int


class _Concatenated(AccumulatorParam[list[TaskRun]]):
    def zero(self, value: list[TaskRun]) -> list[TaskRun]:
        return []

    def addInPlace(self, value1: list[TaskRun], value2: list[TaskRun]) -> list[TaskRun]:
        return value1 + value2


class TaskRuns:
    """Made on the driver, passed to the tasks, queried after the job."""

    def __init__(self, context: SparkContext) -> None:
        self._ended = context.accumulator(list[TaskRun](), _Concatenated())

    def record(self, part: str) -> None:
        """In a task of the job's part of that name: record that it ends."""
        task = running_task()
        assert task is not None, "only inside of a Spark task"
        self._ended.add([TaskRun(part, task.partitionId(), task.attemptNumber(), task.stageId())])

    def show_a_repetition(self, context: SparkContext) -> bool:
        """Return, on the driver after the job, whether some task ran more than once."""
        ended = self._ended.value
        tasks = {(run.part, run.partition) for run in ended}
        if len(tasks) < len(ended) or any(run.attempt for run in ended):
            return True
        return any(_may_have_run_anew(context, stage) for stage in {run.stage for run in ended})


def _may_have_run_anew(context: SparkContext, stage: int) -> bool:
    """Return whether a stage ran more than once, or Spark no longer knows (``spark.ui.retainedStages``).

    Spark updates its stage information after the job, so a stage may be missing for a moment.
    """
    deadline_s = world.monotonic_s() + STAGE_INFO_TIMEOUT_S
    while (info := context.statusTracker().getStageInfo(stage)) is None:
        if world.monotonic_s() > deadline_s:
            return True
        world.sleep(0.02)
    return bool(info.currentAttemptId)
