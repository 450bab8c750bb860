"""A real Spark and a real broker; the test plays bolts and ackers and checks every tree by hand."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from acktree.schemas.codec import Cause, Failure, Result, decode_ack, decode_ack_init, encode_result
from acktree.schemas.header import TupleHeader, decode_header, find_header
from acktree.schemas.ids import consumer_edge, fnv1a64, origin_of
from acktree.schemas.publish import apply_topology
from acktree.schemas.topology import parse_topology
from acktree.spark import app
from acktree.spark.plan_shape import is_narrow
from acktree.spark.source import FORMAT
from acktree.spark.stage import Stage

pytestmark = pytest.mark.spark
DEADLINE_S = 90

TOPOLOGY = """
name = "{name}"
ackers = 3
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.a", "{name}.b"]
retry_initial_s = 0
[bolts.one]
reads = ["{name}.a"]
[bolts.two]
reads = ["{name}.a", "{name}.b"]
emits = ["{name}.c"]
[bolts.three]
reads = ["{name}.c"]
"""
READERS = {"a": ("one", "two"), "b": ("two",), "c": ("three",)}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = app.make_session("acktree tests")
    yield session
    session.stop()


class Tester:
    """One query on a topology of its own; ``step`` checks what it wrote and answers as the ackers would."""

    __test__ = False

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.name, self.folder = spark, bootstrap, name, folder
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(f"{name}.source", 2)])[f"{name}.source"].result()
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{name}.test",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        topics = {"ack-init": 3, "a": 2, "b": 2, "c": 2}
        self.consumer.assign(
            [TopicPartition(f"{name}.{t}", p, 0) for t, n in topics.items() for p in range(n)]
        )
        self.values: dict[int, int] = defaultdict(int)
        self.inits: dict[int, int] = {}
        self.tuples: list[tuple[str, bytes, tuple[int, ...]]] = []
        self.headers: list[tuple[str, bytes, TupleHeader]] = []
        self.answered: set[int] = set()

    def send(self, values: list[str], partition: int = 0) -> None:
        for value in values:
            self.producer.produce(f"{self.name}.source", value, partition=partition)
        self.producer.flush()

    def start(self, transform: Callable[[DataFrame], Any], trigger: str = app.AVAILABLE_NOW) -> None:
        folder = self.folder / "checkpoint"
        self.query = app.start(self.spark, transform, self.options(spout="in"), folder, trigger)

    def options(self, **role: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, **role}

    def read(self) -> None:
        """Take in inits and tuples; a second init of a root is an error of the stage."""
        for message in self.consumer.consume(1_000, 0.3):
            assert message.error() is None, message.error()
            topic = (message.topic() or "").removeprefix(f"{self.name}.")
            value = message.value() or b""
            if topic == "ack-init":
                for root, folded in decode_ack_init(value).inits.tolist():
                    assert root not in self.inits, "a second init"
                    assert root % 3 == message.partition()
                    self.inits[root] = folded
                    self.values[root] ^= folded
                continue
            header = find_header(message.headers())
            anchors = decode_header(header).anchors if header else ()
            if header:
                self.headers.append((topic, value, decode_header(header)))
            self.tuples.append((topic, value, tuple(anchor.root for anchor in anchors)))
            for anchor in anchors:
                for bolt in READERS[topic]:
                    self.values[anchor.root] ^= consumer_edge(anchor.edge, fnv1a64(bolt))

    def answer(self, failing: Callable[[int], bool] = lambda _root: False) -> None:
        """Tell a verdict for every root that has its init and whose tree folds to 0."""
        ready = [r for r in self.inits if r not in self.answered and self.values[r] == 0]
        failed = [Failure(r, Cause.FAILED, "one-0", "no") for r in ready if failing(r)]
        acked = np.array([r for r in ready if not failing(r)], np.uint64)
        self.answered.update(ready)
        if ready:
            self.producer.produce(f"{self.name}.spout-0", encode_result(Result(0, acked, failed)))
            self.producer.flush()

    def until_the_end(self, failing: Callable[[int], bool] = lambda _root: False) -> None:
        """Play until the query has ended by itself."""
        deadline = time.monotonic() + DEADLINE_S
        while self.query.isActive:
            assert time.monotonic() < deadline, (len(self.inits), len(self.tuples))
            self.read()
            self.answer(failing)
        assert self.query.exception() is None
        self.read()

    def committed(self) -> list[int]:
        group = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        places = group.committed([TopicPartition(f"{self.name}.source", p) for p in (0, 1)], timeout=10)
        group.close()
        return [place.offset for place in places]


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[Tester]:
    made = Tester(spark, bootstrap, unique, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    made.consumer.close()


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


def test_rows_shuffled_before_the_stage_still_have_one_init_a_root(tester: Tester) -> None:
    """Such a shuffle is not in the stage's plan; its tasks notice, and it shuffles roots from then on."""
    tester.send([f"{n} x" for n in range(60)] + [""] * 5)
    options = tester.options(spout="in")
    stage = Stage(lambda rows: {f"{tester.name}.a": words(rows, "a")}, options)
    rows = tester.spark.readStream.format(FORMAT).options(**options).load().repartition(3, "offset")
    writer = rows.writeStream.foreachBatch(lambda batch, number: stage(batch, number) and None)
    writer = writer.option("checkpointLocation", str(tester.folder / "checkpoint"))
    tester.query = writer.trigger(availableNow=True).start()
    tester.until_the_end()
    assert len(tester.tuples) == 120
    assert tester.committed() == [65, 0]


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
    ]
    assert [is_narrow(plan) for plan in narrow] == [True] * 3
    assert [is_narrow(plan) for plan in wide] == [False] * len(wide)


def test_a_tuple_anchored_to_several_roots_closes_all_of_them(tester: Tester) -> None:
    tester.send([f"k{n % 4}" for n in range(40)])

    def transform(rows: DataFrame) -> dict[str, DataFrame]:
        grouped = rows.groupBy(f.col("value").cast("string").alias("value")).agg(
            f.collect_list("anchors").alias("all")
        )
        joined = f.expr("aggregate(all, cast('' as binary), (sum, one) -> concat(sum, one))")
        return {f"{tester.name}.a": grouped.select("value", joined.alias("anchors"))}

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
    assert sum(place.offset for place in places) == 60


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
