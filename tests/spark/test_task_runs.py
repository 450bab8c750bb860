"""Did a task run twice? What Spark no longer knows is no proof that it did not."""

from collections.abc import Iterator

from pyspark import StatusTracker
from pyspark.sql import SparkSession

from acktree.spark.runtime.task_runs import TaskRuns


class Books:
    """A context whose status store has evicted all stages, as with many jobs at once or a low limit."""

    def statusTracker(self) -> StatusTracker:
        return self  # type: ignore[return-value]

    def getStageInfo(self, stage: int) -> None:
        return None


def run_once(spark: SparkSession) -> TaskRuns:
    runs = TaskRuns(spark.sparkContext)

    def run_rows(rows: Iterator[int]) -> None:
        runs.record("here")

    spark.sparkContext.parallelize(range(4), 2).foreachPartition(run_rows)
    return runs


def test_an_evicted_stage_shows_a_repetition_and_tasks_that_ran_once_do_not(
    spark: SparkSession,
) -> None:
    runs = run_once(spark)
    assert not runs.show_a_repetition(spark.sparkContext)
    assert runs.show_a_repetition(Books()), "a stage that may have been rerun"  # type: ignore[arg-type]
