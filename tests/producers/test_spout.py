"""Spouts written in Python: one root per message id, one whole init, one result."""

import os
from collections import defaultdict

import numpy as np
import pytest

from acktree.core import world
from acktree.core.kafka.clients import make_producer
from acktree.core.world import Thread
from acktree.producers import Spout
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.collecting.spout_emitter import Sequences, SpoutEmitter
from acktree.producers.errors import AlreadyPending, DeliveryFailed, UnknownComponent, WrongThread
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.spouts.spout_output import SpoutOutput
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.wire.codec import decode_ack_init, encode_result
from acktree.wire.control_records import Cause, Failure, Result
from acktree.wire.header import decode_header, find_header
from acktree.wire.ids import MAX_OFFSET, origin_of
from deadlines import ANSWER_S
from producers.cluster import WorkerCluster, until
from producers.trees import Net, published

pytestmark = pytest.mark.simulated


class Once(Spout):
    """Emits each message of a list once, and again when it failed; records acks and fails."""

    def __init__(self, *messages: str) -> None:
        self.waiting, self.acked, self.failed = list(messages), [], []

    def next_tuple(self, emitter):
        if self.waiting:
            message = self.waiting.pop(0)
            emitter.emit(message, message)

    def ack(self, message):
        self.acked.append(message.id)

    def fail(self, message, failure):
        self.failed.append(message.id)
        self.failure = failure
        self.waiting.append(message.id)


def emitter(net: Net, inits: dict, run: int = 1) -> SpoutEmitter:
    def on_init_record(_topic, _partition, value):
        for entry in decode_ack_init(value).inits:
            assert int(entry["root"]) not in inits
            inits[int(entry["root"])] = int(entry["value"])

    def produce(topic, value, key, headers, timestamp_ms, delivered):
        net.produce(topic, value, key, headers)
        if delivered is not None:
            reports.append(delivered)

    reports = net.reports = []
    sequences = Sequences(0, lambda: MAX_OFFSET + 1)
    return SpoutEmitter(
        "s", net.history, 0, run, InitPacker(net.history, 0, on_init_record), produce, sequences
    )


def deliver(net: Net, source: SpoutEmitter, count: int) -> None:
    """Confirm some of the records in flight, and send the inits that are complete."""
    for _ in range(count):
        net.reports.pop(0)()
    source.pack_inits()
    source.packer.flush()


def test_an_init_is_sent_only_when_all_its_tuples_are_in_the_log():
    net, inits = Net(published(one=(["a"], []))), {}
    source = emitter(net, inits)
    source.call(lambda e: [e.emit(b"v", "m"), e.emit(b"w", "m"), e.emit(b"x", "other")], 0.0)
    deliver(net, source, 0)
    assert not inits
    deliver(net, source, 1)
    assert not inits
    deliver(net, source, 1)
    assert [origin_of(root).offset for root in inits] == [0]
    deliver(net, source, 1)
    assert [origin_of(root).offset for root in inits] == [0, 1]


def test_an_init_is_never_sent_before_its_call_has_returned():
    """While a queue is full, delivery reports are served and inits sent in the middle of a call."""
    net, inits = Net(published(one=(["a"], []))), {}
    source = emitter(net, inits)

    def call(e):
        e.emit(b"v", "m")
        deliver(net, source, 1)
        assert not inits
        e.emit(b"w", "m")

    source.call(call, 0.0)
    deliver(net, source, 0)
    assert not inits
    deliver(net, source, 1)
    assert len(inits) == 1


def test_the_init_holds_every_emission_of_one_message():
    net = Net(published(one=(["a"], []), two=(["a"], [])))
    inits: dict[int, int] = {}
    source = emitter(net, inits)
    emitted = source.call(lambda e: [e.emit(b"v", "m"), e.emit(b"w", "m"), e.emit(b"x", "other")], 0.0)
    deliver(net, source, 3)
    assert emitted == 3
    assert sorted(origin_of(root).offset for root in inits) == [0, 1]
    for root, value in inits.items():
        net.fold[1, root] ^= value
    tuples = [net.take(bolt, record) for bolt in ("one", "two") for record in net.topics["a"]]
    for tup in tuples:
        assert any(net.fold.values())
        net.ack(tup)
    assert not any(net.fold.values())


def test_a_tuple_without_a_message_id_is_untracked():
    net = Net(published(one=(["a"], [])))
    source = emitter(net, {})
    source.call(lambda e: e.emit(b"v"), 0.0)
    assert net.topics["a"][0].headers() is None
    assert len(source.pending) == 0


def test_a_message_id_that_is_pending_is_refused():
    source = emitter(Net(published(one=(["a"], []))), {})
    source.call(lambda e: e.emit(b"v", 1), 0.0)
    with pytest.raises(AlreadyPending):
        source.call(lambda e: e.emit(b"v", 1), 0.0)


