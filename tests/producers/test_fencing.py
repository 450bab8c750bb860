"""An exactly-once worker that died: its open transaction ends when another worker gets its partitions.

The transaction timeout in these tests is far longer than the tests' own limit.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from acktree.producers import BasicBolt
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.fencing import find_owners
from acktree.producers.worker.loop import Worker
from acktree.schemas import world
from acktree.schemas.clients import make_consumer, make_producer
from acktree.schemas.stats import decode_report
from producers.cluster import WorkerCluster, until
from simulated_kafka import Simulation

pytestmark = pytest.mark.simulated

TIMEOUTS = {"session.timeout.ms": "6000", "transaction.timeout.ms": "600000"}

BOLT = """
import os, threading
from acktree.producers import BasicBolt

class Stall(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, key=b"k")
        if tup.value == os.environ["STALLS_AT"].encode():
            threading.Event().wait()
"""


class PassWithKey(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, key=b"k")


class Stall(PassWithKey):
    """The bolt of the real process, in a simulated one."""

    def __init__(self, stalls_at: int) -> None:
        self.stalls_at = b"%d" % stalls_at

    def execute(self, tup, emit):
        super().execute(tup, emit)
        if tup.value == self.stalls_at:
            world.event().wait()


Start = Callable[..., Callable[[], object]]


@pytest.fixture
def start_process(cluster: WorkerCluster, tmp_path: Path, simulation: Simulation | None) -> Start:
    """Return a function that starts a worker in a process, real or simulated, and returns what kills it."""

    def start_real(stalls_at: int, **more: str) -> Callable[[], object]:
        (tmp_path / "stall_bolt.py").write_text(BOLT)
        command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", "stall_bolt:Stall"]
        command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
        command += [text for item in (TIMEOUTS | more).items() for text in ("-X", "=".join(item))]
        environment = {**os.environ, "STALLS_AT": str(stalls_at)}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        return lambda: (process.kill(), process.wait())

    def start_simulated(stalls_at: int, **more: str) -> Callable[[], object]:
        assert simulation is not None
        process = simulation.start_process(
            lambda: Worker(
                cluster.bootstrap, cluster.name, Stall(stalls_at), name="first", user=TIMEOUTS | more
            ).run()
        )
        return lambda: simulation.kernel.kill(process)

    return start_real if simulation is None else start_simulated


def count_records(cluster: WorkerCluster, topic: str) -> int:
    """Return how many records a topic has, those of open transactions included."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "looker", "enable.partition.eof": True}
    consumer = make_consumer({**settings, "isolation.level": "read_uncommitted"})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    records = ends = 0
    while ends < len(partitions):
        record = consumer.poll(10)
        assert record is not None
        is_end = record.error() is not None
        ends, records = ends + is_end, records + (not is_end)
    consumer.close()
    return records


def values(cluster: WorkerCluster, topic: str) -> Counter[int]:
    return Counter(int(record.value()) for record in cluster.read(topic))


@pytest.mark.parametrize(
    ("committed", "total"),
    [
        pytest.param(0, 1, id="its first transaction"),
        pytest.param(10, 30, id="a later one", marks=pytest.mark.real),
    ],
)
def test_records_after_a_killed_workers_transaction_become_readable_when_another_takes_over(
    cluster: WorkerCluster, start_process: Start, committed: int, total: int
):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(committed), 0)
    topic = cluster.topic("b")
    kill = start_process(total - 1)
    until(lambda: values(cluster, topic).total() == committed, "the first ones are committed")
    cluster.emit(range(committed, total), 0)
    until(lambda: count_records(cluster, topic) >= total, "an open transaction holds the others")
    kill()
    assert values(cluster, topic) != Counter(range(total))
    cluster.start(PassWithKey(), "first")
    until(lambda: values(cluster, topic) == Counter(range(total)), "all is read, once")
    cluster.close()


def test_a_worker_that_is_started_again_under_its_name_ends_what_it_left_open_before_it_is_a_member(
    cluster: WorkerCluster, start_process: Start
):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    topic, group = cluster.topic("b"), f"{cluster.name}.first"
    kill = start_process(9, **{"group.instance.id": "one"})
    until(lambda: count_records(cluster, topic) >= 10, "an open transaction holds them")
    kill()
    behind = make_producer({"bootstrap.servers": cluster.bootstrap})
    for partition in range(len(behind.list_topics(topic, timeout=10).topics[topic].partitions)):
        behind.produce(topic, b"77", partition=partition)
    behind.flush()
    for stranger in ({}, {"group.instance.id": "two"}):
        ExactlyOnce(cluster.bootstrap, stranger, group)
    hidden = values(cluster, topic)[77]
    ExactlyOnce(cluster.bootstrap, {"group.instance.id": "one"}, group)
    until(lambda: values(cluster, topic)[77] > hidden, "what is behind the transaction can be read")
    assert values(cluster, topic).keys() == {77}


def test_a_bolt_changed_to_at_least_once_ends_the_transaction_of_its_dead_predecessor(
    cluster: WorkerCluster, start_process: Start
):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    topic = cluster.topic("b")
    kill = start_process(29)
    until(lambda: values(cluster, topic).total() == 10, "the first ones are committed")
    cluster.emit(range(10, 30), 0)
    until(lambda: count_records(cluster, topic) >= 30, "an open transaction holds the others")
    kill()
    cluster.apply(exactly_once=False, first=(["a"], ["b"]))
    first = cluster.start(PassWithKey(), "first")
    until(lambda: values(cluster, topic) == Counter(range(30)) or first.error, "all is read, once")
    first.stop()
    assert not cluster.open_roots()
    group, places = f"{cluster.name}.first", [(cluster.topic("a"), 0)]
    assert find_owners(cluster.bootstrap, {}, group, places, lambda: True) == set()


def test_commits_name_a_worker_while_it_works_and_not_when_it_has_left(cluster: WorkerCluster):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(100))
    group = f"{cluster.name}.first"
    output = ExactlyOnce(cluster.bootstrap, {}, group)
    places = [(cluster.topic("a"), partition) for partition in cluster.ends()]

    def owners() -> set[bytes]:
        return find_owners(cluster.bootstrap, {}, group, places, lambda: True)

    assert owners() == set()
    first = cluster.start(PassWithKey(), "first", output=output)
    until(lambda: cluster.committed("first") == cluster.ends() or first.error, "all committed")
    assert owners() == {output.owner}
    first.stop()
    assert owners() == set()


def test_a_live_worker_that_is_fenced_resumes_from_the_committed_offsets(cluster: WorkerCluster):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    first = cluster.start(PassWithKey(), "first")
    other = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    topic = cluster.topic("b")
    for count in (500, 1_000, 1_500):
        cluster.emit(range(count - 500, count))
        until(lambda count=count: values(cluster, topic).total() >= count or first.error, "all written")
        assert first.error is None, first.error
        other.fence_previous_owners([(cluster.topic("a"), partition) for partition in cluster.ends()])
    cluster.emit(range(1_500, 2_000))
    until(lambda: values(cluster, topic).total() >= 2_000 or first.error, "it goes on")
    first.stop()
    assert values(cluster, topic) == Counter(range(2_000))


def test_the_last_report_of_a_stopped_worker_is_readable(cluster: WorkerCluster):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(100))
    first = cluster.start(PassWithKey(), "first")
    until(lambda: first.acked == 100, "all acked")
    first.stop()
    reports = [decode_report(record.value()) for record in cluster.read(cluster.topic("stats"))]
    assert [report.values["acked"] for report in reports if report is not None][-1] == 100
