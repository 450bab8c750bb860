"""``available-now`` and the cap, on any Spark: what is there is done, or is emitted again by the next run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from acktree.spark import app
from acktree.spark.runtime.spark_version import HAS_ADMISSION_CONTROL, UnsupportedSpark, check_version
from acktree.spark.source import FORMAT, AcktreeStreamReader, RequestedTooEarly, register
from acktree.spark.stage import Stage
from acktree.wire.ids import origin_of
from spark.spouts import SpoutTester
from spark.test_lost_offsets import delete_offsets
from spark.tester import DEADLINE_S, StageTester

pytestmark = pytest.mark.timeout(600)
RECORDS, CAP = 20, 6
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


def batches(folder: Path) -> list[int]:
    """Return how many records each batch of a checkpoint holds."""
    found = []
    for file in sorted((folder / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)):
        logged = json.loads(file.read_text().splitlines()[2])
        fresh = sum(end - start for *_, start, end, _ in (range_ for range_ in logged["ranges"]))
        found.append(fresh)
    return found


@pytest.mark.slow
@pytest.mark.spark
def test_all_records_are_done_in_capped_batches_even_if_one_fails_at_first(
    tester: StageTester,
) -> None:
    tester.send([f"{number}" for number in range(RECORDS)])
    options = tester.options(spout="in") | {"maxOffsetsPerTrigger": str(CAP)}
    checkpoint = tester.folder / "checkpoint"
    transform = lambda rows: {f"{tester.name}.a": same(rows)}  # noqa: E731
    tester.query = app.start(tester.spark, transform, options, checkpoint, app.AVAILABLE_NOW)
    tester.until_the_end(lambda root: origin_of(root).offset == 7 and origin_of(root).attempt == 0)
    assert tester.committed() == [RECORDS, 0]
    assert max(batches(checkpoint)) == CAP
    assert len(tester.tuples) == RECORDS + 1
    tester.send(["late"])
    tester.query = app.start(tester.spark, transform, options, checkpoint, app.AVAILABLE_NOW)
    tester.until_the_end()
    assert tester.committed() == [RECORDS + 1, 0]
    assert len(tester.tuples) == RECORDS + 2


@pytest.mark.spark
def test_a_first_batch_that_fails_half_way_is_run_again_and_the_rest_is_done(tester: StageTester) -> None:
    tester.send([f"{number}" for number in range(RECORDS)])
    options = tester.options(spout="in") | {"maxOffsetsPerTrigger": str(CAP)}
    checkpoint = tester.folder / "checkpoint"

    def bad(rows: DataFrame) -> dict[str, DataFrame]:
        return {f"{tester.name}.a": same(rows.where(f.raise_error(f.lit("half way")).isNull()))}

    query = app.start(tester.spark, bad, options, checkpoint, app.AVAILABLE_NOW)
    with pytest.raises(Exception, match="half way"):
        query.awaitTermination(DEADLINE_S)
    good = lambda rows: {f"{tester.name}.a": same(rows)}  # noqa: E731
    tester.query = app.start(tester.spark, good, options, checkpoint, app.AVAILABLE_NOW)
    tester.until_the_end()
    assert tester.committed() == [RECORDS, 0]
    assert len(tester.tuples) == RECORDS
    assert tester.failed == {}


@pytest.mark.spark
@pytest.mark.parametrize(
    "is_wrapped", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "wrapped"]
)
def test_records_left_by_sparks_own_trigger_are_done_by_the_next_run(
    tester: StageTester, is_wrapped: bool
) -> None:
    """Spark 4.0 and 4.1 run one batch and await no result; each further run goes on, and nothing is lost."""
    tester.send([f"{number}" for number in range(RECORDS)])
    options = tester.options(spout="in") | {"maxOffsetsPerTrigger": str(CAP)}
    stage = Stage(lambda rows: {f"{tester.name}.a": same(rows)}, options)
    register(tester.spark)
    tester.spark.conf.set(WRAPPER, str(is_wrapped).lower())
    try:
        for run in range(RECORDS):
            rows = tester.spark.readStream.format(FORMAT).options(**options).load()
            writer = rows.writeStream.foreachBatch(lambda rows, number: stage(rows, number) and None)
            writer = writer.option("checkpointLocation", str(tester.folder / "checkpoint"))
            tester.query = writer.trigger(availableNow=True).start()
            tester.until_the_end()
            tester.answer()
            if HAS_ADMISSION_CONTROL or (run >= RECORDS // CAP and tester.committed() == [RECORDS, 0]):
                break
    finally:
        tester.spark.conf.unset(WRAPPER)
    assert tester.committed() == [RECORDS, 0]
    assert {value for _, value, _ in tester.tuples} == {b"%d" % number for number in range(RECORDS)}


@pytest.mark.spark
def test_a_bolt_in_spark_ends_when_it_has_acked_all_its_tuples(tester: StageTester) -> None:
    roots = tester.emit({offset: [b"one", b"two"] for offset in range(RECORDS)})
    options = tester.options(bolt="two") | {"maxOffsetsPerTrigger": str(CAP)}
    transform = lambda rows: {f"{tester.name}.c": same(rows)}  # noqa: E731
    query = app.start(tester.spark, transform, options, tester.folder / "bolt", app.AVAILABLE_NOW)
    assert query.awaitTermination(DEADLINE_S)
    assert query.exception() is None
    tester.query = query
    tester.until(lambda: len(tester.acks) == len(roots))
    assert max(batches(tester.folder / "bolt")) <= CAP


def test_a_checkpoint_that_spark_reports_too_late_never_skips_records(
    spout: Callable[..., SpoutTester],
) -> None:
    """The state and the group's offsets are gone, and startingOffsets=latest would begin at the log's end."""
    t = spout(records=0, options={"startingOffsets": "latest"})
    t.send(10)
    logged = t.next_batch()
    assert logged is not None
    t.driver.close()
    delete_offsets(t)
    t.lose_state()
    t.send(5)
    reader = AcktreeStreamReader(t.options())
    reader.latestOffset()
    told = logged.to_json()
    with pytest.raises(RequestedTooEarly, match="would be skipped"):
        reader.partitions(told, told)
    reader.stop()


@pytest.mark.parametrize("version", ["3.5.7", "5.0.0"])
def test_a_spark_without_python_sources_is_refused_with_the_supported_versions(version: str) -> None:
    with pytest.raises(UnsupportedSpark, match=rf"needs PySpark 4.0 or newer, below 5, and {version}"):
        check_version(version)
