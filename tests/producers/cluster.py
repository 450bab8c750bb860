"""A tester for workers on a real or simulated Kafka: a topology, tuples with inits, workers, their acks."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from confluent_kafka import Producer, TopicPartition

from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers import BasicBolt
from acktree.producers.worker.loop import Worker
from acktree.wire.codec import decode_ack
from acktree.wire.control_records import Ack
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id
from deadlines import stretched

DEADLINE_S = stretched(60.0)


def until(holds: Callable[[], Any], what: str = "condition", within_s: float = DEADLINE_S) -> None:
    """Wait until ``holds()``; fail after ``within_s``."""
    deadline_s = world.monotonic_s() + within_s
    while not holds():
        assert world.monotonic_s() < deadline_s, f"{what} did not come true in {within_s} s"
        world.sleep(0.02)


class Forward(BasicBolt):
    """Emits what it gets, without a key."""

    def execute(self, tup, emit):
        emit(tup.value)


class Sink(BasicBolt):
    """Acks what it gets and emits nothing."""

    def execute(self, tup, emit):
        pass


class RunningWorker:
    """A worker in its own thread; its error, if any, is kept."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self._thread = world.start_thread(self._run, worker.task)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def __getattr__(self, counter: str) -> int:
        return self.worker.counters[counter]

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def stop(self) -> None:
        self.worker.stop()
        self.join()
        if self.error is not None:
            raise self.error


class WorkerCluster:
    """One topology on the broker; topic names are prefixed with its name."""

    def __init__(self, bootstrap: str, name: str, ackers: int = 2) -> None:
        self.bootstrap, self.name, self.ackers = bootstrap, name, ackers
        self.max_pending, self.spout_tasks = 100_000, 1
        self.message_timeout_s = 30.0 if bootstrap == "simulated" else stretched(30.0)
        self.bolts: dict[str, BoltTable] = {}
        self.edges = EdgeSource()
        self.fold: dict[int, int] = defaultdict(int)
        self.running: list[RunningWorker] = []

    @cached_property
    def _producer(self) -> Producer:
        return make_producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1})

    def topic(self, short: str) -> str:
        return f"{self.name}.{short}"

    def apply(self, exactly_once: bool = False, **bolts: tuple[list[str], list[str]]) -> None:
        """Publish a version with these bolts, each ([reads], [emits]); the spout emits "a"."""
        for name, (reads, emits) in bolts.items():
            self.bolts[name] = BoltTable(
                reads=tuple(map(self.topic, reads)),
                emits=tuple(map(self.topic, emits)),
                exactly_once=exactly_once,
            )
        topology = Topology(
            name=self.name,
            ackers=self.ackers,
            message_timeout_s=self.message_timeout_s,
            spouts={
                "s": SpoutTable(
                    emits=(self.topic("a"),), max_pending=self.max_pending, tasks=self.spout_tasks
                )
            },
            bolts=self.bolts,
        )
        apply_topology(self.bootstrap, topology, {})
        self.history = read_history(self.bootstrap, self.name, {})
        self.version = self.history.latest.version

    def emit(self, offsets: Iterable[int], partition: int | None = None) -> None:
        """Emit one tuple per root on "a", and fold the inits."""
        hashes = self.history.readers(self.version, self.topic("a")).hashes
        for offset in offsets:
            anchor = Anchor(self.version, root_id(0, 16, offset), self.edges.one())
            self.fold[anchor.root] ^= emitted_value(anchor.edge, hashes)
            self.write(b"%d" % offset, encode_header(self.version, [anchor]), partition)
        self._producer.flush()

    def write(self, value: bytes, header: bytes | None, partition: int | None = None) -> None:
        """Write any record on "a"."""
        placed = {} if partition is None else {"partition": partition}
        headers = None if header is None else [(HEADER, header)]
        self._producer.produce(self.topic("a"), value, headers=headers, **placed)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush()

    def start(self, bolt: Any, name: str | None = None, **more: Any) -> RunningWorker:
        """Run a bolt and wait until it is a member of its group."""
        ready = world.event()
        worker = Worker(self.bootstrap, self.name, bolt, name=name, ready=lambda _: ready.set(), **more)
        started = RunningWorker(worker)
        self.running.append(started)
        until(lambda: ready.is_set() or started.error, "ready")
        return started

    def close(self) -> None:
        for running in self.running:
            running.worker.stop()
        for running in self.running:
            running.join()

    def read(self, topic: str) -> list[Any]:
        """Return everything committed on a topic up to now."""
        consumer = make_consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        records, ends = [], 0
        while ends < len(partitions):
            record = consumer.poll(10)
            assert record is not None
            if record.error() is not None:
                ends += 1
            else:
                records.append(record)
        consumer.close()
        return records

    def acks(self) -> list[Ack]:
        """Return what is on T.ack."""
        return [decode_ack(record.value()) for record in self.read(self.topic("ack"))]

    def open_roots(self) -> set[int]:
        """Return the roots whose tree is open, by the inits and everything on T.ack."""
        fold = dict(self.fold)
        for ack in self.acks():
            for entry in ack.acks:
                fold[int(entry["root"])] ^= int(entry["value"])
        return {root for root, value in fold.items() if value}

    def committed(self, bolt: str, short: str = "a") -> dict[int, int]:
        """Return a bolt's committed offsets by partition, of those that have records."""
        topic = self.topic(short)
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.{bolt}"})
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        found = consumer.committed([TopicPartition(topic, partition) for partition in partitions], DEADLINE_S)
        filled = {each.partition for each in found if consumer.get_watermark_offsets(each, DEADLINE_S)[1]}
        consumer.close()
        return {
            each.partition: each.offset for each in found if each.offset >= 0 and each.partition in filled
        }

    def ends(self, short: str = "a") -> dict[int, int]:
        """Return the end offsets of a topic that has records, by partition."""
        topic = self.topic(short)
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader"})
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), DEADLINE_S)[1] for p in partitions
        }
        consumer.close()
        return {partition: end for partition, end in ends.items() if end}

    def set_topic(self, short: str, **config: str) -> None:
        """Change a topic's settings (underscores for dots), and wait until the broker applies them.

        A broker shows a setting just before it applies it, and handles one change after the other: once it
        shows a second change, it has applied the first.
        """
        self._set(self.topic(short), {key.replace("_", "."): value for key, value in config.items()})
        self._set(self.topic(short), {"file.delete.delay.ms": str(60_000 + self.edges.one() % 1_000)})

    def _set(self, topic: str, config: dict[str, str]) -> None:
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin = make_admin(self.bootstrap, {})
        world.wait_for(admin.incremental_alter_configs([resource])[resource], 30)

        def is_shown() -> bool:
            shown = world.wait_for(admin.describe_configs([resource])[resource], 30)
            return all(shown[key].value == value for key, value in config.items())

        until(is_shown, f"{config} of {topic}")
