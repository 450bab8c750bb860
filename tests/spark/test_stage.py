"""A real Spark and a real broker; the test plays bolts and ackers and checks every tree by hand."""

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.schemas.codec import decode_ack
from acktree.schemas.ids import consumer_edge, fnv1a64, origin_of
from acktree.spark import app
from acktree.spark.functions import merge_anchors
from acktree.spark.plan_shape import is_narrow
from acktree.spark.reading import SMALL_BATCH
from acktree.spark.source import FORMAT
from acktree.spark.stage import Stage
from spark.tester import DEADLINE_S, Tester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def words(rows: DataFrame, topic: str) -> DataFrame:
    exploded = rows.select("anchors", f.explode(f.split(f.col("value").cast("string"), " ")).alias("value"))
    return exploded.where("value <> ''")


def test_every_root_has_one_init_that_closes_its_tree_and_blank_records_are_done(tester: Tester) -> None:
    tester.send(["a b c", "", "d", "   "] * 50)
    tester.send(["e f"] * 30, partition=1)
    tester.start(lambda rows: {f"{tester.name}.a": words(rows, "a")})
    tester.until_the_end()
    assert len(tester.inits) == 230
    assert sum(value == 0 for value in tester.inits.values()) == 100
    assert len(tester.tuples) == 50 * 4 + 60
    assert tester.committed() == [200, 30]


def test_a_root_that_leaves_by_several_outputs_through_a_shuffle_has_one_init(tester: Tester) -> None:
    tester.send([f"{n} {n % 3} x" for n in range(60)])

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        apart = words(rows, "a").repartition(5, "value")
        return {f"{tester.name}.a": apart.union(apart), f"{tester.name}.b": apart.where("value <> 'x'")}

    tester.start(transform)
    tester.until_the_end()
    assert len(tester.inits) == 60
    assert len(tester.tuples) == 60 * 3 * 2 + 60 * 2
    assert tester.committed() == [60, 0]


@pytest.mark.parametrize(
    "before",
    [
        lambda rows: rows.repartition(3, "offset"),
        lambda rows: rows.coalesce(1),
        lambda rows: rows.union(rows),
        lambda rows: rows.dropDuplicates(["value"]),
    ],
)
def test_a_stage_refuses_rows_of_which_it_cannot_know_what_they_stand_for(
    tester: Tester, before: Callable[[DataFrame], DataFrame]
) -> None:
    """A filtered, doubled or remembered record before the stage would have no init, or two."""
    tester.send([f"{n} x" for n in range(60)])
    options = tester.options(spout="in")
    stage = Stage(lambda rows: {f"{tester.name}.a": words(rows, "a")}, options)
    rows = before(tester.spark.readStream.format(FORMAT).options(**options).load())
    writer = rows.writeStream.foreachBatch(lambda batch, number: stage(batch, number) and None)
    writer = writer.option("checkpointLocation", str(tester.folder / "checkpoint"))
    tester.query = writer.trigger(availableNow=True).start()
    with pytest.raises(Exception, match="do that in the transform"):
        tester.query.awaitTermination(DEADLINE_S)
    tester.read()
    assert not tester.tuples
    assert not tester.inits


