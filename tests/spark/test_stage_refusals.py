"""What a stage refuses, and how: one sentence, before anything is written.

Most are asked with a batch that no query has read: it is scanned as the source is, its rows are a file's.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.spark.source import FORMAT
from acktree.spark.stage import BadTransform, ShuffledBeforeStage, Stage, Transform
from acktree.spark.tasks.writing.anchoring import BadColumn
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
V1_SOURCES = "spark.sql.sources.useV1SourceList"


@pytest.fixture(scope="module")
def shared(
    spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StageTester]:
    """One topology for all refusals that write nothing."""
    name, folder = f"t{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("shared")
    with StageTester.running(spark, bootstrap, name, folder) as made:
        (folder / "rows").write_text("a\nb\n")
        yield made


@pytest.fixture
def batch(shared: StageTester) -> Iterator[DataFrame]:
    """Rows that come from one scan as they are."""
    before = shared.spark.conf.get(V1_SOURCES)
    shared.spark.conf.set(V1_SOURCES, "")  # sources of the newer interface are scanned as ours is
    rows = shared.spark.read.text(str(shared.folder / "rows"))
    yield rows.withColumn("anchors", f.lit(None).cast("binary"))
    shared.spark.conf.set(V1_SOURCES, before)


def stage(tester: StageTester, transform: Transform) -> Stage:
    return Stage(transform, tester.options(spout="in"))


def same(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors")


BEFORE: list[Callable[[DataFrame], DataFrame]] = [
    lambda rows: rows.repartition(3, "value"),
    lambda rows: rows.coalesce(1),
    lambda rows: rows.union(rows),
    lambda rows: rows.groupBy("value").agg(f.first("anchors").alias("anchors")),
    lambda rows: rows.dropDuplicates(["value"]),
]


@pytest.mark.parametrize("before", BEFORE, ids=["shuffled", "coalesced", "united", "aggregated", "distinct"])
def test_a_stage_refuses_rows_whose_source_records_it_cannot_know(
    shared: StageTester, batch: DataFrame, before: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(ShuffledBeforeStage, match="do that in the transform"):
        stage(shared, same)(before(batch), 0)


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (same, BadTransform, "return a dict"),
        (lambda rows: {"elsewhere": rows}, BadTransform, "does not emit"),
        (lambda _rows: 7, BadTransform, "returned a int"),
        (lambda rows: {"{name}.a": rows.select("value")}, BadColumn, "no column 'anchors'"),
        (lambda rows: {"{name}.a": rows.select("anchors")}, BadColumn, "no column 'value'"),
        (
            lambda rows: {"{name}.a": rows.withColumn("retry", f.lit(False))},
            BadColumn,
            "a column 'retry' and no column 'fail'",
        ),
        (
            lambda rows: {"{name}.a": rows.withColumn("retry_after_s", f.lit(1.0))},
            BadColumn,
            "a column 'retry_after_s' and no column 'fail'",
        ),
    ],
    ids=["one for two topics", "another topic", "no rows", "no anchors", "no value", "retry", "delay"],
)
def test_a_transform_that_returns_unsendable_rows_is_refused_in_one_sentence(
    shared: StageTester, batch: DataFrame, transform: Callable[[DataFrame], Any], error: type, message: str
) -> None:
    def named(rows: DataFrame) -> Any:
        made = transform(rows)
        if not isinstance(made, dict):
            return made
        return {topic.format(name=shared.name): output for topic, output in made.items()}

    with pytest.raises(error, match=message):
        stage(shared, named)(batch, 0)
    with pytest.raises(error, match=message):
        stage(shared, named).try_transform(batch.schema, shared.spark)


def raises(_rows: DataFrame) -> DataFrame:
    raise KeyError("no such table")


@pytest.mark.parametrize(
    ("transform", "error", "message"),
    [
        (raises, BadTransform, r"the transform of in raised KeyError: 'no such table' \(in .*, line \d+\)"),
        (lambda rows: rows.select("nope"), BadTransform, "`nope` cannot be resolved"),
        (
            lambda rows: rows.withColumn("value", f.length("value")),
            BadColumn,
            "'value' of type int; it must be",
        ),
        (lambda rows: rows.withColumn("anchors", f.lit("x")), BadColumn, "'anchors' of type string"),
        (lambda rows: rows.withColumn("fail", f.lit(True)), BadColumn, "'fail' of type boolean; it must be"),
        (
            lambda rows: rows.withColumns({"fail": f.lit("x"), "retry": f.lit("false")}),
            BadColumn,
            "'retry' of type string; it must be boolean",
        ),
        (
            lambda rows: rows.withColumns({"fail": f.lit("x"), "retry_after_s": f.expr("0.5")}),
            BadColumn,
            r"'retry_after_s' of type decimal\(1,1\); it must be double",
        ),
    ],
    ids=["raises", "no such column", "value", "anchors", "fail", "retry", "retry_after_s"],
)
def test_a_mistake_in_a_transform_shows_before_the_first_batch(
    shared: StageTester, batch: DataFrame, transform: Callable[[DataFrame], Any], error: type, message: str
) -> None:
    both = (f"{shared.name}.a", f"{shared.name}.b")
    with pytest.raises(error, match=message):
        stage(shared, lambda rows: dict.fromkeys(both, transform(rows))).try_transform(
            batch.schema, shared.spark
        )


def test_columns_that_may_be_left_out_are_tried_with_every_type_they_can_have(
    shared: StageTester, batch: DataFrame
) -> None:
    def full(rows: DataFrame) -> dict[str, DataFrame]:
        headers = f.array(f.struct(f.lit("k").alias("key"), f.lit(b"v").alias("value")))
        made = (
            rows.withColumn("key", f.lit(None)).withColumn("headers", headers).withColumn("fail", f.lit("x"))
        ).withColumns({"retry": f.lit(None), "retry_after_s": f.lit(60)})
        return {f"{shared.name}.a": made, f"{shared.name}.b": rows}

    stage(shared, full).try_transform(batch.schema, shared.spark)


@pytest.mark.parametrize(
    "before",
    [
        lambda rows: rows.dropDuplicates(["value"]),
        pytest.param(lambda rows: rows.repartition(3, "offset"), marks=pytest.mark.slow),
        pytest.param(lambda rows: rows.coalesce(1), marks=pytest.mark.slow),
        pytest.param(lambda rows: rows.union(rows), marks=pytest.mark.slow),
    ],
    ids=["remembered", "shuffled", "coalesced", "united"],
)
def test_a_refusal_ends_the_query_and_nothing_is_written_or_committed(
    tester: StageTester, before: Callable[[DataFrame], DataFrame]
) -> None:
    """A filtered, doubled or remembered record before the stage would have no init, or two."""
    tester.send([f"{n} x" for n in range(60)])
    refusing = stage(tester, lambda rows: {f"{tester.name}.a": same(rows)})
    source = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in"))
    writer = before(source.load()).writeStream.foreachBatch(lambda rows, n: refusing(rows, n) and None)
    writer = writer.option("checkpointLocation", str(tester.folder / "checkpoint"))
    tester.query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="do that in the transform"):
        tester.query.awaitTermination(DEADLINE_S)
    tester.read()
    assert not tester.tuples
    assert not tester.inits
    assert tester.committed() == [0, 0]


FILTERED: list[Callable[[DataFrame], DataFrame]] = [
    lambda rows: rows.where("offset % 2 = 0"),
    lambda rows: rows.where("offset % 2 = 0").select("value", "anchors"),
    lambda rows: rows.withColumn("n", f.explode(f.array(f.lit(1), f.lit(2)))),
]


@pytest.mark.parametrize("before", FILTERED, ids=["filtered", "filtered and selected", "exploded"])
def test_a_stage_refuses_a_part_of_its_batch(
    shared: StageTester, batch: DataFrame, before: Callable[[DataFrame], DataFrame]
) -> None:
    """Else another stage may be given the other part, which the records of this one would prove written."""
    with pytest.raises(ShuffledBeforeStage, match="do that in the transform"):
        stage(shared, same)(before(batch.withColumn("offset", f.lit(1))), 0)


@pytest.mark.parametrize(
    "order",
    [(1, 0), pytest.param((0, 1), marks=pytest.mark.slow)],
    ids=["in the other order", "as they were made"],
)
def test_a_second_stage_ends_the_query_and_its_offsets_are_not_committed(
    tester: StageTester, order: tuple[int, int]
) -> None:
    tester.send([f"{n} x" for n in range(60)])
    a, b = f"{tester.name}.a", f"{tester.name}.b"
    stages = [stage(tester, lambda rows, topic=topic: {topic: same(rows)}) for topic in (a, b)]

    def write(rows: DataFrame, number: int) -> None:
        for each in order:
            stages[each](rows, number)

    rows = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in")).load()
    writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    tester.query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    with pytest.raises(Exception, match="a batch has exactly one"):
        tester.query.awaitTermination(DEADLINE_S)
    written = 60 if order == (1, 0) else 0
    while len(tester.inits) < written or len(tester.tuples) < written:
        tester.read()
    tester.read()
    assert len(tester.inits) == len(tester.tuples) == written
    assert {topic for topic, _, _ in tester.tuples} <= {"b"}
    assert tester.committed() == [0, 0]
    tester.inits.clear()  # the corrected program writes the batch again, whole
    tester.values.clear()
    tester.start(lambda rows: {a: same(rows), b: same(rows)})
    tester.until_the_end()
    assert {(topic, value) for topic, value, _ in tester.tuples} == {
        (topic, f"{n} x".encode()) for topic in "ab" for n in range(60)
    }
