"""A stage in Python and an exactly-once bolt while all around them is killed, frozen, moved and rewound."""

import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import NewTopic

from acktree.console.demo.children import ChildProcess
from acktree.console.devbroker.broker import LocalBroker
from acktree.core.kafka.clients import make_admin, make_producer
from acktree.core.kafka.settings import producer_settings
from acktree.core.reports.stats import decode_report
from acktree.core.topology.file import parse_topology
from acktree.core.topology.publish import apply_topology
from acktree.core.topology.registry import read_history
from acktree.producers.spouts.state_topic import TRANSACTION_TIMEOUT_MS
from producers.cluster import WorkerCluster, until
from producers.commit_checker import (
    DEADLINE_S,
    EACH,
    EXPECTED,
    LINES,
    PARTITIONS,
    ROOM,
    CommitChecker,
    OffsetReader,
    WordLog,
)

TASKS, FEWER_TASKS, MAX_PENDING = 4, 3, 4_000
MOST_REWINDS = 10
"""So often a stage at work may overwrite an offset between its look at the group and its commit."""
FREEZE_S = 9.0
"""Longer than the session of a stage and of an exactly-once worker, which is 6 s."""
COMMANDS = {
    "split": ["spout", "run", "app:split"],
    "copy": ["bolt", "run", "app:copy"],
    "acker": ["acker", "run"],
}
FAULTS = [
    *(["kill", role] for role in COMMANDS),
    *([verb, role] for verb in ("freeze", "join", "leave") for role in ("split", "copy")),
    *(["restart"], ["rewind"], ["rewind"], ["move"]),
]
PARTS = len(FAULTS) + 2
SEED = "ACKTREE_TEST_CHAOS_SEED"
TOPOLOGY = """
name = "{name}"
ackers = 2
message_timeout_s = 900
[spouts.split]
topics = ["{name}.lines"]
emits = ["{name}.words"]
tasks = {tasks}
max_pending = {max_pending}
[bolts.copy]
reads = ["{name}.words"]
emits = ["{name}.copies"]
exactly_once = true
"""
APP = """
from acktree.producers import bolt, stage

@stage(reads="{name}.lines", emits="{name}.words")
def split(line: str) -> list[str]:
    return line.split()

@bolt(reads="{name}.words", emits="{name}.copies")
def copy(word: str) -> str:
    return word
"""


def now_ms() -> int:
    return int(time.time() * 1000)


class Cause(NamedTuple):
    """Why lines of a partition may be emitted once more: a rewind, or a move to another task."""

    is_rewind: bool
    partition: int
    first: int
    asked_ms: int
    obeyed_ms: int


