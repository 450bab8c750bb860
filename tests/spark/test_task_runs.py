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


def test_tasks_that_ran_once_show_no_repetition(spark: SparkSession) -> None:
    assert not run_once(spark).show_a_repetition(spark.sparkContext)


def test_a_stage_evicted_by_spark_counts_as_one_that_may_have_been_rerun(spark: SparkSession) -> None:
    assert run_once(spark).show_a_repetition(Books())  # type: ignore[arg-type]
