"""A stage in Python as processes on a real broker: whatever is killed, each line's words are written once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.acker.service import Acker
from acktree.console.demo.account import committed_offsets
from acktree.console.demo.children import ChildProcess
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.producers import BasicBolt
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.worker.loop import Worker

pytestmark = pytest.mark.broker

LINES, PARTITIONS = 2_000, 2
DEADLINE_S = 120
TOPOLOGY = """
name = "{name}"
ackers = 1
message_timeout_s = 10
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
max_attempts = 2
retry_initial_s = 0.1
[bolts.count]
reads = ["{name}.words"]
"""
APP = """
import time
from acktree.producers import bolt, stage

@stage(reads="{name}.lines", emits="{name}.words")
def split(line: str) -> list[str]:
    time.sleep(0.001)
    return line.split()

@bolt(reads="{name}.words")
def count(word: str) -> None:
    pass
"""


class Split(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        if tup.value == b"poison":
            raise ValueError("no words")
        for word in tup.value.split():
            emit(word)


class TakesWords(BasicBolt):
    def execute(self, tup: Any, emit: Any) -> None:
        pass


class StageOnABroker:
    """A topology with a stage, on a real broker."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.running = ExitStack()
        admin = make_admin(bootstrap, {})
        admin.create_topics([NewTopic(f"{name}.lines", PARTITIONS)])[f"{name}.lines"].result()
        apply_topology(bootstrap, parse_topology(TOPOLOGY.format(name=name)), {})

    def send(self, lines: list[str]) -> None:
        producer = make_producer({"bootstrap.servers": self.bootstrap})
        for number, line in enumerate(lines):
            producer.produce(f"{self.name}.lines", line, partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    def start(self, role: Any) -> threading.Thread:
        """Run a role in a thread until the test ends; what it raises is in the thread's ``error``."""

        def run() -> None:
            try:
                role.run()
            except Exception as error:
                thread.error = error  # type: ignore[attr-defined]

        thread = threading.Thread(target=run)
        thread.error = None  # type: ignore[attr-defined]
        thread.start()
        self.running.callback(thread.join, DEADLINE_S)
        self.running.callback(role.stop)
        return thread

    def stage(self, of: Any = Split) -> StageWorker:
        return StageWorker(self.bootstrap, self.name, of())

    def start_others(self) -> None:
        """Run an acker and the bolt."""
        self.start(Acker(self.bootstrap, self.name))
        self.start(Worker(self.bootstrap, self.name, TakesWords()))

    def await_commits(self, count: int, look: Callable[[], object] = lambda: None) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (
            committed_offsets(self.bootstrap, f"{self.name}.split", f"{self.name}.lines", PARTITIONS)[1]
            < count
        ):
            assert time.monotonic() < deadline
            look()
            time.sleep(0.1)

    def read(self, topic: str) -> list[bytes]:
        """Return the values of committed records."""
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"{self.name}.look",
            "enable.partition.eof": True,
        }
        consumer = make_consumer(
            {**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        )
        partitions = (
            consumer.list_topics(f"{self.name}.{topic}", 10).topics[f"{self.name}.{topic}"].partitions
        )
        consumer.assign([TopicPartition(f"{self.name}.{topic}", each, 0) for each in partitions])
        values, ended = list[bytes](), 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                ended += 1
            else:
                values.append(message.value() or b"")
        consumer.close()
        return values


@pytest.fixture
def tester(bootstrap: str, unique: str) -> Iterator[StageOnABroker]:
    made = StageOnABroker(bootstrap, unique)
    with made.running:
        yield made


@contextmanager
def processes(t: StageOnABroker, folder: Path) -> Iterator[dict[str, ChildProcess]]:
    (folder / "app.py").write_text(APP.format(name=t.name))
    common = ["--topology", t.name, "-b", t.bootstrap]
    commands = {
        "acker": ["acker", "run", *common],
        "count": ["bolt", "run", "app:count", *common],
        "split": ["spout", "run", "app:split", *common],
    }
    with ExitStack() as stack:
        children = {}
        for name, command in commands.items():
            children[name] = ChildProcess(name, command, folder, folder / f"{name}.log", {})
            stack.callback(children[name].stop)
            children[name].start()
        for child in children.values():
            child.wait_ready(lambda: None)
        yield children


@pytest.mark.promise("a stage in Python")
def test_a_stage_that_is_killed_writes_each_word_once_and_commits_every_line(
    tester: StageOnABroker, tmp_path: Path
) -> None:
    lines = [f"a{number} b{number}" for number in range(LINES)]
    tester.send(lines)
    with processes(tester, tmp_path) as children:
        for share in (0.1, 0.4, 0.7):
            tester.await_commits(int(share * LINES))
            children["split"].kill()
            children["split"].start()
        tester.await_commits(LINES)
    assert Counter(tester.read("words")) == Counter(word.encode() for line in lines for word in line.split())


@pytest.mark.promise("a stage in Python … its function raises")
def test_a_line_that_raises_becomes_a_dead_letter_and_no_other_line_waits(tester: StageOnABroker) -> None:
    tester.start_others()
    tester.start(tester.stage())
    tester.send(["a b", "poison", "c"])
    tester.await_commits(3)
    assert sorted(tester.read("words")) == [b"a", b"b", b"c"]
    assert tester.read("dead-letter") == [b"poison"]


@pytest.mark.abandons_clients
@pytest.mark.promise("a stage in Python … a second process of it starts")
def test_a_second_process_fences_the_first_one_which_stops(tester: StageOnABroker) -> None:
    tester.start_others()
    first = tester.start(tester.stage())
    tester.send(["a"])
    tester.await_commits(1)
    tester.start(tester.stage())
    tester.send(["b"])
    first.join(DEADLINE_S)
    assert isinstance(first.error, ZombieDriver)  # type: ignore[attr-defined]
    tester.await_commits(2)
    assert sorted(tester.read("words")) == [b"a", b"b"]


@pytest.mark.abandons_clients
@pytest.mark.promise("a stage in Python … takes over from Spark")
def test_what_spark_has_planned_last_and_not_written_is_emitted_by_a_stage(tester: StageOnABroker) -> None:
    tester.send([f"w{number}" for number in range(20)])
    driver = SpoutDriver(SpoutOptions(tester.bootstrap, tester.name, "split"))
    driver.open(None)
    driver.service(0.1)
    batch = driver.next_batch(driver.log_ends(), 10)
    assert batch is not None
    assert batch.records == 10
    tester.start_others()
    tester.start(tester.stage())
    tester.await_commits(20)
    driver.close()
    assert sorted(tester.read("words")) == sorted(f"w{number}".encode() for number in range(20))
