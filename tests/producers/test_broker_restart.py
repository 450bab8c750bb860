"""A broker that is restarted while a spout, bolts and an acker run: they wait and continue."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator

import pytest

from acktree.acker.service import Acker
from acktree.console.devbroker.broker import LocalBroker
from acktree.core.errors import BrokerUnreachable
from acktree.producers import Failure, Message, Spout, SpoutEmitter
from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka import output as output_module
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.spouts.spout_loop import SpoutWorker
from producers.cluster import Forward, Sink, WorkerCluster, until

HALF = 3_000


class CountingSpout(Spout):
    """Emits numbers up to a limit that the test raises, and failed ones again; counts acks."""

    def __init__(self) -> None:
        self.limit, self.next = 0, 0
        self.again: list[Hashable] = []
        self.acked: Counter[Hashable] = Counter()

    def next_tuple(self, emitter: SpoutEmitter) -> None:
        if self.again:
            number = self.again.pop()
        elif self.next < self.limit:
            number, self.next = self.next, self.next + 1
        else:
            return
        emitter.emit(b"%d" % number, number)

    def ack(self, message: Message) -> None:
        self.acked[message.id] += 1

    def fail(self, message: Message, failure: Failure) -> None:
        self.again.append(message.id)


@pytest.fixture
def stoppable(
    own_broker: Callable[..., LocalBroker], unique: str
) -> Iterator[tuple[LocalBroker, WorkerCluster]]:
    broker = own_broker()
    cluster = WorkerCluster(broker.bootstrap, unique)
    yield broker, cluster
    cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_spout_bolts_and_acker_wait_for_the_broker_and_lose_nothing(
    stoppable: tuple[LocalBroker, WorkerCluster], exactly_once: bool
):
    broker, cluster = stoppable
    cluster.apply(exactly_once, first=(["a"], ["b"]), second=(["b"], []))
    acker, spout = Acker(cluster.bootstrap, cluster.name), CountingSpout()
    source = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    threads = [threading.Thread(target=run, daemon=True) for run in (acker.run, source.run)]
    for thread in threads:
        thread.start()
    workers = [cluster.start(Forward(), "first"), cluster.start(Sink(), "second")]
    spout.limit = HALF
    until(lambda: len(spout.acked) > HALF // 10, "the first acks")
    broker.kill()
    spout.limit = 2 * HALF
    until(lambda: spout.next > HALF, "the spout goes on without the broker")
    broker.start()
    until(lambda: len(spout.acked) == 2 * HALF or any(worker.error for worker in workers), "all acks", 300)
    assert [worker.error for worker in workers] == [None, None]
    assert all(thread.is_alive() for thread in threads)
    source.stop()
    acker.stop()
    for thread in threads:
        thread.join()
    cluster.close()
    assert set(spout.acked.values()) == {1}
    emitted, passed = (count(cluster, topic) for topic in ("a", "b"))
    assert set(passed) == set(range(2 * HALF))
    if exactly_once:
        assert passed == emitted


def count(cluster: WorkerCluster, topic: str) -> Counter[int]:
    """Return how often each number is on a topic."""
    return Counter(int(record.value()) for record in cluster.read(cluster.topic(topic)))


@pytest.mark.slow
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at least once", "exactly once"])
def test_a_stop_ends_while_the_broker_is_away(
    stoppable: tuple[LocalBroker, WorkerCluster], exactly_once: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_module, "STOP_TIMEOUT_S", 3.0)
    broker, cluster = stoppable
    cluster.apply(exactly_once, first=(["a"], ["b"]), second=(["b"], []))
    workers = [cluster.start(Forward(), "first"), cluster.start(Sink(), "second")]
    cluster.emit(range(20_000))
    until(lambda: workers[1].executed > 1_000, "the bolts work")
    broker.kill()
    for worker in workers:
        worker.worker.stop()
    for worker in workers:
        worker.join()
        assert worker.error is None or isinstance(worker.error, (DeliveryFailed, BrokerUnreachable))


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped_first", [False, True])
def test_a_stop_does_not_wait_forever_to_send_a_reset_when_the_queue_is_full(
    stoppable: tuple[LocalBroker, WorkerCluster], is_stopped_first: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_module, "STOP_TIMEOUT_S", 0.1)
    broker, cluster = stoppable
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    output = ExactlyOnce(cluster.bootstrap, {"queue.buffering.max.messages": "10"}, f"{cluster.name}.first")
    broker.kill()
    if is_stopped_first:
        output.begin_stop()
    else:
        output.send_at_once(cluster.topic("ack"), 0, b"a reset")
        output.begin_stop()
    refused: list[DeliveryFailed] = []

    def send() -> None:
        try:
            for _ in range(20):
                output.send_at_once(cluster.topic("ack"), 0, b"a reset")
        except DeliveryFailed as error:
            refused.append(error)

    threading.Thread(target=send, daemon=True).start()
    until(lambda: refused, "the reset is given up")
