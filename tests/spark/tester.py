"""A stage in Spark on a real broker, with the test as the bolts and ackers behind it."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from acktree.core.edges import EdgeSource
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.spark import app
from acktree.spark.stage import CUT_OFF
from acktree.wire.codec import decode_ack, decode_ack_init, encode_result
from acktree.wire.control_records import Cause, Failure, Result
from acktree.wire.header import HEADER, Anchor, TupleHeader, decode_header, encode_header, find_header
from acktree.wire.ids import consumer_edge, fnv1a64, origin_of, root_id
from deadlines import ANSWER_S, stretched

DEADLINE_S = stretched(240)
A_FEW = 5_000
"""Roots in one record."""

TOPOLOGY = """
name = "{name}"
ackers = 3
message_timeout_s = {timeout_s}
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.a", "{name}.b"]
retry_initial_s = 0
max_pending = 10000000
block = {block}
[bolts.one]
reads = ["{name}.a"]
[bolts.two]
reads = ["{name}.a", "{name}.b"]
emits = ["{name}.c"]
[bolts.three]
reads = ["{name}.c"]
"""
READERS = {"a": ("one", "two"), "b": ("two",), "c": ("three",)}


class StageTester:
    """One query on a topology of its own; ``step`` checks what it wrote and answers as the ackers would."""

    __test__ = False

    def __init__(
        self,
        spark: SparkSession | None,
        bootstrap: str,
        name: str,
        folder: Path,
        *,
        timeout_s: float = stretched(30),
        block: int = 1,
    ) -> None:
        self.spark, self.bootstrap, self.name, self.folder = spark, bootstrap, name, folder
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(f"{name}.source", 2)])[f"{name}.source"].result()
        text = TOPOLOGY.format(name=name, timeout_s=timeout_s, block=block)
        apply_topology(bootstrap, parse_topology(text), {})
        self.producer = Producer({"bootstrap.servers": bootstrap})
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{name}.test",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        topics = {"ack-init": 3, "ack": 3, "a": 2, "b": 2, "c": 2}
        self.consumer.assign(
            [TopicPartition(f"{name}.{t}", p, 0) for t, n in topics.items() for p in range(n)]
        )
        self.values: dict[int, int] = defaultdict(int)
        self.inits: dict[int, int] = {}
        self.tuples: list[tuple[str, bytes, tuple[int, ...]]] = []
        self.headers: list[tuple[str, bytes, TupleHeader]] = []
        self.answered: set[int] = set()
        self.failed: dict[int, str] = {}
        self.retries: dict[int, int] = {}
        """When a failed root is emitted again, by its first fail."""
        self.twice: set[int] = set()
        self.acks: dict[int, list[int]] = defaultdict(list)
        self.resets: Counter[int] = Counter()

    @classmethod
    @contextmanager
    def running(
        cls, spark: SparkSession, bootstrap: str, name: str, folder: Path, **settings: float
    ) -> Iterator["StageTester"]:
        made = cls(spark, bootstrap, name, folder, **settings)
        try:
            yield made
        finally:
            for query in spark.streams.active:
                query.stop()
            made.consumer.close()

    def send(self, values: list[str], partition: int = 0) -> None:
        for value in values:
            self.producer.produce(f"{self.name}.source", value, partition=partition)
        self.producer.flush()

    def emit(self, words_of: Mapping[int, Iterable[bytes]]) -> dict[int, int]:
        """Write tuples on "a" as a spout's stage does, of records by offset; return each one's root."""
        version, edges = read_history(self.bootstrap, self.name, {}).latest.version, EdgeSource()
        roots = {offset: root_id(0, 16, offset) for offset in words_of}
        for offset, words in words_of.items():
            for word in words:
                header = encode_header(version, [Anchor(version, roots[offset], edges.one())])
                self.producer.produce(
                    f"{self.name}.a", word, partition=offset % 2, headers=[(HEADER, header)]
                )
        self.producer.flush()
        return roots

    def start_bolt(self, transform: Callable[[DataFrame], Any], bolt: str, trigger: str) -> None:
        role = self.options(bolt=bolt)
        self.query = app.start(self.spark, transform, role, self.folder / bolt, trigger)

    def start(self, transform: Callable[[DataFrame], Any], trigger: str = app.AVAILABLE_NOW) -> None:
        folder = self.folder / "checkpoint"
        self.query = app.start(self.spark, transform, self.options(spout="in"), folder, trigger)

    def options(self, **role: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, **role}

    def read(self) -> None:
        """Take in inits, fails, acks and tuples."""
        for message in self.consumer.consume(1_000, 0.05):
            assert message.error() is None, message.error()
            topic = (message.topic() or "").removeprefix(f"{self.name}.")
            value = message.value() or b""
            if topic == "ack-init":
                for root, folded in decode_ack_init(value).inits.tolist():
                    assert root % 3 == message.partition()
                    if root in self.inits:
                        self.twice.add(root)
                    else:
                        self.inits[root] = folded
                        self.values[root] ^= folded
                continue
            if topic == "ack":
                self._take_ack(value)
                continue
            header = find_header(message.headers())
            anchors = decode_header(header).anchors if header else ()
            if header:
                self.headers.append((topic, value, decode_header(header)))
            self.tuples.append((topic, value, tuple(anchor.root for anchor in anchors)))
            for anchor in anchors:
                for bolt in READERS[topic]:
                    self.values[anchor.root] ^= consumer_edge(anchor.edge, fnv1a64(bolt))

    def _take_ack(self, value: bytes) -> None:
        said = decode_ack(value)
        for fail in said.fails:
            self.failed.setdefault(fail.root, fail.reason)
            self.retries.setdefault(fail.root, fail.retry_after_ms)
        for root, folded in said.acks.tolist():
            self.acks[root].append(folded)
            self.values[root] ^= folded
        self.resets.update(said.resets.tolist())

    def answer(self, failing: Callable[[int], bool] = lambda _root: False) -> None:
        """Write a result for every root that has its init and whose tree folds to 0."""
        waiting = [root for root in self.inits if root not in self.answered]
        ready = [root for root in waiting if self.values[root] == 0 or root in self.failed]
        reasons = {
            root: self.failed.get(root, "no") for root in ready if failing(root) or root in self.failed
        }
        self.answered.update(ready)
        for some in (ready[at : at + A_FEW] for at in range(0, len(ready), A_FEW)):
            failed = [Failure(r, Cause.FAILED, "one-0", reasons[r]) for r in some if r in reasons]
            acked = np.array([root for root in some if root not in reasons], np.uint64)
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
        assert self.twice <= self.failed.keys(), "a second init, of a root that did not fail"

    def until(self, condition: Callable[[], bool]) -> None:
        """Read, and answer nothing, until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, (len(self.inits), len(self.tuples), self.failed)
            assert self.query.exception() is None
            self.read()

    def check_replayed(self, records: int, roots: int | None = None) -> None:
        """Check that the first emission of so many roots was cut off, and each record's second is acked."""
        assert set(self.failed.values()) == {CUT_OFF}
        assert not self.twice
        emissions = Counter((origin_of(root).attempt, root in self.failed) for root in self.answered)
        assert emissions == {(0, True): roots or records, (1, False): records}

    def committed(self) -> list[int]:
        group = Consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        places = group.committed([TopicPartition(f"{self.name}.source", p) for p in (0, 1)], timeout=ANSWER_S)
        group.close()
        return [place.offset for place in places]
