"""A stage in Python as processes on a real broker: whatever is killed, each line's words are written once."""

import os
import signal
import subprocess
import sys
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
from acktree.core.topology.registry import read_history
from acktree.producers import BasicBolt
from acktree.producers.spouts.driver.owners import TakenOver
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.state_topic import ZombieDriver, control_record
from acktree.producers.stages.stage_worker import StageWorker
from acktree.producers.worker.loop import Worker
from acktree.spark.driver.spark_spout import SparkSpoutDriver
from acktree.spark.shared.options import SourceOptions
from acktree.wire.codec import encode_replay_command
from acktree.wire.control_records import ReplayCommand, Span
from deadlines import stretched
from unreadable_headers import write_with_bad_name

pytestmark = pytest.mark.broker

LINES, PARTITIONS, TASKS = 2_000, 4, 3
DEADLINE_S = stretched(120)
TOPOLOGY = """
name = "{name}"
ackers = 1
message_timeout_s = {timeout_s}
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
tasks = {tasks}
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
        self.apply(1)

    def apply(self, tasks: int) -> None:
        text = TOPOLOGY.format(name=self.name, tasks=tasks, timeout_s=stretched(10))
        apply_topology(self.bootstrap, parse_topology(text), {})

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

    def stage(self, user: dict[str, str] | None = None) -> StageWorker:
        return StageWorker(self.bootstrap, self.name, Split, user=user)

    def await_all_tasks(self, stages: list[StageWorker], tasks: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while sum(len(stage.reports.newest) for stage in stages) != tasks:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def await_tasks(self, *wanted: tuple[StageWorker, int]) -> None:
        """Wait until each of these processes reports so many tasks."""
        deadline = time.monotonic() + DEADLINE_S
        while [len(stage.reports.newest) for stage, _ in wanted] != [count for _, count in wanted]:
            assert time.monotonic() < deadline
            time.sleep(0.1)

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


def command_of(t: StageOnABroker, folder: Path, *more: str) -> list[str]:
    """Return the command of the stage in a file that it writes."""
    (folder / "app.py").write_text(APP.format(name=t.name))
    command = [sys.executable, "-m", "acktree.console.main", "spout", "run", "app:split"]
    return [*command, "--topology", t.name, "-b", t.bootstrap, *more]


@contextmanager
def processes(t: StageOnABroker, folder: Path, stages: int = 1) -> Iterator[dict[str, ChildProcess]]:
    (folder / "app.py").write_text(APP.format(name=t.name))
    common = ["--topology", t.name, "-b", t.bootstrap]
    commands = {
        "acker": ["acker", "run", *common],
        "count": ["bolt", "run", "app:count", *common],
        **{f"split-{number}": ["spout", "run", "app:split", *common] for number in range(stages)},
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
            children["split-0"].kill()
            children["split-0"].start()
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


def test_a_line_with_unreadable_headers_is_rejected_and_ends_no_process(
    tester: StageOnABroker, tmp_path: Path
) -> None:
    """In processes of their own: confluent-kafka may end one that reads such headers carelessly."""
    tester.send(["a"])
    write_with_bad_name(tester.bootstrap, f"{tester.name}.lines", b"foreign")
    tester.send(["b"])
    with processes(tester, tmp_path) as children:
        tester.await_commits(3, children["split-0"].check_alive)
    assert sorted(tester.read("words")) == [b"a", b"b"]
    assert tester.read("dead-letter") == [b"foreign"]


@pytest.mark.promise("a stage in Python … a process that has lost its tasks comes back")
def test_the_tasks_of_a_process_that_is_killed_or_paused_go_to_the_others(
    tester: StageOnABroker, tmp_path: Path
) -> None:
    tester.apply(TASKS)
    lines = [f"a{number} b{number}" for number in range(LINES)]
    tester.send(lines)
    with processes(tester, tmp_path, stages=2) as children:
        tester.await_commits(LINES // 10)
        children["split-0"].kill()
        tester.await_commits(LINES // 2)
        children["split-0"].start()
        children["split-0"].wait_ready(lambda: None)
        os.kill(children["split-1"].pid, signal.SIGSTOP)
        tester.await_commits(LINES)
        os.kill(children["split-1"].pid, signal.SIGCONT)
        tester.send(["c"])
        tester.await_commits(LINES + 1)
    assert Counter(tester.read("words")) == Counter(
        word.encode() for line in [*lines, "c"] for word in line.split()
    )


@pytest.mark.promise("a stage in Python … one more process of it starts")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_one_more_process_gets_some_of_the_tasks_until_it_stops(
    tester: StageOnABroker, protocol: str
) -> None:
    tester.apply(TASKS)
    user = {"group.protocol": protocol}
    first, second = tester.stage(user), tester.stage(user)
    tester.start_others()
    tester.start(first)
    tester.await_tasks((first, TASKS))
    thread = tester.start(second)
    tester.await_tasks((first, 2), (second, 1))
    tester.send([f"w{number}" for number in range(20)])
    tester.await_commits(20)
    second.stop()
    thread.join(DEADLINE_S)
    tester.await_tasks((first, TASKS))
    tester.send(["x"] * PARTITIONS)
    tester.await_commits(20 + PARTITIONS)
    assert Counter(tester.read("words")) == Counter(
        [f"w{number}".encode() for number in range(20)] + [b"x"] * PARTITIONS
    )


def test_a_process_without_a_task_waits_for_one(tester: StageOnABroker) -> None:
    first, second = tester.stage(), tester.stage()
    tester.start_others()
    thread = tester.start(first)
    tester.await_tasks((first, 1))
    tester.start(second)
    tester.send(["a"])
    tester.await_commits(1)
    assert not second.reports.newest
    first.stop()
    thread.join(DEADLINE_S)
    tester.send(["b"])
    tester.await_commits(2)
    assert sorted(tester.read("words")) == [b"a", b"b"]


@pytest.mark.promise("a stage in Python … `tasks` changes")
@pytest.mark.abandons_clients
def test_partitions_move_to_other_tasks_when_the_number_of_tasks_changes(tester: StageOnABroker) -> None:
    stages, words = [tester.stage(), tester.stage()], list[str]()
    tester.start_others()
    for stage in stages:
        tester.start(stage)
    for tasks in (1, 3, 2):
        tester.apply(tasks)
        tester.await_all_tasks(stages, tasks)
        words += [f"{tasks}-{number}" for number in range(40)]
        tester.send(words[-40:])
        tester.await_commits(len(words))
    assert set(tester.read("words")) == {word.encode() for word in words}


@pytest.mark.abandons_clients
def test_a_task_missing_from_a_newer_version_is_fenced_by_the_tasks_it_has(tester: StageOnABroker) -> None:
    tester.apply(2)
    published = read_history(tester.bootstrap, tester.name, {}).latest
    options = [
        SpoutOptions(tester.bootstrap, tester.name, "split", has_blocks=False, task=task)
        for task in published.spout_tasks["split"]
    ]
    paused = SpoutDriver(options[1])
    paused.open(None)
    tester.apply(1)
    driver = SpoutDriver(options[0])
    driver.open(None)
    assert len(driver.topics.partitions) == PARTITIONS
    with pytest.raises(ZombieDriver):
        paused.write([control_record(f"{tester.name}.words", 0, b"late")], [])
    paused.close()
    driver.close()
    assert tester.read("words") == []


@pytest.mark.abandons_clients
@pytest.mark.promise("a stage in Python … Spark takes over from it")
def test_a_driver_of_all_tasks_ends_all_processes_of_a_stage(tester: StageOnABroker) -> None:
    tester.apply(TASKS)
    stages = [tester.stage(), tester.stage()]
    threads = [tester.start(stage) for stage in stages]
    tester.await_all_tasks(stages, TASKS)
    driver = SpoutDriver(SpoutOptions(tester.bootstrap, tester.name, "split"))
    driver.open(None)
    for thread in threads:
        thread.join(DEADLINE_S)
        assert isinstance(thread.error, TakenOver)  # type: ignore[attr-defined]
    driver.close()


@pytest.mark.abandons_clients
@pytest.mark.promise("a stage in Python … takes over from Spark")
def test_a_stage_emits_the_last_batch_that_spark_has_planned_and_not_written(tester: StageOnABroker) -> None:
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


def test_a_replay_command_is_handed_on_to_the_task_that_has_the_partition(tester: StageOnABroker) -> None:
    tester.apply(TASKS)
    stage = tester.stage()
    tester.start_others()
    tester.start(stage)
    tester.send(["a", "b", "c", "d"])
    tester.await_commits(4)
    published = read_history(tester.bootstrap, tester.name, {}).latest
    slot = next(each for each in published.slots if each.partition == 0)
    others = [task for task in published.spout_tasks["split"] if task != published.task_of(slot)]
    producer = make_producer({"bootstrap.servers": tester.bootstrap})
    command = encode_replay_command(ReplayCommand(slot.slot, [Span(0, 1)]))
    for times in (2, 3):
        producer.produce(published.result_topic(others[-1]), command, partition=0)
        assert producer.flush(30) == 0
        deadline = time.monotonic() + DEADLINE_S
        while Counter(tester.read("words"))[b"a"] < times:
            assert time.monotonic() < deadline
        tester.apply(1)  # the task that is no more reads its topic no longer
        tester.await_tasks((stage, 1))
    assert Counter(tester.read("words")) == {b"a": 3, b"b": 1, b"c": 1, b"d": 1}


@pytest.mark.abandons_clients
def test_a_stage_takes_a_spout_over_from_spark_only_with_take_over(
    tester: StageOnABroker, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": tester.bootstrap, "topology": tester.name, "spout": "split"}
    driver = SparkSpoutDriver(SourceOptions.parse(options))
    driver.open(None)
    driver.commit_and_report()
    refused = subprocess.run(
        command_of(tester, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=stretched(60)
    )
    assert refused.returncode == 2, refused.stderr
    assert f"process {os.getpid()} on host " in refused.stderr
    assert refused.stderr.count("\n") == 1
    command = command_of(tester, tmp_path, "--take-over")
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("ready spout split")
        with pytest.raises(ZombieDriver):
            driver.commit_and_report()
        process.terminate()
    driver.close()
    again = subprocess.Popen(command_of(tester, tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with again as process:  # the stage's own earlier process has reported meanwhile
        assert process.stderr is not None
        assert process.stderr.readline().startswith("ready spout split")
        process.terminate()
    assert process.returncode == 0
