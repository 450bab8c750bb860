"""Exactly once on a real broker: what a killed worker did not commit has no effect."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings
from acktree.producers.errors import TransactionAborted
from acktree.producers.kafka import exactly_once
from acktree.producers.kafka.exactly_once import ExactlyOnce
from producers.cluster import Forward, Sink, WorkerCluster, until

pytestmark = pytest.mark.simulated

BOLT = """
import os
from acktree.producers import BasicBolt

class Pass(BasicBolt):
    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def execute(self, tup, emit):
        os.write(self.file, b".")
        emit(tup.value)
"""


PAIRS = """
import os
from acktree.producers import Bolt

class Pass(Bolt):
    tick_interval_s = 1.0

    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.old, self.held, self.joined = [], [], []

    def execute(self, tup, collector):
        os.write(self.file, b".")
        if int(tup.value) % 10:
            collector.emit(tup.value, anchors=tup)
            collector.ack(tup)
            return
        self.held.append(tup)
        if len(self.held) == 300:
            pair = self.held.pop(100), self.held.pop(200)
            collector.emit(b",".join(tup.value for tup in pair), anchors=pair)
            self.joined += pair

    def tick(self, collector):
        for tup in self.joined:
            collector.ack(tup)
        self.joined = []
        for tup in self.old:
            collector.emit(tup.value, anchors=tup)
            collector.ack(tup)
        self.old, self.held = self.held, []

    def drop(self, tuples):
        self.old = [tup for tup in self.old if tup not in tuples]
        self.held = [tup for tup in self.held if tup not in tuples]
        self.joined = [tup for tup in self.joined if tup not in tuples]
"""


TOTAL = 60_000


def run_and_kill(cluster: WorkerCluster, folder: Path, code: str, enough: Callable[[Path], bool]) -> Path:
    """Run the code's bolt in a process until ``enough``, and kill it; return the file of what it executed."""
    (folder / "pass_bolt.py").write_text(code)
    seen = folder / "seen"
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(TOTAL))
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", "pass_bolt:Pass"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    command += ["-X", "session.timeout.ms=6000"]
    environment = {**os.environ, "SEEN": str(seen)}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: seen.exists() and enough(seen))
    process.kill()
    process.wait()
    return seen


def check_account(cluster: WorkerCluster) -> None:
    """Let another worker do the rest: every value is written once, and no tree stays open."""
    cluster.start(Forward(), "first")
    until(lambda: cluster.committed("first") == cluster.ends(), "everything executed")

    def written() -> list[int]:
        records = cluster.read(cluster.topic("b"))
        return [int(value) for record in records for value in record.value().split(b",")]

    until(lambda: len(written()) >= TOTAL, "everything committed")
    records = len(cluster.read(cluster.topic("b")))
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked >= records, "everything done")
    cluster.close()
    assert not cluster.open_roots()
    assert Counter(written()) == Counter(range(TOTAL))


@pytest.mark.real
@pytest.mark.promise("a worker, `exactly_once`")
def test_a_worker_killed_with_signal_9_leaves_no_residue_in_any_tree(cluster: WorkerCluster, tmp_path: Path):
    seen = run_and_kill(cluster, tmp_path, BOLT, lambda seen: seen.stat().st_size > 3_000)
    assert seen.stat().st_size < TOTAL
    check_account(cluster)


@pytest.mark.real
@pytest.mark.slow
def test_a_join_killed_with_signal_9_while_it_holds_tuples_leaves_no_residue(
    cluster: WorkerCluster, tmp_path: Path
):
    run_and_kill(cluster, tmp_path, PAIRS, lambda _: bool(cluster.committed("first")))
    assert cluster.committed("first") != cluster.ends()
    check_account(cluster)


def test_inputs_of_an_aborted_transaction_are_read_again_and_take_effect_once(cluster: WorkerCluster):
    class Flaky(ExactlyOnce):
        commit_interval_s = 0.2
        aborts = 0

        def flush_and_commit(self, consumer, offsets, in_callback=False):
            if self.aborts < 2 and any(offset_to_commit.offset > 0 for offset_to_commit in offsets):
                self.aborts += 1
                self.must_abort = True
            return super().flush_and_commit(consumer, offsets, in_callback)

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(1000))
    output = Flaky(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Forward(), "first", output=output)
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked == 1000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert output.aborts == 2
    assert first.executed > 1000
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 1000
    assert sum(cluster.committed("first").values()) >= 1000


