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

from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.runtime.available_now import stop_when_done
from acktree.spark.runtime.spark_version import HAS_ADMISSION_CONTROL
from acktree.spark.shared.options import SourceOptions
from acktree.spark.source import FORMAT
from deadlines import ANSWER_S, stretched
from spark.test_handoff import handoff_files

pytestmark = pytest.mark.spark
DEADLINE_S = stretched(200)
TOPOLOGY = """
name = "{name}"
[spouts.in]
topics = ["{name}.one", "{name}.two"]
"""


class SourceTester:
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
        while f"{name}.two" not in self.admin.list_topics(timeout=ANSWER_S).topics:
            assert time.monotonic() < deadline
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.rows: list[Any] = []
        self.batches: list[int] = []

    def publish(self, options: str) -> None:
        """Publish the topology with this table of Spark options."""
        text = TOPOLOGY.format(name=self.name) + f"spark = {options}\n"
        apply_topology(self.bootstrap, parse_topology(text), {})

    def run(self, **options: str) -> Any:
        """Read all that is there, by batch, and return the query that has ended."""
        return self.run_as_published(**{"complete": "batch", **options})

    def run_as_published(self, **options: str) -> Any:
        """Read all that is there and return the query that has ended."""
        role = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "spout": "in"}
        options = {"availableNow": f"{not HAS_ADMISSION_CONTROL}", **options}
        rows = self.spark.readStream.format(FORMAT).options(**role, **options).load()

        def keep(batch: DataFrame, _number: int) -> None:
            found = batch.collect()
            self.rows += found
            self.batches.append(len(found))

        writer = rows.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        if HAS_ADMISSION_CONTROL:
            query = writer.trigger(availableNow=True).start()
        else:
            stop_when_done(query := writer.start())
        assert query.awaitTermination(DEADLINE_S)
        assert query.exception() is None
        return query

    def there(self, topic: str) -> list[int]:
        """Return the offsets of the records that partition 0 of a topic holds."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.look"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        consumer.assign([TopicPartition(f"{self.name}.{topic}", 0, 0)])
        found: list[int] = []
        while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
            found.append(message.offset() or 0)
        consumer.close()
        assert message is not None, "the broker delivered nothing"
        return found

    def committed(self) -> list[int]:
        group = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        asked = [("one", 0), ("one", 1), ("two", 0)]
        found = group.committed([TopicPartition(f"{self.name}.{t}", p) for t, p in asked], timeout=ANSWER_S)
        group.close()
        return [place.offset for place in found]


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[SourceTester]:
    yield SourceTester(spark, bootstrap, unique, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_without_stage_and_acker_several_topics_are_read_and_committed_by_batch(
    tester: SourceTester,
) -> None:
    """Rows hold whole records, progress has the lag, no hand-off is left, and a second run continues."""
    one, stamp_ms = f"{tester.name}.one", 1_700_000_000_123
    headers = [("a", b"1"), ("a", b"2"), ("none", None)]
    tester.producer.produce(one, b"value", b"key", partition=1, timestamp=stamp_ms, headers=headers)
    tester.producer.produce(one, None, None, partition=1)
    for number in range(30):
        tester.producer.produce(one, f"{number}", partition=0)
        tester.producer.produce(f"{tester.name}.two", f"{number}", f"k{number}")
    tester.producer.flush()
    query = tester.run(includeHeaders="true", maxOffsetsPerTrigger="20")
    check_rows(tester, headers, stamp_ms)
    if HAS_ADMISSION_CONTROL:  # else Spark shows the end offset as the latest one: it asks for nothing else
        offsets = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
        assert {"pending", "frontierLag", "replayed"} <= set(offsets[0])
        assert offsets[0]["frontierLag"] == 62
        assert offsets[-1]["frontierLag"] < 62
    assert max(tester.batches) <= 20
    tester.producer.produce(f"{tester.name}.two", "new", "new")
    tester.producer.flush()
    tester.rows.clear()
    query = tester.run(includeHeaders="true")
    assert [bytes(row.value) for row in tester.rows] == [b"new"]
    assert tester.committed() == [30, 2, 31]
    assert not handoff_files(query.id)


def test_a_query_that_crashed_in_an_empty_first_batch_continues(
    tester: SourceTester,
) -> None:
    tester.run()
    commits = tester.folder / "checkpoint" / "commits"
    assert tester.batches == [0]
    for file in commits.glob("*0*"):
        file.unlink()
    tester.producer.produce(f"{tester.name}.one", "late", partition=0)
    tester.producer.flush()
    tester.run()
    assert [bytes(row.value) for row in tester.rows] == [b"late"]
    assert tester.committed()[0] == 1


def test_topology_options_apply_at_the_next_start_and_its_own_take_precedence(
    tester: SourceTester,
) -> None:
    tester.publish('{complete = "batch", include_headers = true, max_offsets_per_trigger = 3}')
    for number in range(6):
        tester.producer.produce(f"{tester.name}.one", f"{number}", partition=0, headers=[("a", b"1")])
    tester.producer.flush()
    tester.run_as_published()
    assert [row.headers[0].key for row in tester.rows] == ["a"] * 6
    assert tester.batches == [3, 3]
    tester.publish('{complete = "batch"}')
    tester.producer.produce(f"{tester.name}.one", "last", partition=0)
    tester.producer.flush()
    tester.rows.clear()
    tester.run_as_published(includeHeaders="true", maxOffsetsPerTrigger="9")
    assert [(bytes(row.value), row.headers) for row in tester.rows] == [(b"last", None)]
    assert tester.committed() == [7, 0, 0]


def check_rows(tester: SourceTester, headers: list[tuple[str, bytes | None]], stamp_ms: int) -> None:
    """Check what was read of the two whole records, and that each other one was read once."""
    first, second = sorted((row for row in tester.rows if row.partition == 1), key=lambda row: row.offset)
    assert (first.topic, first.partition, first.offset) == (f"{tester.name}.one", 1, 0)
    assert (bytes(first.key), bytes(first.value), first.anchors) == (b"key", b"value", None)
    assert (first.timestamp.timestamp() * 1000, first.timestampType) == (stamp_ms, 0)
    assert [(h.key, h.value and bytes(h.value)) for h in first.headers] == headers
    assert (second.key, second.value, second.headers) == (None, None, None)
    others = [int(row.value) for row in tester.rows if row.partition == 0]
    assert sorted(others) == sorted([*range(30), *range(30)])


@pytest.mark.slow
def test_records_that_compaction_removed_do_not_hold_the_frontier(tester: SourceTester) -> None:
    """Slow, as the broker looks for what it can compact when it pleases: the test waits until it has."""
    first_ms = int(time.time() * 1000) - 200_000
    for number in range(200):  # a second lies between them: each closes the segment before it
        tester.producer.produce(
            f"{tester.name}.two", f"{number}", "same", timestamp=first_ms + 1_000 * number
        )
        tester.producer.flush()
    deadline = time.monotonic() + DEADLINE_S
    while len(there := tester.there("two")) == 200:
        assert time.monotonic() < deadline, "the broker has compacted nothing"
    tester.run()
    assert tester.committed() == [0, 0, 200]
    assert int(tester.rows[-1].value) == 199
    assert {row.offset for row in tester.rows} <= set(there)


def test_complete_must_be_tree_or_for_a_spout_batch() -> None:
    role = {"kafka.bootstrap.servers": "x", "topology": "t"}
    with pytest.raises(BadOption, match="must be tree or batch"):
        SourceOptions.parse({**role, "spout": "s", "complete": "row"})
    with pytest.raises(BadOption, match="is for a spout"):
        SourceOptions.parse({**role, "bolt": "b", "complete": "batch"})
