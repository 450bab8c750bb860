"""Notes that reading tasks leave for the stage: written where a stage takes them, and nowhere else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkFiles
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.spark import task_notes
from acktree.spark.marks import ShareName
from acktree.spark.source import FORMAT
from acktree.spark.stage import Stage
from spark.tester import DEADLINE_S, Tester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Transform = Callable[[DataFrame], DataFrame]
SENT = 50


def notes() -> set[Path]:
    return set(Path(SparkFiles.getRootDirectory()).glob("acktree-note-*"))


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


def counted_first(rows: DataFrame) -> DataFrame:
    assert rows.count() == SENT
    return same(rows)


def held_by_spark(rows: DataFrame) -> DataFrame:
    return same(rows).localCheckpoint()


def brought_along(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([(b"x", None)] * SENT, "value binary, anchors binary")


@pytest.mark.parametrize(
    "transform", [same, counted_first, lambda rows: same(rows).repartition(3), held_by_spark, brought_along]
)
def test_any_plan_closes_every_tree_and_leaves_no_note(tester: Tester, transform: Transform) -> None:
    """A scan that is not the batch's own is no narrow plan: its rows were read by other tasks, or never."""
    before = notes()
    tester.send([f"{n}" for n in range(SENT)])
    tester.start(lambda rows: {f"{tester.name}.a": transform(rows)})
    tester.until_the_end()
    assert len(tester.tuples) == len(tester.inits) == SENT
    assert tester.committed() == [SENT, 0]
    assert notes() == before


def test_a_source_without_stage_leaves_no_note(tester: Tester) -> None:
    before = notes()
    tester.send([f"{n}" for n in range(SENT)])
    options = tester.options(spout="in") | {"complete": "batch"}
    rows = tester.spark.readStream.format(FORMAT).options(**options).load()
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    assert query.awaitTermination(DEADLINE_S)
    assert tester.committed() == [SENT, 0]
    assert notes() == before


def test_a_task_that_fails_leaves_no_note(tester: Tester) -> None:
    before = notes()
    tester.send(["1", "no number"])
    stage = Stage(lambda rows: {f"{tester.name}.a": same(rows)}, tester.options(spout="in"))
    rows = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in")).load()
    broken = rows.where(f.col("value").cast("string").cast("int") >= 0)
    writer = broken.writeStream.foreachBatch(lambda batch, number: stage(batch, number) and None)
    query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    with pytest.raises(Exception, match="no number"):
        query.awaitTermination(DEADLINE_S)
    assert notes() == before


def test_what_a_killed_task_left_goes_with_the_querys_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other_query, beside = (tmp_path / f"acktree-note-{name}" for name in ("q.6.1", "r.6.2", "q.7.3"))
    for note in (killed, other_query, beside):
        note.touch()
    own = tmp_path / "acktree-note-q.7.4"
    monkeypatch.setattr(task_notes, "_path", lambda: own)
    task_notes.begin_note(ShareName("topic", 0, 10, "digest"))
    assert set(tmp_path.iterdir()) == {other_query, beside, own}
