"""Hand-off files from read tasks to the stage: written where a stage removes them, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.spark.shared.batch_commits import ReadTaskName
from acktree.spark.source import FORMAT
from acktree.spark.stage import Stage
from acktree.spark.tasks import handoff as handoff
from producers.cluster import until
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Transform = Callable[[DataFrame], DataFrame]
SENT = 50


def handoff_files(query: str) -> list[Path]:
    """Return the files of one query: Python processes of others may still remove theirs."""
    return [*Path(SparkFiles.getRootDirectory()).glob(f"acktree-handoff-{query}.*")]


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


def counted_first(rows: DataFrame) -> DataFrame:
    assert rows.count()
    return same(rows)


def held_by_spark(rows: DataFrame) -> DataFrame:
    return same(rows).localCheckpoint()


def brought_along(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([(b"x", None)] * rows.count(), "value binary, anchors binary")


PLANS: dict[str, Transform] = {
    "narrow": same,
    "counted first": counted_first,
    "shuffled": lambda rows: same(rows).repartition(3),
    "held by Spark": held_by_spark,
    "brought along": brought_along,
}


def test_any_plan_closes_every_tree_and_leaves_no_handoff_file(tester: StageTester) -> None:
    """A scan that is not the batch's own is no narrow plan: its rows were read by other tasks, or never.

    Each plan has a batch of one query.
    """
    plan = next(iter(PLANS))
    tester.start(lambda rows: {f"{tester.name}.a": PLANS[plan](rows)}, trigger="")
    for number, plan in enumerate(PLANS, 1):
        tester.send([f"{n}" for n in range(SENT)])
        sent = number * SENT
        tester.until(lambda sent=sent: len(tester.inits) == len(tester.tuples) == sent)
        tester.until(lambda: not handoff_files(tester.query.id))
        tester.answer()
        assert not tester.twice, plan
        assert len(tester.answered) == sent, plan
    tester.until(lambda: tester.committed() == [sent, 0])


def test_a_task_that_fails_leaves_no_handoff_file(tester: StageTester) -> None:
    tester.send(["1", "no number"])
    stage = Stage(lambda rows: {f"{tester.name}.a": same(rows)}, tester.options(spout="in"))
    rows = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in")).load()
    broken = rows.where(f.col("value").cast("string").cast("int") >= 0)
    writer = broken.writeStream.foreachBatch(lambda batch, number: stage(batch, number) and None)
    query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    with pytest.raises(Exception, match="no number"):
        query.awaitTermination(DEADLINE_S)
    # Spark has ended the task without waiting for its Python process, which removes the file when it notices.
    until(lambda: not handoff_files(query.id), "the removal of the hand-off")


def test_the_handoff_files_of_a_killed_task_are_removed_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other_query, beside = (
        tmp_path / f"acktree-handoff-{name}" for name in ("q.6.1", "r.6.2", "q.7.3")
    )
    for file in (killed, other_query, beside):
        file.touch()
    own = tmp_path / "acktree-handoff-q.7.4"
    monkeypatch.setattr(handoff, "handoff_path", lambda _declared_by: own)
    handoff.begin_handoff(ReadTaskName("topic", 0, 10, "digest"))
    assert set(tmp_path.iterdir()) == {other_query, beside, own}