def test_an_emission_outside_the_thread_of_next_tuple_is_refused():
    """Its tree would be neither of this call nor of the next one, and might never get its init."""
    net, raised = Net(published(one=(["a"], []))), []
    source = emitter(net, {})

    def emit_in_thread(e):
        def run():
            try:
                e.emit(b"v", "m")
            except WrongThread as error:
                raised.append(error)

        world.start_thread(run, "listener").join(ANSWER_S)

    source.call(emit_in_thread, 0.0)
    assert [("in thread 'listener'" in str(error)) for error in raised] == [True]
    assert (len(source.pending), net.topics["a"]) == (0, [])


class Values(Spout):
    """Emits messages of two values each, and records what comes back."""

    max_kept_bytes = 40

    def __init__(self, count: int) -> None:
        self.left, self.acked, self.failed = list(range(count)), {}, {}

    def next_tuple(self, emitter):
        if self.left:
            number = self.left.pop(0)
            emitter.emit(b"%09d" % number, number)
            emitter.emit("x", number)

    def ack(self, message):
        self.acked[message.id] = message.values

    def fail(self, message, failure):
        self.failed[message.id] = message.values, failure


def test_a_spout_gets_its_values_back_and_keeps_no_more_than_its_limit(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    spout, acker = Values(20), ScriptedAcker(cluster)
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(acker.roots()) == 5, "four messages, and the value x of each")
    first = acker.roots()[b"000000000"]
    acker.failed(first[0])
    acker.acked_roots.update(first)

    def drained() -> bool:
        assert worker.pending <= 4
        acker.ack_new()
        return len(spout.acked) == 19

    until(drained)
    worker.stop()
    thread.join()
    assert spout.acked == {number: (b"%09d" % number, "x") for number in range(1, 20)}
    assert spout.failed == {0: ((b"000000000", "x"), (Cause.FAILED, "one@host:1", "ValueError: no"))}
    assert worker.emitter.pending.kept_bytes == 0


def test_a_message_that_could_not_be_emitted_is_not_pending():
    net = Net(published(one=(["a"], [])))
    source = emitter(net, {})

    def refuse(*_):
        raise OSError("no room")

    produce, net.produce = net.produce, refuse
    with pytest.raises(OSError, match="no room"):
        source.call(lambda e: e.emit(b"v", 1), 0.0)
    assert len(source.pending) == 0
    net.produce = produce
    source.call(lambda e: e.emit(b"v", 1), 0.0)
    assert len(source.pending) == 1


def test_a_record_is_confirmed_when_the_broker_has_it_and_not_before(cluster: WorkerCluster):
    cluster.apply()
    output, confirmed = SpoutOutput(cluster.bootstrap, {"linger.ms": "60000"}), []
    output.produce_confirmed(
        cluster.topic("a"), b"v", None, None, 7, lambda: confirmed.append(cluster.ends())
    )
    output.produce_confirmed(cluster.topic("a"), b"w", None, None, 0, None)
    output.serve()
    assert not confirmed
    output.drain()
    assert len(confirmed) == 1
    assert sum(confirmed[0].values()) >= 1


def test_a_record_that_the_broker_rejects_is_not_confirmed(cluster: WorkerCluster):
    cluster.apply()
    cluster.set_topic("a", max_message_bytes="1000")
    output, confirmed = SpoutOutput(cluster.bootstrap, {}), []
    output.produce_confirmed(
        cluster.topic("a"), os.urandom(5_000), None, None, 0, lambda: confirmed.append(True)
    )
    with pytest.raises(DeliveryFailed):
        output.drain()
    assert not confirmed


@pytest.mark.real
@pytest.mark.slow
def test_a_spout_waits_for_a_broker_that_is_away_and_continues(own_broker, unique, monkeypatch):
    """Also while its commit waits, which ends when there is a coordinator again."""
    monkeypatch.setattr("acktree.producers.spouts.task_commits.COMMIT_INTERVAL_S", 0.1)
    broker = own_broker()
    cluster = WorkerCluster(broker.bootstrap, unique)
    cluster.apply(one=(["a"], []))
    spout = Once("before")
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(cluster.read(cluster.topic("a"))) == 1)
    broker.stop()
    spout.waiting.append("after")
    broker.start()
    until(lambda: len(cluster.read(cluster.topic("a"))) == 2 or not thread.is_alive())

    ScriptedAcker(cluster).ack_new()
    until(lambda: sorted(spout.acked) == ["after", "before"] or not thread.is_alive())
    assert thread.is_alive()
    worker.stop()
    thread.join()


