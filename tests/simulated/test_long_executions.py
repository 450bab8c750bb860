"""However slow a bolt is, it keeps its partitions and its transactions, and loses no tuple."""

from collections import Counter
from collections.abc import Iterator

import pytest

from acktree.core import world
from acktree.core.topology.file import parse_topology
from acktree.producers import BasicBolt, BatchBolt, Bolt, Spout
from acktree.testing import TopologyTester
from producers.cluster import WorkerCluster, until
from simulated_kafka import Simulation, run_in

pytestmark = pytest.mark.simulated


@pytest.fixture
def cluster(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[WorkerCluster]:
    made = WorkerCluster(kafka, unique)
    yield made
    run_in(simulation, made.close)


TEXT = """
name = "t"
ackers = 0
[spouts.numbers]
emits = ["a"]
[bolts.slow]
reads = ["a"]
emits = ["b"]
exactly_once = true
"""


class NumbersOnce(Spout):
    def __init__(self, count: int) -> None:
        self.waiting = [str(number) for number in range(count)]

    def next_tuple(self, emitter):
        if self.waiting:
            emitter.emit(message := self.waiting.pop(0), message, key="one partition")


def run(bolt, count: int, seconds: float) -> Counter[str]:
    """Run the bolt for a while; return how often each value is on the topic that it emits to."""
    bolts, spouts = {"slow": bolt}, {"numbers": NumbersOnce(count)}
    with TopologyTester(parse_topology(TEXT), spouts=spouts, bolts=bolts) as tester:
        tester.run_for(seconds)
        return Counter(tester.values("b"))


def once(count: int) -> Counter[str]:
    return Counter(map(str, range(count)))


class EverySecondSlow(BasicBolt):
    """Executes every second tuple slowly."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s, self.executed = slow_s, Counter[str]()

    def execute(self, tup, emit):
        self.executed[tup.value.decode()] += 1
        emit(tup.value)
        if int(tup.value) % 2:
            world.sleep(self.slow_s)


class SlowBatch(BatchBolt):
    """Takes as long for a tuple as for any other, so a batch of 100 takes 100 times that."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s, self.executed = slow_s, Counter[str]()

    def execute(self, tuples, collector):
        self.executed.update(map(bytes.decode, tuples.values))
        collector.emit_many(tuples.values, tuples)
        world.sleep(self.slow_s * len(tuples))


def test_a_batch_that_takes_longer_than_a_transaction_may_is_executed_once():
    bolt = SlowBatch(0.15)
    assert run(bolt, 400, 120.0) == once(400)
    assert bolt.executed == once(400)


@pytest.mark.parametrize("slow_s", [4.0, 12.0, 25.0])
def test_a_tuple_that_takes_longer_than_a_transaction_may_is_executed_once(slow_s: float):
    bolt = EverySecondSlow(slow_s)
    assert run(bolt, 6, 10 * slow_s) == once(6)
    assert bolt.executed == once(6)


class HangsAt(BasicBolt):
    """Hangs at its first tuple of a value; says in which threads it was called."""

    def __init__(self, value: str, hangs_s: float = 3600.0) -> None:
        self.value, self.hangs_s = value, hangs_s
        self.executed, self.threads = Counter[str](), set[int]()

    def prepare(self, context):
        self.threads.add(world.thread_id())

    def execute(self, tup, emit):
        self.threads.add(world.thread_id())
        value = tup.value.decode()
        self.executed[value] += 1
        emit(tup.value)
        if value == self.value and self.executed[value] == 1:
            world.sleep(self.hangs_s)

    def cleanup(self):
        self.threads.add(world.thread_id())


def committed(cluster: WorkerCluster) -> dict[int, int]:
    return cluster.committed("only")


def values(cluster: WorkerCluster) -> Counter[str]:
    return Counter(record.value().decode() for record in cluster.read(cluster.topic("b")))


MODES = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


@pytest.mark.virtual
@MODES
def test_a_bolt_that_hangs_keeps_its_partitions_and_earlier_tuples_are_committed(
    cluster: WorkerCluster, exactly_once: bool
):
    """For longer than max.poll.interval.ms, 300 s."""
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    bolt = HangsAt("7", 1000.0)
    worker = cluster.start(bolt)
    until(lambda: committed(cluster) == {0: 7}, "the others are committed")
    cluster.emit(range(10, 20), 1)
    until(lambda: committed(cluster) == {0: 10, 1: 10}, "all", within_s=1100.0)
    worker.stop()
    assert bolt.executed == values(cluster) == once(20), "nothing was executed again"
    assert len(bolt.threads) == 1
    assert not cluster.open_roots()


@MODES
def test_a_bolt_that_hangs_leaves_its_tuple_to_the_next_worker_of_its_partition(
    cluster: WorkerCluster, exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    for partition in range(2):
        cluster.emit(range(10 * partition, 10 * partition + 10), partition)
    bolt, other = HangsAt("7", 100.0), HangsAt("")
    first = cluster.start(bolt)
    until(lambda: bolt.executed["7"], "it hangs")
    second = cluster.start(other)
    until(lambda: committed(cluster) == {0: 10, 1: 10}, "all", within_s=200.0)
    world.sleep(150.0)
    second.stop()
    for partition in range(2):
        cluster.emit(range(20 + 10 * partition, 30 + 10 * partition), partition)
    until(lambda: committed(cluster) == {0: 20, 1: 20}, "the first one reads both partitions again")
    first.stop()
    assert (bolt.executed + other.executed).keys() == once(40).keys()
    if exactly_once:
        assert values(cluster) == once(40)
        assert not cluster.open_roots()
    assert values(cluster).keys() == once(40).keys()


@MODES
def test_a_stop_waits_for_a_bolt_that_hangs_no_longer_than_its_class_says(
    cluster: WorkerCluster, exactly_once: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(10), 0)
    bolt = HangsAt("7", 100.0)
    worker = cluster.start(bolt)
    until(lambda: bolt.executed["7"], "it hangs")
    began_s = world.monotonic_s()
    worker.stop()
    assert 30.0 <= world.monotonic_s() - began_s < 40.0
    assert committed(cluster) == {0: 7}
    world.sleep(200.0)
    successor = cluster.start(HangsAt(""))
    until(lambda: committed(cluster) == {0: 10}, "all")
    successor.stop()
    if exactly_once:
        assert values(cluster) == once(10)


class BatchHangsAt(BatchBolt):
    """Hangs at its first batch with a value, or raises for a part of it and hangs at the next."""

    def __init__(self, value: str, hangs_s: float, *, raises: bool) -> None:
        self.value, self.hangs_s, self.raises = value.encode(), hangs_s, raises
        self.calls, self.has_hung = 0, False

    def execute(self, tuples, collector):
        collector.emit_many(tuples.values, tuples)
        if self.value not in tuples.values or self.has_hung:
            return
        self.calls += 1
        if self.raises and self.calls <= 2:
            raise ValueError("in halves")
        self.has_hung = True
        world.sleep(self.hangs_s)


@MODES
@pytest.mark.parametrize("raises", [False, True])
def test_a_batch_that_hangs_while_one_of_its_partitions_goes_loses_no_tuple(
    cluster: WorkerCluster, exactly_once: bool, raises: bool
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    for partition in range(2):
        cluster.emit(range(10 * partition, 10 * partition + 10), partition)
    bolt = BatchHangsAt("7", 100.0, raises=raises)
    first = cluster.start(bolt)
    until(lambda: bolt.has_hung, "it hangs")
    second = cluster.start(BatchHangsAt("", 0.0, raises=False))
    until(lambda: committed(cluster) == {0: 10, 1: 10}, "all", within_s=300.0)
    for worker in (first, second):
        worker.stop()
    if exactly_once:
        assert values(cluster) == once(20)
        assert not cluster.open_roots()
    assert values(cluster).keys() == once(20).keys()
    world.sleep(bolt.hangs_s)  # its thread outlives it where the other one got its partition


def test_all_methods_of_a_bolt_are_called_in_one_thread(cluster: WorkerCluster):
    threads: dict[str, int] = {}

    def record(name: str):
        return lambda *_: threads.__setitem__(name, world.thread_id())

    body = {name: record(name) for name in ("prepare", "execute", "tick", "timed_out", "drop", "cleanup")}
    cluster.message_timeout_s = 5
    cluster.apply(only=(["a"], ["b"]))
    cluster.emit(range(1), 0)
    worker = cluster.start(type("Notes", (Bolt,), {"tick_interval_s": 1.0, **body})())
    until(lambda: "timed_out" in threads, "its timeout")
    cluster.emit(range(1, 5))
    until(lambda: worker.executed == 5)
    others = [cluster.start(HangsAt("")) for _ in range(1)]
    until(lambda: "drop" in threads, "a partition goes", within_s=100.0)
    for running in (worker, *others):
        running.stop()
    assert threads.keys() == body.keys()
    assert len(set(threads.values())) == 1
