"""A spout on a topology of its own, driven call by call; the test plays Spark, the acker and the operator."""

import json
from collections.abc import Callable, Mapping

import numpy as np
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from acktree.core import world
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.ledger.partitions.blocks import block_firsts
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.spark.shared.options import SourceOptions
from acktree.wire.codec import encode_replay_command, encode_result
from acktree.wire.control_records import BACK_OFF, Cause, Failure, ReplayCommand, Result, Span
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import generation_of, root_id
from acktree.wire.state_records import SPOUT_KEY, SpoutState, encode_spout_state
from deadlines import ANSWER_S, stretched

TOPOLOGY = """
name = "{name}"
ackers = {ackers}
[spouts.in]
topics = ["{name}.source"]
emits = ["{name}.out"]
tasks = {tasks}
max_pending = {max_pending}
max_attempts = {max_attempts}
retry_initial_s = 1
block = {block}
[bolts.b]
reads = ["{name}.out"]
"""
DEADLINE_S = stretched(30)


class SpoutTester:
    """A spout on its own topology, driven call by call; time passes only when the test says so."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        records: int,
        ackers: int = 2,
        max_pending: int = 100,
        tasks: int = 1,
        partitions: int = 1,
        max_attempts: int = 3,
        block: int = 1,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.bootstrap, self.name, self.now_s = bootstrap, name, 1000.0
        self.more = dict(options or {})
        self.admin = make_admin(bootstrap, {})
        self.admin.create_topics([NewTopic(f"{name}.source", partitions)])[f"{name}.source"].result()
        counts = {"ackers": ackers, "max_pending": max_pending, "tasks": tasks}
        self.text = TOPOLOGY.format(name=name, **counts, max_attempts=max_attempts, block=block)
        self.apply()
        self.producer = make_producer({"bootstrap.servers": bootstrap})
        self.send(records)
        self.drivers: list[SpoutDriver] = []
        self.batch: PlannedBatch | None = None
        self.driver = self.start()

    def apply(self) -> None:
        """Publish the topology, once the broker knows its new source topic."""
        deadline = world.monotonic_s() + DEADLINE_S
        while f"{self.name}.source" not in self.admin.list_topics(timeout=ANSWER_S).topics:
            assert world.monotonic_s() < deadline
        apply_topology(self.bootstrap, parse_topology(self.text), {})

    def send(self, records: int, stamp_ms: int = 0) -> None:
        """Write records of a time, of now by default."""
        more = {"partition": 0, "headers": [("kept", b"yes")], "timestamp": stamp_ms}
        for number in range(records):
            self.producer.produce(f"{self.name}.source", f"record {number}", **more)
        self.producer.flush()

    def options(self, **more: str) -> SourceOptions:
        role = {"kafka.bootstrap.servers": self.bootstrap, "topology": self.name, "spout": "in"}
        soon = {"kafka.fetch.wait.max.ms": "20"}  # how long after its last record the end of a log is seen
        return SourceOptions.parse({**role, **soon, **self.more, **more})

    def start(self) -> SpoutDriver:
        """Start a driver as Spark would after a crash: with the last batch that it has logged."""
        self.driver = SpoutDriver(self.options(), monotonic=lambda: self.now_s, jitter=lambda: 0.0)
        self.drivers.append(self.driver)
        self.driver.open(self.batch and PlannedBatch.from_json(json.loads(json.dumps(self.batch.to_json()))))
        self.batch = self.batch or self.driver.position()
        return self.driver

    def next_batch(self, limit: int | None = None) -> PlannedBatch | None:
        """Do what one call of latestOffset does."""
        assert self.batch is not None
        self.driver.written(self.batch)
        self.driver.service(0.0)
        batch = self.driver.next_batch(self.driver.log_ends(), limit)
        self.batch = batch or self.batch
        return batch

    def emitted(self, batch: PlannedBatch | None) -> list[tuple[int, int]]:
        """Return (offset, generation) of all that a batch reads."""
        if batch is None:
            return []
        ranges = (*batch.again, *batch.ranges)
        fresh = [(o, generation_of(r.run, 0)) for r in ranges for o in range(r.start, r.end)]
        return fresh + [(o, r.generation) for r in batch.replays for o in r.offsets]

    def roots(self, batch: PlannedBatch | None) -> dict[tuple[int, int], list[int]]:
        """Return which offsets stand under each root (first offset, generation) of a batch."""
        found: dict[tuple[int, int], list[int]] = {}
        for r in (*batch.again, *batch.ranges) if batch else ():
            offsets = np.arange(r.start, r.end)
            for first, offset in zip(block_firsts(offsets, r.start, r.block), offsets, strict=True):
                found.setdefault((int(first), generation_of(r.run, 0)), []).append(int(offset))
        for replays in batch.replays if batch else ():
            found |= {(offset, replays.generation): [offset] for offset in replays.offsets}
        return found

    def send_result(
        self,
        acked: list[tuple[int, int]] = (),
        failed: list[tuple[int, int, Cause]] = (),
        task: int = 0,
        slot: int = 0,
        retry_after_ms: int = BACK_OFF,
    ) -> None:  # type: ignore[assignment]
        """Write one result record, as an acker would."""
        result = Result(
            0,
            np.array([root_id(slot, generation, offset) for offset, generation in acked], np.uint64),
            [Failure(root_id(slot, g, o), cause, "b-0", "because", retry_after_ms) for o, g, cause in failed],
        )
        self.producer.produce(f"{self.name}.spout-{task}", encode_result(result))
        self.producer.flush()

    def command(self, *spans: tuple[int, int]) -> None:
        """Write what ``acktree replay --execute`` writes."""
        command = ReplayCommand(0, [Span(*span) for span in spans])
        self.producer.produce(f"{self.name}.spout-0", encode_replay_command(command))
        self.producer.flush()

    def until(self, holds: Callable[[], bool]) -> None:
        """Serve the driver, a second of its clock a time, until it has read all results and something holds.

        Before the driver has read all results it replays nothing.
        """
        deadline = world.monotonic_s() + DEADLINE_S
        while not (self.driver.has_caught_up and holds()):
            assert world.monotonic_s() < deadline, self.driver.tasks[0]
            self.serve(0.1)
            self.now_s += 1.0

    def serve(self, wait_s: float) -> None:
        """Serve the driver once: Spark has logged the last batch, as whenever it asks for the next one."""
        assert self.batch is not None
        self.driver.written(self.batch)
        self.driver.service(wait_s)

    def committed(self) -> int:
        return self.place(f"{self.name}.source").offset

    def result_position(self) -> int:
        return self.place(f"{self.name}.spout-0").offset

    def remove_results(self) -> None:
        """Do what retention does with all results that are there."""
        place = TopicPartition(f"{self.name}.spout-0", 0)
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        _, place.offset = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
        consumer.close()
        self.admin.delete_records([place])[place].result()

    def states(self) -> SpoutStates:
        """Return what the state topic holds."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.look"}
        consumer = make_consumer({**settings, "isolation.level": "read_committed"})
        place = TopicPartition(f"{self.name}.state-in", 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
        consumer.assign([place])
        found, deadline = SpoutStates(), world.monotonic_s() + DEADLINE_S
        while consumer.position([place])[0].offset < end:
            assert world.monotonic_s() < deadline
            if (message := consumer.poll(0.2)) is not None and message.error() is None:
                found.add(message.key() or b"", message.value(), message.timestamp()[1])
        consumer.close()
        return found

    def spout_state(self) -> SpoutState:
        state = self.states().spout
        assert state is not None
        return state

    def write_spout_state(self, state: SpoutState) -> None:
        """Write a state, as many starts later it would stand there."""
        self.write_state(SPOUT_KEY, encode_spout_state(state))

    def write_state(self, key: bytes, value: bytes) -> None:
        """Write a record of the state topic."""
        self.producer.produce(f"{self.name}.state-in", value, key, 0)
        self.producer.flush()

    def limit(self, topic: str, limit_bytes: int) -> None:
        """Set how large a record of a topic of the topology may be."""
        entry = ConfigEntry(
            "max.message.bytes", str(limit_bytes), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.TOPIC, f"{self.name}.{topic}", incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result()

    def delete_state(self) -> None:
        """Delete the state topic."""
        name = f"{self.name}.state-in"
        self.admin.delete_topics([name])[name].result()
        deadline = world.monotonic_s() + DEADLINE_S
        while name in self.admin.list_topics(timeout=ANSWER_S).topics:
            assert world.monotonic_s() < deadline
            world.sleep(0.1)

    def lose_state(self) -> None:
        """Delete the state topic, and make an empty one."""
        self.delete_state()
        self.apply()

    def place(self, topic: str, partition: int = 0) -> TopicPartition:
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        (place,) = consumer.committed([TopicPartition(topic, partition)], timeout=ANSWER_S)
        consumer.close()
        return place

    def operator_commits(self, offset: int, metadata: str = "") -> None:
        """Do what kafka-consumer-groups --reset-offsets does."""
        consumer = make_consumer({"bootstrap.servers": self.bootstrap, "group.id": f"{self.name}.in"})
        consumer.commit(
            offsets=[TopicPartition(f"{self.name}.source", 0, offset, metadata)], asynchronous=False
        )
        consumer.close()

    @property
    def pending(self) -> int:
        """Return how many records are in flight."""
        return self.driver.progress({})["pending"]

    def count(self, name: str) -> int:
        return self.driver.tasks[0].counters[name]

    def close(self) -> None:
        for driver in self.drivers:
            try:
                driver.close()
            except (AcktreeError, RuntimeError):  # or the test has closed it
                pass
