"""An exactly-once worker that died: its open transaction ends when another worker gets its partitions.

The transaction timeout in these tests is far longer than the tests' own limit.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.reports.stats import decode_report
from acktree.producers import BasicBolt
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.fencing import find_owners
from acktree.producers.worker.loop import Worker
from deadlines import ANSWER_S
from producers.cluster import WorkerCluster, until
from simulated_kafka import Simulation

pytestmark = pytest.mark.simulated

TIMEOUTS = {"session.timeout.ms": "6000", "transaction.timeout.ms": "600000"}


class PassWithKey(BasicBolt):
    def execute(self, tup, emit):
        emit(tup.value, key=b"k")


class Stall(PassWithKey):
    """Lets the worker stall before it commits a transaction that has this value."""

    def __init__(self, output: "StallsInCommit", stalls_at: int) -> None:
        self.output, self.stalls_at = output, b"%d" % stalls_at

    def execute(self, tup, emit):
        super().execute(tup, emit)
        if tup.value == self.stalls_at:
            self.output.has_stalled = True


class StallsInCommit(ExactlyOnce):
    """Writes all of a transaction, and does not commit it."""

    has_stalled = False

    def commit(self, consumer, offsets):
        if self.has_stalled:
            self.producer.flush(10)
            world.event().wait()
        super().commit(consumer, offsets)


def run_stalling(bootstrap: str, topology: str, stalls_at: int, **user: str) -> None:
    """Run a worker that stalls."""
    output = StallsInCommit(bootstrap, user, f"{topology}.first")
    Worker(bootstrap, topology, Stall(output, stalls_at), name="first", user=user, output=output).run()


if __name__ == "__main__":
    run_stalling(*sys.argv[1:3], int(sys.argv[3]), **dict(text.split("=") for text in sys.argv[4:]))


Start = Callable[..., Callable[[], object]]


@pytest.fixture
def start_process(cluster: WorkerCluster, simulation: Simulation | None) -> Start:
    """Return a function that starts a worker in a process, real or simulated, and returns what kills it."""

    def start_real(stalls_at: int, **more: str) -> Callable[[], object]:
        command = [
            sys.executable,
            "-m",
            "producers.test_fencing",
            cluster.bootstrap,
            cluster.name,
            str(stalls_at),
        ]
        command += ["=".join(item) for item in (TIMEOUTS | more).items()]
        tests = Path(__file__).parents[1]
        process = subprocess.Popen(command, cwd=tests, stderr=subprocess.DEVNULL)
        return lambda: (process.kill(), process.wait())

    def start_simulated(stalls_at: int, **more: str) -> Callable[[], object]:
        assert simulation is not None
        process = simulation.start_process(
            lambda: run_stalling(cluster.bootstrap, cluster.name, stalls_at, **(TIMEOUTS | more))
        )
        return lambda: simulation.kernel.kill(process)

    return start_real if simulation is None else start_simulated


def count_records(cluster: WorkerCluster, topic: str) -> int:
    """Return how many records a topic has, those of open transactions included."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "looker", "enable.partition.eof": True}
    consumer = make_consumer({**settings, "isolation.level": "read_uncommitted"})
    partitions = consumer.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions
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
def test_a_takeover_makes_records_behind_a_killed_workers_transaction_readable(
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


def test_a_worker_restarted_under_its_name_ends_its_open_transaction_before_it_joins(
    cluster: WorkerCluster, start_process: Start
):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    topic, group = cluster.topic("b"), f"{cluster.name}.first"
    kill = start_process(9, **{"group.instance.id": "one"})
    until(lambda: count_records(cluster, topic) >= 10, "an open transaction holds them")
    kill()
    behind = make_producer({"bootstrap.servers": cluster.bootstrap})
    for partition in range(len(behind.list_topics(topic, timeout=ANSWER_S).topics[topic].partitions)):
        behind.produce(topic, b"77", partition=partition)
    behind.flush()
    for stranger in ({}, {"group.instance.id": "two"}):
        ExactlyOnce(cluster.bootstrap, stranger, group)
    hidden = values(cluster, topic)[77]
    ExactlyOnce(cluster.bootstrap, {"group.instance.id": "one"}, group)
    until(lambda: values(cluster, topic)[77] > hidden, "what is behind the transaction can be read")
    assert values(cluster, topic).keys() == {77}


def test_a_bolt_changed_to_at_least_once_ends_its_dead_predecessors_transaction(
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