class ChaosRun:
    """A topology of real processes on a broker of its own, and what may happen to them."""

    def __init__(self, broker: LocalBroker, name: str, folder: Path, running: ExitStack, seed: int) -> None:
        self._broker, self.bootstrap, self.name, self._folder = broker, broker.bootstrap, name, folder
        self.draw, self._running = random.Random(seed), running
        self._admin = make_admin(self.bootstrap, {})
        self._admin.create_topics([NewTopic(f"{name}.lines", PARTITIONS)])[f"{name}.lines"].result()
        self._apply(TASKS)
        (folder / "app.py").write_text(APP.format(name=name))
        self.children: dict[str, list[ChildProcess]] = {"split": [], "copy": [], "acker": []}
        self.offsets = OffsetReader(self.bootstrap, name)
        running.callback(self.offsets.close)
        self.checker = CommitChecker(self.bootstrap, name)
        running.callback(self.checker.close)
        self.causes: list[Cause] = []

    def _apply(self, tasks: int) -> None:
        text = TOPOLOGY.format(name=self.name, tasks=tasks, max_pending=MAX_PENDING)
        apply_topology(self.bootstrap, parse_topology(text), {})

    def send(self, part: int) -> None:
        """Write one of the PARTS of the lines, the same share of each partition."""
        producer = make_producer(producer_settings(self.bootstrap, {}))
        for line in range(part * EACH // PARTS, (part + 1) * EACH // PARTS):
            for partition in range(PARTITIONS):
                first = (partition * EACH + line) * ROOM
                words = range(first, first + int(EXPECTED[first // ROOM].sum()))
                producer.produce(f"{self.name}.lines", " ".join(map(str, words)), partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def check(self) -> None:
        """Fail if the checker has found something, or a process has ended by itself."""
        assert not self.checker.error, self.checker.error
        for child in (each for role in self.children.values() for each in role):
            child.check_alive()

    def sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.check()
            time.sleep(0.1)

    def await_lines(self, lines: int) -> int:
        """Wait until so many are committed; return how many that are."""
        deadline_s = time.monotonic() + DEADLINE_S
        while (done := sum(self.offsets.committed())) < lines:
            assert time.monotonic() < deadline_s, f"{done} lines are committed, not {lines}"
            self.sleep(0.2)
        return done

    def join(self, role: str) -> None:
        log = self._folder / f"{role}-{time.monotonic_ns()}.log"
        command = [*COMMANDS[role], "--topology", self.name, "-b", self.bootstrap]
        child = ChildProcess(role, command, self._folder, log, {})
        child.start()
        self._running.callback(child.stop)
        self.children[role].append(child)

    def _draw_child(self, role: str) -> ChildProcess:
        child = self.draw.choice(self.children[role])
        child.wait_ready(self.check)
        return child

    def leave(self, role: str) -> None:
        child = self._draw_child(role)
        self.children[role].remove(child)
        child.stop()
        assert child.exit_code == 0, child.tail()

    def leave_all(self, role: str) -> None:
        while self.children[role]:
            self.leave(role)

    def kill(self, role: str) -> None:
        child = self._draw_child(role)
        child.kill()
        child.start()

    def freeze(self, role: str) -> None:
        child = self._draw_child(role)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            self.sleep(FREEZE_S)
        finally:
            os.kill(child.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill the broker, and start it again when records of an open transaction have expired."""
        for child in (each for role in self.children.values() for each in role):
            child.wait_ready(self.check)  # one that starts does not wait for a broker
        self._broker.kill()
        self.sleep(TRANSACTION_TIMEOUT_MS / 1000 + 1)
        self._broker.start()

    def move(self) -> None:
        """Deal the partitions to fewer tasks: what is in flight of those that move is emitted again."""
        before, committed = read_history(self.bootstrap, self.name, {}).latest, self.offsets.committed()
        asked_ms = now_ms()
        self._apply(FEWER_TASKS)
        after = read_history(self.bootstrap, self.name, {}).latest
        slots = [each for each in before.slots_of("split") if before.task_of(each) != after.task_of(each)]
        for at in (slot.partition for slot in slots):
            self.causes.append(Cause(False, at, committed[at], asked_ms, asked_ms))

    def rewind(self) -> None:
        """Take a partition back by Kafka's own means, until a stage says that it obeys."""
        until(lambda: max(self.offsets.committed()) > 1_000, "something to rewind", DEADLINE_S)
        committed = self.offsets.committed()
        partition = self.draw.choice([each for each in range(PARTITIONS) if committed[each] > 1_000])
        done, target = committed[partition], committed[partition] - self.draw.randint(200, 900)
        said = re.compile(
            rf"the offset of {self.name}\.lines/{partition} was set from \d+ to {target}$", re.M
        )
        place = TopicPartition(f"{self.name}.lines", partition, target)
        request = ConsumerGroupTopicPartitions(f"{self.name}.split", [place])
        for _ in range(MOST_REWINDS):
            asked_ms = now_ms()
            self._admin.alter_consumer_group_offsets([request])[request.group_id].result(DEADLINE_S)
            while self.offsets.committed()[partition] == target:
                self.sleep(0.05)
            if any(said.search(log.read_text()) for log in self._folder.glob("split-*.log")):
                break
            print(f"a stage has overwritten the offset {target} of {partition}")
        else:
            pytest.fail(f"no stage has said that it obeys the offset {target} of {partition}")
        self.causes.append(Cause(True, partition, target, asked_ms, now_ms()))
        self.checker.need_again(slice(partition * EACH + target, partition * EACH + done))

    def read_words(self) -> WordLog:
        """Return what is emitted, once that is all."""
        words = WordLog(self.bootstrap, f"{self.name}.words")
        self._running.callback(words.close)
        words.read(self.offsets.ends("words"))
        return words

    def failures(self) -> set[tuple[str, int]]:
        """Return the figures of failures in all reports, and dead letters."""
        cluster = WorkerCluster(self.bootstrap, self.name)
        reports = [decode_report(record.value()) for record in cluster.read(f"{self.name}.stats")]
        spouts = [each.values for each in reports if each.role == "spout"]
        figures = {(each, int(values[each])) for values in spouts for each in ("failed", "timed_out")}
        return {*figures, *cluster.ends("dead-letter").items()}


def check_causes(words: WordLog, causes: list[Cause]) -> None:
    """Check that each line that was emitted again had a cause each time, and that a move concerns few."""
    lines, times = np.array([(word // ROOM, at) for word, at in words.written if word % ROOM == 0]).T
    again: dict[int, list[int]] = {int(line): [] for line in np.flatnonzero(words.counts[:, 0] > 1)}
    repeats = np.isin(lines, list(again))
    for line, at in zip(lines[repeats].tolist(), times[repeats].tolist(), strict=True):
        again[line].append(at)
    ends = {}
    for cause in causes:  # what was emitted when it was rewound, and what a task had in its hands then
        emitted = lines[(lines // EACH == cause.partition) & (times <= cause.obeyed_ms)] % EACH
        ends[cause] = emitted.max() + MAX_PENDING if cause.is_rewind else EACH
    moved = Counter[int]()
    for line, emissions in again.items():
        partition, offset = divmod(line, EACH)
        mine = [each for each in causes if each.partition == partition and each.first <= offset < ends[each]]
        asked = sorted(each.asked_ms for each in mine)
        said = partition, offset, emissions, mine
        assert len(emissions) <= 1 + len(mine), said
        assert all(at <= emitted for at, emitted in zip(asked, sorted(emissions)[1:], strict=False)), said
        moved[partition] += len(emissions) > 1 + sum(each.is_rewind for each in mine)
    print(f"{len(again):,} lines were emitted again, by partition for a move alone: {dict(moved)}")
    assert max(moved.values(), default=0) <= MAX_PENDING


@pytest.fixture
def chaos(own_broker: Callable[..., LocalBroker], unique: str, tmp_path: Path) -> Iterator[ChaosRun]:
    seed = int(os.environ.get(SEED) or random.SystemRandom().getrandbits(32))
    print(f"{SEED}={seed}")
    with ExitStack() as running:
        yield ChaosRun(own_broker(), unique, tmp_path, running, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.promise("1")
@pytest.mark.promise("3")
def test_nothing_is_lost_committed_early_or_emitted_without_a_cause_whatever_fails(chaos: ChaosRun) -> None:
    faults = chaos.draw.sample(FAULTS, len(FAULTS))
    for role in ("split", "copy", "acker", "split", "copy", "acker", "split"):
        chaos.join(role)
    chaos.send(0)
    for number, (verb, *role) in enumerate(faults):
        chaos.send(number + 1)  # so that there is work, whatever happens
        done = chaos.await_lines(int(LINES * (number + chaos.draw.random()) / PARTS))
        print(f"{done:,} lines are committed: {verb} {' '.join(role)}")
        getattr(chaos, verb)(*role)
    chaos.send(PARTS - 1)
    chaos.await_lines(LINES)
    chaos.leave_all("split")
    words, copies = chaos.read_words(), chaos.checker.copies
    until(lambda: chaos.checker.error or copies.counts.sum() >= words.counts.sum(), "all copies")
    for role in ("copy", "acker"):
        chaos.leave_all(role)
    chaos.checker.end()
    assert chaos.checker.looks > 20
    assert ((words.counts > 0) == EXPECTED).all()
    assert (words.counts == words.counts[:, :1] * EXPECTED).all(), "half of a line is emitted"
    assert (copies.counts == words.counts).all()
    check_causes(words, chaos.causes)
    assert chaos.failures() == {("failed", 0), ("timed_out", 0)}
