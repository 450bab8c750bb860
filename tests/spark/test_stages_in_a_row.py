"""One tree through several stages, in Spark and in a Python worker."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.console.demo.children import ChildProcess
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.spark import app
from spark.tester import DEADLINE_S

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


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
    def execute(self, tup, emit):
        emit(tup.value.upper())
"""


@pytest.mark.slow
def test_one_tree_spans_two_spark_stages_and_a_python_worker(
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
            child = ChildProcess(
                name, [*command, "run", *what, *place], tmp_path, tmp_path / f"{name}.log", {}
            )
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
    dead_letters = consume(bootstrap, f"{unique}.dead-letter")
    assert [m.value() for m in dead_letters] == [b"bad"] * 4
    assert all(b"not wanted" in dict(m.headers() or []).values() for m in dead_letters)


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