def processes_with(variable: bytes) -> list[int]:
    """Return the processes made with an environment variable, besides those of which others are made."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and variable in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = int(fields[1])
    return [process for process, parent in found.items() if parent in found]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process was made with")
def test_one_process_writes_all_small_batches_whoever_wrote_the_large_one_before(tester: Tester) -> None:
    for partition in (0, 1):
        tester.send(["x"] * SMALL_BATCH, partition)
    tester.start(lambda rows: {f"{tester.name}.a": words(rows, "a")}, trigger="")
    tester.until(lambda: len(tester.inits) == 2 * SMALL_BATCH)
    assert processes_with(b"ACKTREE_WRITERS=2")
    for number in range(1, 6):
        tester.send(["y"])
        tester.until(lambda inits=2 * SMALL_BATCH + number: len(tester.inits) == inits)
    assert len(processes_with(b"ACKTREE_WRITERS=1")) == 1


def test_only_plans_that_keep_a_records_rows_together_are_narrow(spark: SparkSession) -> None:
    rows = spark.sparkContext.parallelize([(1, "a b")]).toDF(["anchors", "value"])
    exploded = rows.select("anchors", f.explode(f.split("value", " ")).alias("value")).where("value <> ''")
    narrow = [rows, exploded, exploded.withColumn("u", f.udf(lambda v: v)("value"))]
    wide = [
        rows.union(rows),
        rows.repartition(2),
        rows.coalesce(1),
        rows.limit(1),
        rows.distinct(),
        rows.orderBy("value"),
        rows.join(rows.select("value"), "value"),
        rows.groupBy("value").count(),
        rows.crossJoin(rows.select("value").limit(1)),
        rows.sample(0.5),
        rows.localCheckpoint(),
        spark.createDataFrame([("a", "b")], ["anchors", "value"]),
    ]
    assert [is_narrow(plan, rows) for plan in narrow] == [True] * 3
    assert [is_narrow(plan, rows) for plan in wide] == [False] * len(wide)


def test_a_tuple_anchored_to_several_roots_closes_all_of_them(tester: Tester) -> None:
    tester.send([f"k{n % 4}" for n in range(40)])

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        grouped = rows.groupBy(f.col("value").cast("string").alias("value"))
        return {f"{tester.name}.a": grouped.agg(merge_anchors().alias("anchors"))}

    tester.start(transform)
    tester.until_the_end()
    assert sorted(len(roots) for _, _, roots in tester.tuples) == [10, 10, 10, 10]
    assert tester.committed() == [40, 0]


def test_a_failed_record_and_no_other_goes_through_spark_again(tester: Tester) -> None:
    tester.send([f"w{n}" for n in range(40)])
    tester.start(lambda rows: {f"{tester.name}.a": words(rows, "a")})
    tester.until_the_end(lambda root: origin_of(root).offset in (7, 30) and origin_of(root).attempt == 0)
    assert len(tester.tuples) == 42
    assert sorted(value for _, value, _ in tester.tuples).count(b"w7") == 2
    assert tester.committed() == [40, 0]


def test_a_second_run_goes_on_where_the_first_ended(tester: Tester) -> None:
    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        return {f"{tester.name}.a": words(rows, "a")}

    tester.send(["a"] * 10)
    tester.start(transform)
    tester.until_the_end()
    tester.send(["b"] * 5)
    tester.start(transform)
    tester.until_the_end()
    assert len(tester.tuples) == 15
    assert tester.committed() == [15, 0]


def test_aborted_records_and_transaction_markers_do_not_hold_the_frontier(tester: Tester) -> None:
    writer = Producer({"bootstrap.servers": tester.bootstrap, "transactional.id": f"{tester.name}.writer"})
    writer.init_transactions()
    for number in range(6):
        writer.begin_transaction()
        for _ in range(5):
            writer.produce(f"{tester.name}.source", f"t{number}", partition=0)
        writer.flush()
        if number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()
    tester.start(lambda rows: {f"{tester.name}.a": words(rows, "a")})
    tester.until_the_end()
    assert len(tester.tuples) == 15
    assert tester.committed() == [36, 0]


def test_rows_without_anchors_are_sent_untracked(tester: Tester) -> None:
    tester.send(["a"] * 5)
    tester.start(lambda rows: {f"{tester.name}.a": rows.withColumn("anchors", f.lit(None).cast("binary"))})
    tester.until_the_end()
    assert [roots for _, _, roots in tester.tuples] == [()] * 5
    assert list(tester.inits.values()) == [0] * 5


def test_a_stage_in_the_role_of_a_bolt_acks_what_it_read_and_what_it_left_out(
    tester: Tester, spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path
) -> None:
    """One tree through two Spark jobs: the bolt's stage filters, explodes and emits on."""
    tester.send(["a b", "", "c"] * 20)
    tester.start(lambda rows: {f"{tester.name}.a": words(rows, "a")}, trigger="200 milliseconds")
    deadline = time.monotonic() + DEADLINE_S
    while len(tester.tuples) < 60:
        assert time.monotonic() < deadline
        tester.read()
    owned = fnv1a64("two")
    theirs: dict[int, int] = defaultdict(int)
    control = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{unique}.acks", "auto.offset.reset": "earliest"}
    )
    control.assign([TopicPartition(f"{unique}.ack", p, 0) for p in range(3)])
    role = tester.options(bolt="two")
    keep = "value <> 'c'"
    bolt = app.start(spark, lambda rows: rows.where(keep), role, tmp_path / "bolt", app.AVAILABLE_NOW)
    bolt.awaitTermination(DEADLINE_S)
    assert bolt.exception() is None
    while message := control.poll(3.0):
        for root, value in decode_ack(message.value() or b"").acks.tolist():
            assert root not in theirs, "one ack per root and batch"
            theirs[root] ^= value
    control.close()
    tester.read()
    out = [(value, roots) for topic, value, roots in tester.tuples if topic == "c"]
    assert sorted(value for value, _ in out) == [b"a"] * 20 + [b"b"] * 20
    assert len(theirs) == 40
    for root, value in theirs.items():
        expected = 0
        for topic, _, header in tester.headers:
            for anchor in header.anchors:
                if anchor.root == root:
                    reads = owned if topic == "a" else fnv1a64("three")
                    expected ^= consumer_edge(anchor.edge, reads)
        assert value == expected
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{unique}.two"})
    places = group.committed([TopicPartition(f"{unique}.a", p) for p in (0, 1)], timeout=10)
    group.close()
    ends = [tester.consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
    assert [place.offset for place in places] == ends


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (lambda rows: rows.select("value", "anchors"), "return a dict"),
        (lambda rows: {"elsewhere": rows}, "does not emit"),
        (lambda _rows: 7, "returned a int"),
    ],
)
def test_a_transform_that_returns_nonsense_is_said_in_one_sentence(
    tester: Tester, transform: Callable[[DataFrame], Any], told: str
) -> None:
    tester.send(["a"])
    tester.start(transform)
    with pytest.raises(Exception, match=told):
        tester.query.awaitTermination(DEADLINE_S)
    assert tester.committed() == [0, 0]


def test_rows_that_lost_their_anchors_are_refused(tester: Tester) -> None:
    tester.send(["a"])
    tester.start(lambda rows: {f"{tester.name}.a": rows.select("value")})
    with pytest.raises(Exception, match="no column 'anchors'"):
        tester.query.awaitTermination(DEADLINE_S)
