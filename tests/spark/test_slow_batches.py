"""A batch that takes longer than the message timeout: its trees stay open while a task has them in hand.

A task here takes as long as the test wants: until it sees so many requests for more time.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from acktree.acker.service import Acker
from acktree.console.demo.account import committed_offsets
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt, Emit, Tuple
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.worker.loop import Worker
from acktree.spark import app
from acktree.spark.driver.timeout_resets import resetting
from acktree.wire.codec import decode_ack, decode_result
from acktree.wire.control_records import Result
from acktree.wire.ids import origin_of, root_id
from deadlines import stretched
from producers.cluster import RunningWorker, WorkerCluster, until
from spark.tester import StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MESSAGE_TIMEOUT_S = 8.0
RESETS_IN_HAND = 6
"""A reset comes every quarter of the timeout: with so many it has passed, and half of it again."""
WAIT_S = stretched(240.0)
QUICK, SLOW = 0, 1


def take_long(batches: Iterator[pa.RecordBatch], released: Path) -> Iterator[pa.RecordBatch]:
    """Hold the slow record until a file is there."""
    for batch in batches:
        if b"%d" % SLOW in batch.column("value").to_pylist():
            until(released.exists, "the release", WAIT_S)
        yield batch


def slow(rows: DataFrame, released: Path) -> DataFrame:
    job = partial(take_long, released=released)
    return rows.select("value", "anchors").mapInArrow(job, "value binary, anchors binary")


def slow_and_shuffled(rows: DataFrame, released: Path) -> DataFrame:
    return slow(rows, released).repartition(2)


def quick_and_slow(rows: DataFrame, released: Path) -> DataFrame:
    """Two branches, so there is a shuffle before the inits; tuples of the quick one are acked long before."""
    return rows.select("value", "anchors").union(slow(rows, released))


@pytest.mark.slow
def test_a_bolts_stage_resets_timeouts_of_its_tuples_in_narrow_and_shuffled_plans(
    spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path
) -> None:
    with StageTester.running(spark, bootstrap, unique, tmp_path, timeout_s=1) as tester:
        released, plans = tmp_path / "released", [slow]
        tester.start_bolt(lambda rows: plans[-1](rows, released), "two", "")
        for offset, plan in enumerate((slow, slow_and_shuffled)):
            plans.append(plan)
            (root,) = tester.emit({offset: [b"%d" % SLOW]}).values()
            tester.until(lambda root=root: tester.resets[root] >= 3)
            assert root not in tester.acks
            released.touch()
            tester.until(lambda root=root: root in tester.acks)
            released.unlink()


def test_a_spouts_shuffled_stage_resets_timeouts_of_its_records(
    spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path
) -> None:
    with StageTester.running(spark, bootstrap, unique, tmp_path, timeout_s=1) as tester:
        released = tmp_path / "released"
        tester.send([b"%d" % SLOW])
        tester.start(lambda rows: {f"{unique}.a": quick_and_slow(rows, released)})
        tester.until(lambda: bool(tester.resets) and min(tester.resets.values()) >= 3)
        assert not tester.inits
        released.touch()
        tester.until_the_end()
        assert set(tester.resets) == set(tester.inits)
        assert tester.committed() == [1, 0]


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


class KeepTuples(BasicBolt):
    """Records what it executes, in which attempt."""

    def __init__(self) -> None:
        self.executed: list[tuple[bytes, int]] = []

    def execute(self, tup: Tuple, emit: Emit) -> None:
        assert tup.origin is not None, "the spout tracks what it emits"
        self.executed.append((tup.value, tup.origin.attempt))


class Control:
    """What is reported of the roots, by offset: results of the acker, and resets of the stage."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{name}.look"})
        self._results = f"{name}.spout-0"
        acks = [TopicPartition(f"{name}.ack", partition, 0) for partition in (0, 1)]
        self._consumer.assign([TopicPartition(self._results, 0, 0), *acks])
        self.acked: set[int] = set()
        self.failed: set[int] = set()
        self.resets: Counter[int] = Counter()

    def read(self) -> set[int]:
        """Read on; return the offsets whose roots have a result."""
        message = self._consumer.poll(0.2)
        if message is None or message.error() is not None:
            return self.acked | self.failed
        if message.topic() == self._results:
            record = decode_result(message.value() or b"")
            assert isinstance(record, Result)
            self.acked |= {origin_of(root).offset for root in record.acked.tolist()}
            self.failed |= {origin_of(failure.root).offset for failure in record.failed}
        else:
            resets = decode_ack(message.value() or b"").resets.tolist()
            self.resets.update(origin_of(root).offset for root in resets)
        return self.acked | self.failed

    def outlasts(self, offset: int) -> bool:
        """Read on; return whether a root was held for longer than the timeout, or has its result."""
        return offset in self.read() or self.resets[offset] >= RESETS_IN_HAND

    def close(self) -> None:
        self._consumer.close()


