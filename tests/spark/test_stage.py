"""A real Spark and a real broker; the test plays bolts and ackers and checks every tree by hand.

A query costs seconds: most tests here look at the same two, of a narrow plan and of a shuffled one.
"""

import contextlib
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.spark import app
from acktree.spark.functions import join_anchors, merge_anchors
from acktree.spark.runtime.plan_shape import is_narrow
from acktree.spark.tasks.reading.read_task import SMALL_BATCH
from acktree.wire.ids import consumer_edge, fnv1a64, origin_of
from producers.cluster import WorkerCluster
from spark.tester import StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
REJECTED = "no: bad"


def words(rows: DataFrame) -> DataFrame:
    text = rows.select("anchors", f.explode(f.split(f.col("value").cast("string"), " ")).alias("value"))
    return text.where("value <> ''")


def with_reason(rows: DataFrame, is_on: bool = True) -> DataFrame:
    bad = (f.col("value").cast("string") == "bad") & f.lit(is_on)
    return rows.select("value", "anchors", f.when(bad, REJECTED).alias("fail"))


def offsets(tester: StageTester, roots: list[int]) -> list[tuple[int, int]]:
    return sorted((origin_of(root).slot, origin_of(root).offset) for root in roots)


def inits(tester: StageTester, attempt: int) -> dict[int, int]:
    return {root: value for root, value in tester.inits.items() if origin_of(root).attempt == attempt}


def send_transactions(tester: StageTester) -> None:
    """Write six transactions of five records to partition 1; every second one is aborted."""
    writer = Producer({"bootstrap.servers": tester.bootstrap, "transactional.id": f"{tester.name}.writer"})
    writer.init_transactions()
    for number in range(6):
        writer.begin_transaction()
        for _ in range(5):
            writer.produce(f"{tester.name}.source", f"t{number}", partition=1)
        writer.flush()
        if number % 2:
            writer.abort_transaction()
        else:
            writer.commit_transaction()


LINES = ["a b c", "", "d", "   "] * 50 + ["untracked"] * 5 + ["bad", "good bad", ""]
UNTRACKED, BAD, FAILED_ONCE = range(200, 205), (205, 206), (6, 30)


@pytest.fixture(scope="module")
def narrow(
    spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StageTester]:
    """A narrow plan over lines and what transactions wrote; some is failed, rejected or untracked.

    Once all is done, five records more come in a second run.
    """
    name = f"t{uuid.uuid4().hex[:10]}"
    with StageTester.running(spark, bootstrap, name, tmp_path_factory.mktemp("narrow")) as tester:

        def transform(rows: DataFrame) -> dict[str, DataFrame]:
            split = with_reason(words(rows), is_on=not tester.failed)
            tracked = f.when(f.col("value") != "untracked", f.col("anchors"))
            return {f"{name}.a": split.withColumn("anchors", tracked)}

        tester.send(LINES)
        send_transactions(tester)
        tester.start(transform)
        tester.until_the_end(
            lambda root: (
                origin_of(root)[0] == 0
                and origin_of(root).offset in FAILED_ONCE
                and origin_of(root).attempt == 0
            )
        )
        tester.send(["again"] * 5)
        tester.start(transform)
        tester.until_the_end()
        yield tester


def test_every_root_has_one_init_and_records_without_rows_are_done(
    narrow: StageTester,
) -> None:
    first = inits(narrow, 0)
    assert not narrow.twice
    assert len(first) == len(LINES) + 15 + 5
    blank = {root for root, value in first.items() if value == 0 and origin_of(root).slot == 0}
    assert {origin_of(root).offset for root in blank} == {*range(1, 200, 2), 207, *UNTRACKED}
    assert sum(value == b"a" for _, value, _ in narrow.tuples) == 50


@pytest.mark.promise("2")
def test_only_a_failed_record_is_processed_again(narrow: StageTester) -> None:
    assert offsets(narrow, list(inits(narrow, 1))) == [(0, offset) for offset in (*FAILED_ONCE, *BAD)]
    assert not inits(narrow, 2)
    assert sum(value == b"d" for _, value, _ in narrow.tuples) == 50 + len(FAILED_ONCE)