def test_a_commit_whose_outcome_is_unknown_takes_effect_once(cluster: WorkerCluster):
    """As if the broker died just after the commit: the client learns that there is no such transaction."""

    class Unknown(ExactlyOnce):
        commit_interval_s = 0.2
        unknown_commits = 0

        def commit(self, consumer, offsets):
            self.has_offsets = bool(offsets)
            super().commit(consumer, offsets)

        def call_with_retries(self, call):
            super().call_with_retries(call)
            if call.func.__name__ == "commit_transaction" and self.has_offsets and self.unknown_commits < 2:
                self.unknown_commits += 1
                super().call_with_retries(self.raise_unknown)

        def raise_unknown(self):
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(1000))
    output = Unknown(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Forward(), "first", output=output)
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked >= 500 or first.error)
    cluster.emit(range(1000, 2000))
    until(lambda: second.acked >= 2000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert output.unknown_commits == 2
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 2000


def test_a_call_that_never_returns_costs_only_its_transaction(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    """Like ``send_offsets_to_transaction`` after its coordinator went away, whatever its timeout."""

    never = world.event()

    class Hanging(ExactlyOnce):
        timeouts = 0

        def call_with_retries(self, call):
            if call.func.__name__ == "send_offsets_to_transaction" and self.timeouts < 2:
                self.timeouts += 1
                with monkeypatch.context() as patch:
                    patch.setattr(exactly_once, "CALL_DEADLINE_S", 0.5)
                    super().call_with_retries(partial(never.wait))
            super().call_with_retries(call)

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    output = Hanging(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Forward(), "first", output=output)
    second = cluster.start(Sink(), "second")
    cluster.emit(range(1000))
    until(lambda: second.acked >= 1000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert output.timeouts == 2
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 1000
    never.set()


def test_a_late_call_of_an_abandoned_producer_costs_its_successor_only_a_transaction(cluster: WorkerCluster):
    """An abandoned call continues in its thread: it may succeed when the next producer is already at work."""
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Forward(), "first", output=output)
    second = cluster.start(Sink(), "second")
    for count in range(500, 3_000, 500):
        late = make_producer(output.settings)
        late.init_transactions(30)
        cluster.emit(range(count - 500, count))
        until(lambda count=count: second.acked >= count or first.error)
        assert first.error is None, first.error
    cluster.close()
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == second.acked == 2_500


def test_a_fenced_producer_aborts_its_transaction_when_it_is_served(cluster: WorkerCluster):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    make_producer(output.settings).init_transactions(30)
    output.produce(cluster.topic("b"), b"x")

    def must_abort() -> bool:
        output.serve()
        return output.must_abort

    until(must_abort)
    with pytest.raises(TransactionAborted):
        output.flush_and_commit(Consumer({"group.id": "g"}), [])
    output.produce(cluster.topic("b"), b"y")
    assert output.flush_and_commit(Consumer({"group.id": "g"}), [])
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"y"]


def test_an_empty_transaction_stays_open_and_what_is_written_later_is_committed(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    """A bolt that emits at its tick alone has outputs and no offsets: both ways to be empty are asked."""
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    consumer = make_consumer(consumer_settings(cluster.bootstrap, "g", {}))
    begun = []
    call = output.call_with_retries
    monkeypatch.setattr(output, "call_with_retries", lambda made: (begun.append(made), call(made))[1])
    for _ in range(3):
        assert output.flush_and_commit(consumer, [])
    assert begun == []
    for number in range(3):
        output.produce(cluster.topic("b"), b"%d" % number)
        assert output.flush_and_commit(consumer, [])
        assert output.flush_and_commit(consumer, [])
    assert len(begun) == 2 * 3, "each commits and begins once"
    assert sorted(record.value() for record in cluster.read(cluster.topic("b"))) == [b"0", b"1", b"2"]
    assert output.flush_and_commit(consumer, [TopicPartition(cluster.topic("a"), 0, 0)])
    assert len(begun) == 2 * 3 + 3
    consumer.close()


class LoadingClient:
    """A client whose broker is still loading its groups and transactions at the first request."""

    def __init__(self, client, method: str, code: int) -> None:
        self._client, self._method, self._code = client, method, code
        self.refused = 0

    def __getattr__(self, name: str):
        return self._refuse_once if name == self._method else getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def _refuse_once(self, *given, **named):
        if not self.refused:
            self.refused += 1
            raise KafkaException(KafkaError(self._code))
        return getattr(self._client, self._method)(*given, **named)


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_worker_that_starts_while_the_broker_loads_transactions_waits(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch, code: int
):
    made = []

    def make(settings):
        made.append(LoadingClient(make_producer(settings), "init_transactions", code))
        return made[-1]

    monkeypatch.setattr("acktree.producers.kafka.output.make_producer", make)
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    output = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    output.produce(cluster.topic("b"), b"x")
    assert output.flush_and_commit(Consumer({"group.id": "g"}), [])
    assert [producer.refused for producer in made] == [1]
