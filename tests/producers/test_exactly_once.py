"""Exactly once on a real broker: what a killed worker did not commit never happened."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from acktree.producers import BasicBolt
from acktree.producers.errors import TransactionAborted
from acktree.producers.kafka import exactly_once
from acktree.producers.kafka.claim import claim_run
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.schemas.clients import consumer_settings, make_consumer, make_producer
from producers.cluster import Cluster, until

BOLT = """
import os
from acktree.producers import BasicBolt

class Pass(BasicBolt):
    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def execute(self, tuple, emit):
        os.write(self.file, b".")
        emit(tuple.value)
"""


PAIRS = """
import os
from acktree.producers import Bolt

class Pass(Bolt):
    tick_interval_s = 1.0

    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.old, self.held, self.joined = [], [], []

    def execute(self, tuple, collector):
        os.write(self.file, b".")
        if int(tuple.value) % 10:
            collector.emit(tuple.value, anchors=tuple)
            collector.ack(tuple)
            return
        self.held.append(tuple)
        if len(self.held) == 300:
            pair = self.held.pop(100), self.held.pop(200)
            collector.emit(b",".join(each.value for each in pair), anchors=pair)
            self.joined += pair

    def tick(self, collector):
        for each in self.joined:
            collector.ack(each)
        self.joined = []
        for each in self.old:
            collector.emit(each.value, anchors=each)
            collector.ack(each)
        self.old, self.held = self.held, []

    def drop(self, tuples):
        self.old = [each for each in self.old if each not in tuples]
        self.held = [each for each in self.held if each not in tuples]
        self.joined = [each for each in self.joined if each not in tuples]
"""


class Pass(BasicBolt):
    def execute(self, tuple, emit):
        emit(tuple.value)


class Sink(BasicBolt):
    def execute(self, tuple, emit):
        pass


TOTAL = 60_000


def run_and_kill(cluster: Cluster, folder: Path, code: str, enough: Callable[[Path], bool]) -> Path:
    """Let a process execute the code's bolt until there is enough, and kill -9 it; return what it saw."""
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


def check_account(cluster: Cluster) -> None:
    """Let another worker do the rest: every value stands once behind it, and no tree stays open."""
    cluster.start(Pass(), "first")
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


def test_a_worker_killed_with_9_leaves_no_residue_in_any_tree(cluster: Cluster, tmp_path: Path):
    seen = run_and_kill(cluster, tmp_path, BOLT, lambda seen: seen.stat().st_size > 3_000)
    assert seen.stat().st_size < TOTAL
    check_account(cluster)


@pytest.mark.slow
def test_a_join_killed_with_9_while_it_holds_tuples_leaves_no_residue_either(
    cluster: Cluster, tmp_path: Path
):
    run_and_kill(cluster, tmp_path, PAIRS, lambda _: bool(cluster.committed("first")))
    assert cluster.committed("first") != cluster.ends()
    check_account(cluster)


def test_an_aborted_transaction_is_read_again_and_stands_once(cluster: Cluster):
    class Flaky(ExactlyOnce):
        commit_interval_s = 0.2
        aborts = 0

        def settle(self, consumer, offsets, in_callback=False):
            if self.aborts < 2 and any(each.offset > 0 for each in offsets):
                self.aborts += 1
                self.is_spoilt = True
            return super().settle(consumer, offsets, in_callback)

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(1000))
    outlet = Flaky(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Pass(), "first", outlet=outlet)
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked == 1000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert outlet.aborts == 2
    assert first.executed > 1000
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 1000
    assert sum(cluster.committed("first").values()) >= 1000


def test_a_commit_whose_outcome_is_unknown_stands_once(cluster: Cluster):
    """As after a broker that died when it had committed: the client is told that there is no transaction."""

    class Unknown(ExactlyOnce):
        commit_interval_s = 0.2
        told = 0

        def commit(self, consumer, offsets):
            self.has_offsets = bool(offsets)
            super().commit(consumer, offsets)

        def insist(self, step):
            super().insist(step)
            if step.func.__name__ == "commit_transaction" and self.has_offsets and self.told < 2:
                self.told += 1
                super().insist(self.say_unknown)

        def say_unknown(self):
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(1000))
    outlet = Unknown(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Pass(), "first", outlet=outlet)
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked >= 500 or first.error)
    cluster.emit(range(1000, 2000))
    until(lambda: second.acked >= 2000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert outlet.told == 2
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 2000


def test_a_call_that_never_returns_costs_its_transaction_and_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """As ``send_offsets_to_transaction`` after its coordinator went away, whatever its time-out."""

    class Hanging(ExactlyOnce):
        hung = 0

        def insist(self, step):
            if step.func.__name__ == "send_offsets_to_transaction" and self.hung < 2:
                self.hung += 1
                with monkeypatch.context() as patch:
                    patch.setattr(exactly_once, "HUNG_S", 0.5)
                    super().insist(partial(threading.Event().wait))
            super().insist(step)

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    outlet = Hanging(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Pass(), "first", outlet=outlet)
    second = cluster.start(Sink(), "second")
    cluster.emit(range(1000))
    until(lambda: second.acked >= 1000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert outlet.hung == 2
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 1000


def test_a_producer_that_was_given_up_and_comes_late_costs_its_successor_a_transaction(cluster: Cluster):
    """A step that was left goes on in its thread: it may get its answer when the next producer is at work."""
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    outlet = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Pass(), "first", outlet=outlet)
    second = cluster.start(Sink(), "second")
    for count in range(500, 3_000, 500):
        late = make_producer(outlet.settings)
        late.init_transactions(30)
        cluster.emit(range(count - 500, count))
        until(lambda count=count: second.acked >= count or first.error)
        assert first.error is None, first.error
    cluster.close()
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == second.acked == 2_500


def test_a_fenced_producer_spoils_its_transaction_when_it_is_served(cluster: Cluster):
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    outlet = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    make_producer(outlet.settings).init_transactions(30)
    outlet.produce(cluster.topic("b"), b"x")

    def is_spoilt() -> bool:
        outlet.serve()
        return outlet.is_spoilt

    until(is_spoilt)
    with pytest.raises(TransactionAborted):
        outlet.settle(Consumer({"group.id": "g"}), [])
    outlet.produce(cluster.topic("b"), b"y")
    assert outlet.settle(Consumer({"group.id": "g"}), [])
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"y"]


class Loading:
    """A client whose broker loads its groups and transactions when it is asked for the first time."""

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
def test_a_worker_that_starts_while_transactions_are_loaded_waits_for_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: int
):
    made = []

    def make(settings):
        made.append(Loading(make_producer(settings), "init_transactions", code))
        return made[-1]

    monkeypatch.setattr("acktree.producers.kafka.output.make_producer", make)
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    outlet = ExactlyOnce(cluster.bootstrap, {}, f"{cluster.name}.first")
    outlet.produce(cluster.topic("b"), b"x")
    assert outlet.settle(Consumer({"group.id": "g"}), [])
    assert [each.refused for each in made] == [1]


@pytest.mark.parametrize("method", ["committed", "commit"])
def test_a_spout_task_is_claimed_when_the_groups_are_loaded(cluster: Cluster, method: str):
    cluster.apply()
    group = f"{cluster.name}.s"
    real = make_consumer(consumer_settings(cluster.bootstrap, group, {}))
    consumer = Loading(real, method, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    claim = claim_run(consumer, cluster.topic("spout-0"), group, cluster.bootstrap)
    assert (claim.run, consumer.refused) == (1, 1)
    real.close()
