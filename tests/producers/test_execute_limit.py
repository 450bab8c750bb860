"""The time limit of execute: what hangs fails, in a real process and in its own time; nothing is lost."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acktree.console.main import EXIT_ERROR
from acktree.core import world
from acktree.core.topology.file import BoltTable
from acktree.producers import AsyncBolt, BadHandler, BasicBolt
from acktree.producers.worker.executing.bolt_kinds import find_execute_timeout
from deadlines import ANSWER_S
from producers.cluster import Forward, WorkerCluster, until

pytestmark = pytest.mark.simulated

RECORDS, HANGING = 3_000, 1_234
CODE = """
import os, time
from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt

def hang(value):
    if value == b"1234":
        with open(os.environ["SEEN"], "a") as file:
            file.write("hangs\\n")
        if os.environ["HOW"] == "in C":
            time.sleep(3600)
        while True:
            pass

class Basic(BasicBolt):
    execute_timeout_s = 2
    def execute(self, tup, emit):
        hang(tup.value)
        emit(tup.value)

class Held(Bolt):
    execute_timeout_s = 2
    def execute(self, tup, collector):
        hang(tup.value)
        collector.emit(tup.value, anchors=tup)
        collector.ack(tup)

class Acked(Bolt):
    execute_timeout_s = 2
    def execute(self, tup, collector):
        collector.emit(tup.value, anchors=tup)
        collector.ack(tup)
        hang(tup.value)

class Blocking(AsyncBolt):
    execute_timeout_s = 2
    async def execute(self, tup, emit):
        hang(tup.value)
        emit(tup.value)
"""


def worker(cluster: WorkerCluster, folder: Path, kind: str, how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", f"hanging_bolt:{kind}"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    environment = {**os.environ, "SEEN": str(folder / "seen"), "HOW": how}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


SLOW = pytest.mark.slow


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "how", "exactly_once"),
    [
        ("Basic", "in C", False),
        pytest.param("Basic", "in Python", True, marks=SLOW),
        pytest.param("Held", "in C", True, marks=SLOW),
        pytest.param("Acked", "in C", True, marks=SLOW),
        pytest.param("Blocking", "in C", False, marks=SLOW),
    ],
)
def test_a_tuple_that_hangs_fails_once_and_the_process_ends_if_it_does_not_return(
    cluster: WorkerCluster, tmp_path: Path, kind: str, how: str, exactly_once: bool
) -> None:
    (tmp_path / "hanging_bolt.py").write_text(CODE)
    cluster.apply(exactly_once, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(RECORDS))
    process = worker(cluster, tmp_path, kind, how)
    _, said = process.communicate(timeout=ANSWER_S)
    assert process.returncode == EXIT_ERROR, said
    assert "execute took longer than execute_timeout_s = 2" in said
    assert "hang(tup.value)" in said, "where the thread stands"
    fails = [fail for ack in cluster.acks() for fail in ack.fails]
    reason = "execute took longer than execute_timeout_s = 2"
    assert {fail.reason for fail in fails} == (set() if kind == "Acked" else {reason})
    successor = cluster.start(Forward(), "first")
    until(lambda: cluster.committed("first") == cluster.ends(), "everything executed")
    successor.stop()
    assert (tmp_path / "seen").read_text().split() == ["hangs"], "it is not executed again"
    values = {int(record.value()) for record in cluster.read(cluster.topic("b"))}
    assert values == set(range(RECORDS)) - (set() if kind == "Acked" else {HANGING})


class Sleeper(AsyncBolt):
    execute_timeout_s = 2.0

    def __init__(self) -> None:
        self.cancelled: list[bytes] = []

    async def execute(self, tup, emit):
        try:
            await asyncio.sleep(3600 if tup.value == b"7" else 0.01)
        except asyncio.CancelledError:
            self.cancelled.append(tup.value)
            raise
        emit(tup.value)


def test_an_async_tuple_is_cancelled_and_fails_while_its_neighbours_continue(cluster: WorkerCluster) -> None:
    cluster.apply(first=(["a"], ["b"]))
    cluster.emit(range(100))
    bolt = Sleeper()
    running = cluster.start(bolt, "first")
    until(lambda: running.acked + running.failed == 100 or bool(running.error))
    until(lambda: bolt.cancelled == [b"7"])
    running.stop()
    assert running.failed == 1
    (fail,) = {(fail.root, fail.reason) for ack in cluster.acks() for fail in ack.fails}
    assert fail[1] == "execute took longer than execute_timeout_s = 2"


class Forever(BasicBolt):
    execute_timeout_s = 1.0

    def execute(self, tup, emit):
        if tup.value == b"7":
            world.sleep(3600)
        emit(tup.value)


def test_a_limit_of_the_topology_takes_precedence_over_that_of_the_class() -> None:
    table = BoltTable(reads=("a",), execute_timeout_s=5)
    assert find_execute_timeout(Forever(), table, "first") == 5.0
    assert find_execute_timeout(Forever(), BoltTable(reads=("a",)), "first") == 1.0
    assert find_execute_timeout(Forward(), BoltTable(reads=("a",)), "first") == 0.0
    wrong = type("Wrong", (Forever,), {"execute_timeout_s": "soon"})()
    with pytest.raises(BadHandler, match="of bolt first must be a number of seconds"):
        find_execute_timeout(wrong, BoltTable(reads=("a",)), "first")
