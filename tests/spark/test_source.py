"""The source on a real Spark, without a stage: complete=batch, its rows, several topics, its progress."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark.options import BadOption, SourceOptions
from acktree.spark.source import FORMAT

pytestmark = pytest.mark.spark
DEADLINE_S = 200
TOPOLOGY = """
name = "{name}"
[spouts.in]
topics = ["{name}.one", "{name}.two"]
"""


class Tester:
    """A spout on two topics, the second compacted, read without a stage; rows are kept as they come."""

    __test__ = False

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.name, self.folder = spark, bootstrap, name, folder
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        compacted = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0"}
        topics = [NewTopic(f"{name}.one", 2), NewTopic(f"{name}.two", 1, config=compacted)]
        for future in self.admin.create_topics(topics).values():
            future.result()
        deadline = time.monotonic() + DEADLINE_S
        while f"{name}.two" not in self.admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.rows: list[Any] = []
        self.batches: list[int] = []

    def run(self, **options: str) -> Any:
        """Read all that is there and return the query that has ended."""
        role = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "spout": "in"}
        rows = self.spark.readStream.format(FORMAT).options(**{**role, "complete": "batch", **options}).load()

        def keep(batch: DataFrame, _number: int) -> None:
            found = batch.collect()
            self.rows += found
            self.batches.append(len(found))

        writer = rows.writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        assert query.awaitTermination(DEADLINE_S)
        assert query.exception() is None
        return query

    def committed(self) -> list[int]:
        group = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        asked = [("one", 0), ("one", 1), ("two", 0)]
        found = group.committed([TopicPartition(f"{self.name}.{t}", p) for t, p in asked], timeout=10)
        group.close()
        return [place.offset for place in found]


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[Tester]:
    yield Tester(spark, bootstrap, unique, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_without_stage_and_acker_it_commits_what_its_batches_have_done(tester: Tester) -> None:
    stamp_ms = 1_700_000_000_123
    headers = [("a", b"1"), ("a", b"2"), ("none", None)]
    tester.producer.produce(
        f"{tester.name}.one", b"value", b"key", partition=1, timestamp=stamp_ms, headers=headers
    )
    tester.producer.produce(f"{tester.name}.one", None, None, partition=1)
    tester.producer.flush()
    tester.run(includeHeaders="true")
    first, second = sorted(tester.rows, key=lambda row: row.offset)
    assert (first.topic, first.partition, first.offset) == (f"{tester.name}.one", 1, 0)
    assert (bytes(first.key), bytes(first.value), first.anchors) == (b"key", b"value", None)
    assert (first.timestamp.timestamp() * 1000, first.timestampType) == (stamp_ms, 0)
    assert [(h.key, h.value and bytes(h.value)) for h in first.headers] == headers
    assert (second.key, second.value, second.headers) == (None, None, None)
    assert tester.committed() == [0, 2, 0]


def test_several_topics_are_read_and_a_second_run_reads_only_what_is_new(tester: Tester) -> None:
    for number in range(30):
        tester.producer.produce(f"{tester.name}.one", f"{number}", partition=number % 2)
        tester.producer.produce(f"{tester.name}.two", f"{number}", f"k{number}")
    tester.producer.flush()
    query = tester.run(maxOffsetsPerTrigger="20")
    told = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    assert {"pending", "frontierLag", "replayed"} <= set(told[0])
    assert told[0]["frontierLag"] == 60
    assert told[-1]["frontierLag"] < 60
    assert sorted(int(row.value) for row in tester.rows) == sorted([*range(30), *range(30)])
    assert max(tester.batches) <= 20
    tester.producer.produce(f"{tester.name}.two", "new", "new")
    tester.producer.flush()
    tester.rows.clear()
    tester.run()
    assert [bytes(row.value) for row in tester.rows] == [b"new"]
    assert tester.committed() == [15, 15, 31]


def test_records_that_compaction_removed_do_not_hold_the_frontier(tester: Tester) -> None:
    for number in range(200):
        tester.producer.produce(f"{tester.name}.two", f"{number}", "same")
        if number % 20 == 0:
            tester.producer.flush()
            time.sleep(0.11)  # a segment's life: only closed ones are compacted
    tester.producer.flush()
    tester.run()
    assert tester.committed() == [0, 0, 200]
    assert int(tester.rows[-1].value) == 199


def test_complete_is_tree_or_batch_and_batch_only_for_a_spout() -> None:
    role = {"kafka.bootstrap.servers": "x", "topology": "t"}
    with pytest.raises(BadOption, match="may be tree or batch"):
        SourceOptions.parse({**role, "spout": "s", "complete": "row"})
    with pytest.raises(BadOption, match="is for a spout"):
        SourceOptions.parse({**role, "bolt": "b", "complete": "batch"})
