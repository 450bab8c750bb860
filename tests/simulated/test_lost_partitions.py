"""An exactly-once worker whose partitions are taken away between an execution and its commit.

Both were found by the search: a process that stood still for longer than its session, and came back.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from acktree.core.topology.file import BoltTable, SpoutTable, Topology
from acktree.producers import BasicBolt, Bolt, Collector, Emit, Tuple
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.worker.loop import Worker
from acktree.testing import TopologyTester
from acktree.testing.kafka.broker.groups import Group
from acktree.testing.virtual.kernel import Process

TOPOLOGY = Topology(
    name="t",
    message_timeout_s=60.0,  # longer than two rebalances and a commit interval
    spouts={"lines": SpoutTable.model_validate({"topics": ["lines"], "emits": ["in"]})},
    bolts={"copy": BoltTable(reads=("in",), emits=("out",), exactly_once=True)},
)


class CopyOnce(BasicBolt):
    executed = 0

    def execute(self, tup: Tuple, emit: Emit) -> None:
        CopyOnce.executed += 1
        emit(tup.value)


def worker_of(tester: TopologyTester) -> Worker:
    return tester.service("copy-0").runner


def members(group: Group) -> list[str]:
    return sorted(group.members)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_children_of_lost_partitions_are_committed_once(monkeypatch, protocol):
    monkeypatch.setattr(ExactlyOnce, "commit_interval_s", 4.0)  # time for the session to be noticed as over
    CopyOnce.executed = 0
    user = {"group.protocol": protocol}
    parts = {"bolts": {"copy": CopyOnce}, "stages": {"lines": lambda row: [row.value]}}
    with TopologyTester(TOPOLOGY, user=user, partitions=1, **parts) as tester:
        tester.run_for(5.0)
        for number in range(3):
            tester.send("lines", str(number))
        tester.run_until(lambda: CopyOnce.executed == 3, what="the execution")
        group = tester.cluster.group("t.copy")
        for member in members(group):
            group.leave(member)
        tester.run_until_done()
        assert CopyOnce.executed > 3, "the partition was not lost before its commit"
        assert sorted(tester.values("out")) == ["0", "1", "2"]


@contextmanager
def before_a_revocation(monkeypatch) -> Iterator[TopologyTester]:
    """One of two workers has executed 20 tuples; five seconds later it loses some of its partitions."""
    monkeypatch.setattr(ExactlyOnce, "commit_interval_s", 20.0)  # the revocation comes first
    monkeypatch.setattr("acktree.producers.kafka.exactly_once.TRANSACTION_TIMEOUT_MS", 60_000)
    CopyOnce.executed = 0
    stages = {"lines": lambda row: [row.value]}
    parts = {"bolts": {"copy": CopyOnce}, "stages": stages, "workers": {"copy": 2}}
    user = {"group.protocol": "consumer"}
    with TopologyTester(TOPOLOGY, user=user, partitions=4, **parts) as tester:
        tester.kill("copy-1", restart_after_s=70.0)
        tester.run_for(65.0)
        for number in range(20):
            tester.send("lines", str(number), key=str(number))
        tester.run_until(lambda: CopyOnce.executed == 20, what="the execution")
        yield tester


def test_tuples_of_kept_partitions_in_an_aborted_transaction_are_read_again(monkeypatch):
    """KIP-848 takes some partitions away and leaves others: an abort concerns all of them."""
    with before_a_revocation(monkeypatch) as tester:
        worker_of(tester).output.must_abort = True
        began_s = tester.now_s
        tester.run_until_done()
        assert tester.now_s - began_s < TOPOLOGY.message_timeout_s, "only a replay has helped"
        assert sorted(tester.values("out"), key=int) == [str(number) for number in range(20)]


def test_a_commit_due_at_the_revocation_does_not_pass_tuples_lost_in_the_abort(monkeypatch):
    """The turn goes on after a revocation has aborted: it must read again before it executes or commits."""
    with before_a_revocation(monkeypatch) as tester:
        worker, before = worker_of(tester), tester.kernel.on_call

        def make_a_commit_due(process, call):
            before(process, call)
            if call == "producer.abort_transaction" and process is tester.service("copy-0").process:
                worker.output.commit_records = 1

        tester.kernel.on_call = make_a_commit_due
        worker.output.must_abort = True
        began_s = tester.now_s
        tester.run_until_done()
        assert worker.output.commit_records == 1, "the revocation has not aborted"
        assert tester.now_s - began_s < TOPOLOGY.message_timeout_s, "only a replay has helped"
        assert sorted(tester.values("out"), key=int) == [str(number) for number in range(20)]


class HoldUntilOver(Bolt):
    """Holds every tuple, so that a revocation gives some to its ``drop``."""

    tick_interval_s = 0.5

    def __init__(self) -> None:
        self.held: list[Tuple] = []
        self.dropped = 0
        self.is_over = False

    def execute(self, tup: Tuple, collector: Collector) -> None:
        self.held.append(tup)

    def tick(self, collector: Collector) -> None:
        while self.is_over and self.held:
            tup = self.held.pop()
            collector.emit(tup.value, anchors=tup)
            collector.ack(tup)

    def drop(self, tuples: Sequence[Tuple]) -> None:
        self.held = [tup for tup in self.held if tup not in tuples]
        self.dropped += len(tuples)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_records_read_in_a_revocation_wait_until_the_bolt_has_dropped_its_tuples(exactly_once):
    """KIP-848 serves the revocation, and returns records of a partition that stays, in one read."""
    bolts = {"copy": BoltTable(reads=("in",), emits=("out",), exactly_once=exactly_once)}
    topology = TOPOLOGY.model_copy(update={"bolts": bolts, "message_timeout_s": 600.0})
    stages = {"lines": lambda row: [row.value]}
    parts = {"bolts": {"copy": HoldUntilOver}, "stages": stages, "workers": {"copy": 2}}
    user = {"group.protocol": "consumer"}
    with TopologyTester(topology, user=user, partitions=4, **parts) as tester:
        logs = [tester.cluster.log("in", partition) for partition in range(4)]
        tester.kill("copy-1", restart_after_s=70.0)
        tester.run_for(60.0)
        first, before = tester.handler("copy-0"), tester.kernel.on_call

        def write() -> None:
            for partition, log in enumerate(logs):
                log.append(None, b"%d" % partition)

        def write_in_a_revocation(process: Process, call: str) -> None:
            before(process, call)
            if call == "consumer.revoke" and process is tester.service("copy-0").process:
                write()

        write()
        tester.run_until(lambda: len(first.held) == 4, what="one tuple of each partition in hand")
        tester.kernel.on_call = write_in_a_revocation
        tester.run_until(lambda: first.dropped > 0, what="the revocation")
        tester.run_for(10.0)
        for name in ("copy-0", "copy-1"):
            tester.handler(name).is_over = True
        tester.run_for(10.0)
        assert sorted(tester.values("out")) == sorted("01230123")