def test_a_record_whose_only_row_is_rejected_fails_with_the_reason(
    narrow: StageTester,
) -> None:
    """An init with value 0 would be acked at once, and the fail come too late."""
    assert set(narrow.failed.values()) == {REJECTED}
    assert offsets(narrow, list(narrow.failed)) == [(0, offset) for offset in BAD]
    assert all(narrow.inits[root] != 0 for root in narrow.failed)
    emitted = Counter(value for _, value, _ in narrow.tuples)
    assert (emitted[b"bad"], emitted[b"good"]) == (2, 2), "rejected rows came only when they were replayed"


def test_rows_without_anchors_are_sent_untracked(narrow: StageTester) -> None:
    assert [roots for _, value, roots in narrow.tuples if value == b"untracked"] == [()] * 5


def test_aborted_records_and_transaction_markers_do_not_hold_the_frontier(narrow: StageTester) -> None:
    seen = Counter(value for _, value, _ in narrow.tuples if value.startswith(b"t"))
    assert seen == {b"t0": 5, b"t2": 5, b"t4": 5}
    assert narrow.committed()[1] == 36


def test_a_second_run_continues_where_the_first_ended(narrow: StageTester) -> None:
    assert sum(value == b"again" for _, value, _ in narrow.tuples) == 5
    assert narrow.committed() == [len(LINES) + 5, 36]


NUMBERS = [f"{n} {n % 3} x" for n in range(60)]
LEFT = [f"left{n}" for n in range(10)]
RIGHT = [f"right{n}" for n in range(0, 10, 2)]
WORST = ["bad", "good bad"]


def joined(text: DataFrame) -> DataFrame:
    parts = text.select("anchors", f.regexp_extract("value", r"\d", 0).alias("n"), "value")
    left, right = (parts.where(f.col("value").startswith(side)).alias(side) for side in ("left", "right"))
    both = left.join(right, f.expr("left.n = right.n"), "left")
    anchors = join_anchors(f.col("left.anchors"), f.col("right.anchors"))
    return both.select(f.col("left.value").alias("value"), anchors)


@pytest.fixture(scope="module")
def shuffled(
    spark: SparkSession, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StageTester]:
    """Two outputs behind shuffles: words twice, groups, a join; some rows are rejected once."""
    name = f"t{uuid.uuid4().hex[:10]}"
    with StageTester.running(spark, bootstrap, name, tmp_path_factory.mktemp("shuffled")) as tester:

        def transform(rows: DataFrame) -> dict[str, DataFrame]:
            text = rows.select(f.col("value").cast("string").alias("value"), "anchors")
            numbers = text.where("value rlike '^[0-9]'")
            apart = words(numbers).repartition(5, "value")
            groups = numbers.groupBy((f.split("value", " ")[0].cast("int") % 4).alias("n"))
            grouped = groups.agg(merge_anchors().alias("anchors"), f.lit("group").alias("value")).drop("n")
            split = words(text.where("value like '%bad'")).repartition(3)
            sent = with_reason(apart.union(apart).union(split), is_on=not tester.failed)
            kept = apart.where("value <> 'x'")
            return {f"{name}.a": sent, f"{name}.b": kept.unionByName(grouped).unionByName(joined(text))}

        tester.send(NUMBERS + LEFT + WORST)
        tester.send(RIGHT, partition=1)
        tester.start(transform)
        tester.until_the_end()
        yield tester


def anchored(tester: StageTester, topic: str, prefix: bytes) -> list[int]:
    """Return how many roots each tuple of a topic stands under."""
    found = [(t, value, roots) for t, value, roots in tester.tuples if t == topic]
    return sorted(len(roots) for _, value, roots in found if value.startswith(prefix))


def test_a_root_with_rows_in_several_shuffled_outputs_has_one_init(shuffled: StageTester) -> None:
    assert not shuffled.twice
    assert len(inits(shuffled, 0)) == len(NUMBERS + LEFT + WORST + RIGHT)
    digits = [(topic, value) for topic, value, _ in shuffled.tuples if value[:1].isdigit() or value == b"x"]
    assert Counter(topic for topic, _ in digits) == {"a": 60 * 3 * 2, "b": 60 * 2}
    assert shuffled.committed() == [len(NUMBERS + LEFT + WORST), len(RIGHT)]


