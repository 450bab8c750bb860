"""Rows that a transform rejects, brings together, or sends on: what becomes of their trees."""

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.console.demo.children import Child
from acktree.schemas.ids import origin_of
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark import app
from acktree.spark.functions import join_anchors
from spark.tester import DEADLINE_S, Tester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def with_reason(rows: DataFrame) -> DataFrame:
    """Reject what begins with "bad" the first time: a replay of it is good."""
    bad = f.col("value").cast("string").startswith("bad")
    return rows.select("value", "anchors", f.when(bad, f.concat(f.lit("no: "), "value")).alias("fail"))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_spouts_record_with_a_rejected_row_fails_with_its_reason_though_nothing_came_of_it(
    tester: Tester, shuffled: bool
) -> None:
    """An init with value 0 would be acked at once, and the fail come too late."""
    tester.send(["good", "bad", "", "good bad"] * 5)

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        word = f.explode(f.split(f.col("value").cast("string"), " ")).alias("value")
        split = with_reason(rows.select("anchors", word).where("value <> ''"))
        return {f"{tester.name}.a": split.repartition(3) if shuffled else split}

    tester.start(transform, trigger="200 milliseconds")
    tester.until(lambda: len(tester.failed) == 10)
    assert set(tester.failed.values()) == {"no: bad"}
    assert {origin_of(root).offset % 4 for root in tester.failed} == {1, 3}
    assert all(tester.inits[root] != 0 for root in tester.failed)
    assert {value for _, value, _ in tester.tuples} == {b"good"}


def test_a_bolts_tuple_that_is_rejected_is_failed_and_not_acked(tester: Tester, tmp_path: Path) -> None:
    tester.send(["good", "bad"] * 10)
    tester.start(lambda rows: {f"{tester.name}.a": rows}, trigger="200 milliseconds")
    tester.until(lambda: len(tester.tuples) == 20)
    before = dict(tester.values)
    bolt = app.start(
        tester.spark, with_reason, tester.options(bolt="two"), tmp_path / "bolt", app.AVAILABLE_NOW
    )
    bolt.awaitTermination(DEADLINE_S)
    assert bolt.exception() is None
    tester.until(lambda: len(tester.failed) == 10)
    assert set(tester.failed.values()) == {"no: bad"}
    assert [value for topic, value, _ in tester.tuples if topic == "c"] == [b"good"] * 10
    unchanged = {root for root, value in before.items() if tester.values[root] == value}
    assert unchanged == set(tester.failed)


def test_a_joined_row_stands_in_the_tree_of_every_record_it_is_made_of(tester: Tester) -> None:
    tester.send([f"left{n}" for n in range(10)])
    tester.send([f"right{n}" for n in range(0, 10, 2)], partition=1)

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        text = rows.select(f.col("value").cast("string").alias("value"), "anchors")
        parts = text.select("anchors", f.regexp_extract("value", r"\d", 0).alias("n"), "value")
        left, right = (parts.where(f.col("value").startswith(side)).alias(side) for side in ("left", "right"))
        joined = left.join(right, f.expr("left.n = right.n"), "left")
        anchors = join_anchors(f.col("left.anchors"), f.col("right.anchors"))
        return {f"{tester.name}.a": joined.select(f.col("left.value").alias("value"), anchors)}

    tester.start(transform)
    tester.until_the_end()
    assert Counter(len(roots) for _, _, roots in tester.tuples) == {1: 5, 2: 5}
    assert tester.committed() == [10, 5]


TREE = """
name = "{name}"
message_timeout_s = 600
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.words"]
retry_initial_s = 0
max_attempts = 2
[bolts.upper]
reads = ["{name}.words"]
emits = ["{name}.upper"]
[bolts.last]
reads = ["{name}.upper"]
emits = ["{name}.out"]
"""
UPPER = """
from acktree.producers import BasicBolt

class Upper(BasicBolt):
    name = "upper"
    def execute(self, tuple, emit):
        emit(tuple.value.upper())
"""


def test_one_tree_goes_through_spark_a_python_worker_and_spark_again(
    spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path
) -> None:
    """What the last stage rejects comes back to the first; the timeout is too long to help."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(f"{unique}.source", 2)])[f"{unique}.source"].result()
    apply_topology(bootstrap, parse_topology(TREE.format(name=unique)), {})
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(40):
        producer.produce(f"{unique}.source", f"good{n} well{n}" if n % 10 else "bad", partition=n % 2)
    producer.flush()
    (tmp_path / "upper_bolt.py").write_text(UPPER)
    role = {"kafka.bootstrap.servers": bootstrap, "topology": unique}
    place = ["--topology", unique, "-b", bootstrap]
    bad = f.col("value").cast("string") == "BAD"

    def words(rows: DataFrame) -> DataFrame:
        return rows.select("anchors", f.explode(f.split(f.col("value").cast("string"), " ")).alias("value"))

    def last(rows: DataFrame) -> DataFrame:
        return rows.withColumn("fail", f.when(bad, "not wanted"))

    with ExitStack() as running:
        for name, command in {"acker": ["acker"], "bolt": ["bolt"]}.items():
            what = ["upper_bolt:Upper"] if name == "bolt" else []
            child = Child(name, [*command, "run", *what, *place], tmp_path, tmp_path / f"{name}.log", {})
            running.callback(child.stop)
            child.start()
            child.wait_ready(lambda: None)
        second = app.start(spark, last, {**role, "bolt": "last"}, tmp_path / "last", "100 milliseconds")
        running.callback(second.stop)
        first = app.start(spark, words, {**role, "spout": "in"}, tmp_path / "in", app.AVAILABLE_NOW)
        running.callback(first.stop)
        assert first.awaitTermination(DEADLINE_S), second.exception()
        assert first.exception() is None
    out = consume(bootstrap, f"{unique}.out")
    assert sorted(m.value() for m in out) == sorted(
        f"{word}{n}".encode() for n in range(40) if n % 10 for word in ("GOOD", "WELL")
    )
    letters = consume(bootstrap, f"{unique}.dead-letter")
    assert [m.value() for m in letters] == [b"bad"] * 4
    assert all(b"not wanted" in dict(m.headers() or []).values() for m in letters)


def consume(bootstrap: str, topic: str) -> list[Message]:
    """Return what stands on a topic."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "look", "isolation.level": "read_committed"}
    )
    found: list[Message] = []
    for partition in consumer.list_topics(topic).topics[topic].partitions:
        place = TopicPartition(topic, partition, 0)
        consumer.assign([place])
        end = consumer.get_watermark_offsets(place)[1]
        deadline = time.monotonic() + DEADLINE_S
        while end and consumer.position([place])[0].offset < end:
            assert time.monotonic() < deadline
            found += [message for message in consumer.consume(1_000, 0.5) if message.error() is None]
    consumer.close()
    return found