def send(cluster: WorkerCluster, offset: int) -> None:
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
def cluster(bootstrap: str, unique: str) -> Iterator[WorkerCluster]:
    made = WorkerCluster(bootstrap, unique)
    made.message_timeout_s = MESSAGE_TIMEOUT_S
    made.apply(slow=(["a"], ["b"]))
    acker = Acker(bootstrap, unique)
    thread = threading.Thread(target=acker.run, daemon=True)
    thread.start()
    yield made
    acker.stop()
    thread.join(WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [slow, slow_and_shuffled])
def test_no_tree_times_out_while_a_bolts_batch_holds_it(
    cluster: WorkerCluster, spark: SparkSession, tmp_path: Path, plan: Callable[[DataFrame, Path], DataFrame]
) -> None:
    """A quick batch first: then Python processes run and the trees do not wait for Spark's start."""
    control, released = Control(cluster.bootstrap, cluster.name), tmp_path / "released"
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topology": cluster.name, "bolt": "slow"}
    transform = partial(plan, released=released)
    query = app.start(spark, transform, options, tmp_path / "checkpoint", "100 milliseconds")
    try:
        send(cluster, QUICK)
        until(lambda: any(cluster.committed("slow").values()), "the quick batch", WAIT_S)
        send(cluster, SLOW)
        until(lambda: control.outlasts(SLOW), "a batch longer than the timeout", WAIT_S)
        assert SLOW not in control.acked | control.failed
        released.touch()
        until(lambda: SLOW in control.read(), "the slow batch", WAIT_S)
    finally:
        query.stop()
        control.close()
    assert SLOW in control.acked


@pytest.mark.slow
def test_no_tree_times_out_while_a_spouts_shuffled_batch_holds_it(
    bootstrap: str, unique: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The quick branch's tuples are acked at once; the roots' inits come when the slow one has ended.

    Until then the acker keeps those acks for the orphan timeout, unless it is asked for more.
    """
    topic, released = f"{unique}.source", tmp_path / "released"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result()
    apply_topology(bootstrap, parse_topology(SPOUT.format(name=unique, timeout_s=MESSAGE_TIMEOUT_S)), {})
    acker, kept, control = Acker(bootstrap, unique), KeepTuples(), Control(bootstrap, unique)
    thread = threading.Thread(target=acker.run, daemon=True)
    thread.start()
    worker = RunningWorker(Worker(bootstrap, unique, kept, name="keep"))
    producer = Producer({"bootstrap.servers": bootstrap})
    options = {"kafka.bootstrap.servers": bootstrap, "topology": unique, "spout": "in"}

    def committed() -> int:
        return committed_offsets(bootstrap, f"{unique}.in", topic, 1)[1]

    def is_replayed() -> bool:
        return any(attempt for _, attempt in kept.executed)

    transform = partial(quick_and_slow, released=released)
    query = app.start(spark, transform, options, tmp_path / "checkpoint", "100 milliseconds")
    try:
        producer.produce(topic, b"%d" % QUICK)
        producer.flush()
        until(lambda: committed() == 1 or is_replayed(), "a commit of the quick batch", WAIT_S)
        producer.produce(topic, b"%d" % SLOW)
        producer.flush()
        until(lambda: control.outlasts(SLOW), "a batch longer than the timeout", WAIT_S)
        released.touch()
        until(lambda: len(kept.executed) >= 4, "the slow batch's tuples", WAIT_S)
        until(lambda: committed() == 2 or is_replayed(), "a commit of the slow batch", WAIT_S)
    finally:
        query.stop()
        worker.stop()
        acker.stop()
        control.close()
        thread.join(WAIT_S)
    assert sorted(kept.executed) == [(b"%d" % value, 0) for value in (QUICK, QUICK, SLOW, SLOW)]


def test_resets_continue_after_one_failed_and_none_is_sent_after_the_block() -> None:
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


def test_a_reset_in_progress_is_notified_of_the_end_of_the_block() -> None:
    begun = threading.Event()

    def reset(ended: threading.Event) -> None:
        begun.set()
        assert ended.wait(WAIT_S)

    with resetting(0.001, reset):
        assert begun.wait(WAIT_S)


def test_an_interval_of_0_disables_resets() -> None:
    with resetting(0, pytest.fail):
        assert not any(thread.name == "acktree-resets" for thread in threading.enumerate())