def test_a_tuple_anchored_to_several_roots_closes_all_of_them(shuffled: StageTester) -> None:
    assert anchored(shuffled, "b", b"group") == [15] * 4
    assert not any(shuffled.values[root] for root in shuffled.inits if root not in shuffled.failed)


def test_a_joined_row_belongs_to_the_tree_of_each_of_its_records(shuffled: StageTester) -> None:
    assert anchored(shuffled, "b", b"left") == [1] * 5 + [2] * 5


def test_a_row_rejected_after_a_shuffle_fails_its_record(shuffled: StageTester) -> None:
    bad = [(0, len(NUMBERS + LEFT)), (0, len(NUMBERS + LEFT) + 1)]
    assert set(shuffled.failed.values()) == {REJECTED}
    assert offsets(shuffled, list(shuffled.failed)) == offsets(shuffled, list(inits(shuffled, 1))) == bad
    assert all(shuffled.inits[root] != 0 for root in shuffled.failed)


def processes_with(variable: bytes) -> list[int]:
    """Return this test's processes made with an environment variable, besides those of which others are made.

    Other tests run beside this one: only what descends from this process counts.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                if variable in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
    return [each for each in found if parents[each] in found and os.getpid() in ancestors(each, parents)]


def ancestors(process: int, parents: dict[int, int]) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    while (process := parents.get(process, 0)) > 1:
        yield process


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process was made with")
def test_one_process_writes_all_small_batches_whichever_wrote_a_large_one_before(tester: StageTester) -> None:
    for partition in (0, 1):
        tester.send(["x"] * SMALL_BATCH, partition)
    tester.start(lambda rows: {f"{tester.name}.a": words(rows)}, trigger="")
    tester.until(lambda: len(tester.inits) == 2 * SMALL_BATCH)
    assert processes_with(b"ACKTREE_WRITERS=2")
    of_others = set(processes_with(b"ACKTREE_WRITERS=1"))  # of queries that this session had before
    for number in range(1, 6):
        tester.send(["y"])
        tester.until(lambda inits=2 * SMALL_BATCH + number: len(tester.inits) == inits)
    writers = set(processes_with(b"ACKTREE_WRITERS=1"))
    assert writers
    assert len(writers - of_others) <= 1


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


def test_a_bolts_stage_acks_its_tuples_with_or_without_rows_and_fails_rejected_ones(
    tester: StageTester,
) -> None:
    """Its stage filters and emits on; the test plays the spout whose stage has written its tuples."""
    lines = [(b"a", b"b"), (b"c",), (b"a", b"bad")] * 20
    roots = tester.emit(dict(enumerate(lines)))
    rejected = {roots[offset] for offset in range(2, 60, 3)}
    tester.start_bolt(lambda rows: with_reason(rows.where("value <> 'c'")), "two", app.AVAILABLE_NOW)
    tester.until(lambda: not tester.query.isActive)
    tester.until(lambda: (len(tester.tuples), len(tester.acks), len(tester.failed)) == (160, 40, 20))
    assert tester.failed == dict.fromkeys(rejected, REJECTED)
    assert set(tester.acks) == set(roots.values()) - rejected, "what is rejected is not acked"
    out = sorted(value for topic, value, _ in tester.tuples if topic == "c")
    assert out == [b"a"] * 40 + [b"b"] * 20
    expected = dict.fromkeys(tester.acks, 0)
    for topic, _, header in tester.headers:
        for anchor in header.anchors:
            if anchor.root in expected:
                reader = fnv1a64("two" if topic == "a" else "three")
                expected[anchor.root] ^= consumer_edge(anchor.edge, reader)
    assert tester.acks == {root: [value] for root, value in expected.items()}, "one ack per root and batch"
    cluster = WorkerCluster(tester.bootstrap, tester.name)
    assert cluster.committed("two") == cluster.ends()
