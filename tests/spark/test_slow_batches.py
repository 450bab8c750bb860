"""A batch that takes longer than the message timeout: its trees stay open while a task has them in hand."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from acktree.acker.service import Acker
from acktree.console.demo.account import committed_offsets
from acktree.producers import BasicBolt, Emit, Tuple
from acktree.producers.packing import InitPacker
from acktree.producers.worker import Worker
from acktree.schemas.codec import Result, decode_result
from acktree.schemas.ids import origin_of, root_id
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark import app
from acktree.spark.resetting import resetting
from producers.cluster import Cluster, Running, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MESSAGE_TIMEOUT_S = 8.0
BATCH_S = 2 * MESSAGE_TIMEOUT_S
WAIT_S = 240.0
QUICK, SLOW = 0, 1


def take_long(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if b"%d" % SLOW in batch.column("value").to_pylist():
            time.sleep(BATCH_S)  # nothing to wait for: this is the job's work
        yield batch


def slow(rows: DataFrame) -> DataFrame:
    return rows.select("value", "anchors").mapInArrow(take_long, "value binary, anchors binary")


def slow_and_shuffled(rows: DataFrame) -> DataFrame:
    return slow(rows).repartition(2)


SPOUT = """
name = "{name}"
ackers = 2
message_timeout_s = 90
orphan_timeout_s = {timeout_s}
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.a"]
retry_initial_s = 0
[bolts.keep]
reads = ["{name}.a"]
"""


class Keep(BasicBolt):
    """Notes what it executes, in which attempt."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, int]] = []

    def execute(self, tuple: Tuple, emit: Emit) -> None:
        assert tuple.origin is not None, "the spout tracks what it emits"
        self.executed.append((tuple.value, tuple.origin.attempt))


def quick_and_slow(rows: DataFrame) -> DataFrame:
    """Two branches, so there is a shuffle before the inits; tuples of the quick one are acked long before."""
    return rows.select("value", "anchors").union(slow(rows))


class Verdicts:
    """What the acker has told of the roots."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": f"{cluster.name}.look"}
        )
        self._consumer.assign([TopicPartition(cluster.topic("spout-0"), 0, 0)])
        self.acked: set[int] = set()
        self.failed: set[int] = set()

    def read(self) -> set[int]:
        """Read on; return the offsets whose roots have a verdict."""
        message = self._consumer.poll(0.2)
        if message is not None and message.error() is None:
            record = decode_result(message.value() or b"")
            assert isinstance(record, Result)
            self.acked |= {origin_of(root).offset for root in record.acked.tolist()}
            self.failed |= {origin_of(failure.root).offset for failure in record.failed}
        return self.acked | self.failed

    def close(self) -> None:
        self._consumer.close()


def send(cluster: Cluster, offset: int) -> None:
    """Write a tuple, and the init of its root."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    inits = InitPacker(
        cluster.history,
        0,
        lambda topic, partition, value: producer.produce(topic, value, partition=partition),
    )
    cluster.emit([offset])
    root = root_id(0, 16, offset)
    inits.add(cluster.version, root, cluster.fold[root])
    inits.flush()
    assert producer.flush(WAIT_S) == 0


@pytest.fixture
def cluster(bootstrap: str, unique: str) -> Iterator[Cluster]:
    made = Cluster(bootstrap, unique)
    made.message_timeout_s = MESSAGE_TIMEOUT_S
    made.apply(slow=(["a"], ["b"]))
    acker = Acker(bootstrap, unique)
    thread = threading.Thread(target=acker.run, daemon=True)
    thread.start()
    yield made
    acker.stop()
    thread.join(WAIT_S)


@pytest.mark.parametrize("transform", [slow, slow_and_shuffled])
def test_no_tree_times_out_while_a_bolts_batch_has_it_in_hand(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame]
) -> None:
    """A quick batch first: then Python processes run and the trees do not wait for Spark's start."""
    verdicts = Verdicts(cluster)
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topology": cluster.name, "bolt": "slow"}
    query = app.start(spark, transform, options, tmp_path / "checkpoint", "100 milliseconds")
    try:
        send(cluster, QUICK)
        until(lambda: any(cluster.committed("slow").values()), "the quick batch", WAIT_S)
        send(cluster, SLOW)
        until(lambda: SLOW in verdicts.read(), "the slow batch", WAIT_S)
    finally:
        query.stop()
        verdicts.close()
    assert SLOW in verdicts.acked


def test_no_tree_times_out_while_a_spouts_shuffled_batch_has_it_in_hand(
    bootstrap: str, unique: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The quick branch's tuples are acked at once; the roots' inits come when the slow one has ended.

    Until then the acker keeps those acks for the orphan timeout, unless it is asked for more.
    """
    topic = f"{unique}.source"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    apply_topology(bootstrap, parse_topology(SPOUT.format(name=unique, timeout_s=MESSAGE_TIMEOUT_S)), {})
    acker, kept = Acker(bootstrap, unique), Keep()
    thread = threading.Thread(target=acker.run, daemon=True)
    thread.start()
    worker = Running(Worker(bootstrap, unique, kept, name="keep"))
    producer = Producer({"bootstrap.servers": bootstrap})
    options = {"kafka.bootstrap.servers": bootstrap, "topology": unique, "spout": "in"}

    def committed() -> int:
        return committed_offsets(bootstrap, f"{unique}.in", topic, 1)[1]

    def is_replayed() -> bool:
        return any(attempt for _, attempt in kept.executed)

    query = app.start(spark, quick_and_slow, options, tmp_path / "checkpoint", "100 milliseconds")
    try:
        for value, done in ((QUICK, 1), (SLOW, 2)):
            producer.produce(topic, b"%d" % value)
            producer.flush()
            until(lambda done=done: len(kept.executed) >= 2 * done, f"the tuples of {done}", WAIT_S)
            until(lambda done=done: committed() == done or is_replayed(), f"a commit of {done}", WAIT_S)
    finally:
        query.stop()
        worker.stop()
        acker.stop()
        thread.join(WAIT_S)
    assert sorted(kept.executed) == [(b"%d" % value, 0) for value in (QUICK, QUICK, SLOW, SLOW)]


def test_resets_go_on_after_one_failed_and_none_is_sent_behind_the_block() -> None:
    called = threading.Semaphore(0)
    calls = 0

    def reset(_ended: threading.Event) -> None:
        nonlocal calls
        calls += 1
        called.release()
        raise OSError("no broker")

    with resetting(0.001, reset):
        for _ in range(3):
            assert called.acquire(timeout=WAIT_S)
    assert not any(thread.name == "acktree-resets" for thread in threading.enumerate())
    assert calls >= 3


def test_a_reset_under_way_is_told_of_the_blocks_end() -> None:
    begun = threading.Event()

    def reset(ended: threading.Event) -> None:
        begun.set()
        assert ended.wait(WAIT_S)

    with resetting(0.001, reset):
        assert begun.wait(WAIT_S)


def test_an_interval_of_0_sends_none() -> None:
    with resetting(0, pytest.fail):
        assert not any(thread.name == "acktree-resets" for thread in threading.enumerate())