class ScriptedAcker:
    """Sends results to the spout, for roots found on the tuple topic."""

    def __init__(self, cluster: WorkerCluster) -> None:
        self.cluster = cluster
        self.acked_roots: set[int] = set()
        self._producer = make_producer({"bootstrap.servers": cluster.bootstrap})

    def roots(self) -> dict[bytes, list[int]]:
        found = defaultdict(list)
        for record in self.cluster.read(self.cluster.topic("a")):
            found[record.value()].append(decode_header(find_header(record.headers())).anchors[0].root)
        return found

    def send_result(self, result: bytes) -> None:
        self._producer.produce(self.cluster.topic("spout-0"), result, partition=0)
        self._producer.flush()

    def acked(self, *roots: int) -> None:
        self.send_result(encode_result(Result(0, acked=np.array(roots, np.uint64))))

    def ack_new(self) -> None:
        """Ack the roots that were not acked here before."""
        fresh = {root for roots in self.roots().values() for root in roots} - self.acked_roots
        self.acked_roots.update(fresh)
        self.acked(*fresh)

    def timed_out(self, root: int) -> None:
        self.send_result(encode_result(Result(0, failed=[Failure(root, Cause.TIMED_OUT, "", "")])))

    def failed(self, root: int) -> None:
        self.send_result(
            encode_result(Result(0, failed=[Failure(root, Cause.FAILED, "one@host:1", "ValueError: no")]))
        )


def run(worker: SpoutWorker) -> Thread:
    return world.start_thread(worker.run, "spout")


@pytest.mark.real
@pytest.mark.promise("a spout fed by code")
def test_results_reach_the_spout_once_and_a_failed_message_may_be_emitted_again(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    spout, acker = Once("m0", "m1", "m2"), ScriptedAcker(cluster)
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(acker.roots()) == 3)
    (m0,), (m1,) = acker.roots()[b"m0"], acker.roots()[b"m1"]
    acker.send_result(b"no result")
    acker.acked(m0, m0, 12345)
    acker.acked(m0)
    acker.failed(m1)
    until(lambda: len(acker.roots()[b"m1"]) == 2)
    acker.failed(m1)
    acker.acked(*(root for root in acker.roots()[b"m1"] if root != m1))
    until(lambda: len(spout.acked) == 2)
    worker.stop()
    thread.join()
    assert (spout.acked, spout.failed, worker.pending, worker.results.invalid) == (["m0", "m1"], ["m1"], 1, 1)
    assert spout.failure == (Cause.FAILED, "one@host:1", "ValueError: no")
    inits = [decode_ack_init(r.value()) for r in cluster.read(cluster.topic("ack-init"))]
    assert sum(len(record.inits) for record in inits) == 4
    second = SpoutWorker(cluster.bootstrap, cluster.name, Once())
    assert second.commits.state.run == 2


def test_no_more_messages_are_pending_than_the_topology_allows(cluster: WorkerCluster):
    cluster.max_pending = 5
    cluster.apply(one=(["a"], []))
    spout, acker = Once(*map(str, range(20))), ScriptedAcker(cluster)
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)

    def drained() -> bool:
        assert worker.pending <= 5
        acker.ack_new()
        return len(spout.acked) == 20

    until(drained)
    worker.stop()
    thread.join()


def test_without_ackers_a_message_is_done_when_the_broker_has_it(cluster: WorkerCluster):
    cluster.ackers = 0
    cluster.apply(one=(["a"], []))
    spout = Once("m0", "m1")
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(spout.acked) == 2)
    worker.stop()
    thread.join()
    assert len(cluster.read(cluster.topic("a"))) == 2


@pytest.mark.real
@pytest.mark.promise("a second process of a task of a spout fed by code starts")
def test_the_older_of_two_processes_of_one_task_stops(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("acktree.producers.spouts.task_commits.COMMIT_INTERVAL_S", 0.5)
    cluster.apply(one=(["a"], []))
    old = SpoutWorker(cluster.bootstrap, cluster.name, Once())
    new = SpoutWorker(cluster.bootstrap, cluster.name, Once("new"))
    with pytest.raises(ZombieDriver, match=rf"{cluster.name}\.s\.0.*this one stops"):
        old.run()
    thread = run(new)
    until(lambda: len(cluster.read(cluster.topic("a"))) == 1)
    new.stop()
    thread.join()


@pytest.mark.parametrize("given", [{"name": "nobody"}, {"task": 1}])
def test_a_spout_or_task_that_the_topology_does_not_have_is_refused(cluster: WorkerCluster, given):
    cluster.apply(one=(["a"], []))
    with pytest.raises(UnknownComponent):
        SpoutWorker(cluster.bootstrap, cluster.name, Once(), **given)


def test_a_timeout_is_counted_as_such_and_not_as_a_failure(cluster: WorkerCluster):
    cluster.apply(one=(["a"], []))
    spout, acker = Once("m0", "m1"), ScriptedAcker(cluster)
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    thread = run(worker)
    until(lambda: len(acker.roots()) == 2)
    acker.timed_out(acker.roots()[b"m0"][0])
    acker.failed(acker.roots()[b"m1"][0])
    until(lambda: len(spout.failed) == 2)
    until(lambda: worker.reports.newest and worker.reports.newest[0].values.get("failed"), "the next report")
    worker.stop()
    thread.join()
    values = worker.reports.newest[0].values
    assert (values["failed"], values["timed_out"]) == (1, 1)
