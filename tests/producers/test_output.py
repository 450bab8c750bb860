"""Output on a real broker: partitions added to a topic, rejected records, a broker that does not answer."""

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from acktree.acker.kafka.result_producer import ResultProducer
from acktree.core.errors import RefusedSetting
from acktree.core.kafka.clients import make_producer
from acktree.core.kafka.settings import producer_settings
from acktree.core.reports.liveness import Liveness
from acktree.producers import Spout
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.columns import Rows
from acktree.producers.errors import DeliveryFailed, MissingPartition, TransactionAborted
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.output import BufferedProducer
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.spouts.spout_output import SpoutOutput
from acktree.wire.ids import root_id
from producers.cluster import Forward, RunningWorker, Sink, WorkerCluster, until

pytestmark = pytest.mark.simulated

NOBODY = "127.0.0.1:1"


@pytest.fixture
def producer(cluster: WorkerCluster) -> BufferedProducer:
    return BufferedProducer(producer_settings(cluster.bootstrap, {}))


@pytest.mark.parametrize("exactly_once", [False, True])
def test_workers_continue_when_the_acker_count_grows(cluster: WorkerCluster, exactly_once):
    cluster.apply(exactly_once, first=(["a"], ["b"]), second=(["b"], []))
    workers = [cluster.start(Forward(), "first"), cluster.start(Sink(), "second")]
    cluster.emit(range(500))
    until(lambda: workers[1].acked == 500)
    cluster.ackers = 5
    cluster.apply(exactly_once)
    cluster.emit(range(500, 1500))
    until(lambda: workers[1].acked == 1500 or any(worker.error for worker in workers))
    for worker in workers:
        worker.stop()
    assert not cluster.open_roots()
    partitions = {record.partition() for record in cluster.read(cluster.topic("ack"))}
    assert partitions == set(range(5))


def test_more_than_a_batch_holds_is_sent_in_several_batches(cluster: WorkerCluster):
    """A topic that takes batches of 200 kB gets 2 MB that were queued at once."""
    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="200000")
    settings = {"batch.size": 150_000, "linger.ms": 1_000, "delivery.report.only.error": False}
    producer = make_producer(producer_settings(cluster.bootstrap, {}) | settings)
    reports: list[KafkaError | None] = []
    for _ in range(200):
        producer.produce(
            cluster.topic("b"), bytes(10_000), on_delivery=lambda error, _: reports.append(error)
        )
    producer.flush(60)
    assert reports == [None] * 200
    assert len(cluster.read(cluster.topic("b"))) == 200


@pytest.mark.real
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_stopped_worker_releases_its_threads_and_connections(cluster: WorkerCluster, exactly_once):
    cluster.apply(exactly_once, only=(["a"], []))
    cluster.emit(range(10))
    cluster.start(Sink(), "only")
    until(lambda: cluster.running[-1].acked == 10)
    find_output = weakref.ref(cluster.running[-1].worker.output)
    cluster.running.pop().stop()
    gc.collect()
    assert find_output() is None


@pytest.mark.real
def test_a_packer_reaches_partitions_added_to_a_topic(cluster: WorkerCluster, producer: BufferedProducer):
    cluster.apply(only=(["a"], []))
    packer = AckPacker(cluster.history, "t", producer.send)
    packer.ack(1, root_id(0, 16, 0), 1)
    packer.flush()
    producer.flush(10)
    cluster.ackers = 5
    cluster.apply()
    packer = AckPacker(cluster.history, "t", producer.send)
    for offset in range(100):
        packer.ack(2, root_id(0, 16, offset), 1)
    packer.flush()
    producer.flush(10)
    assert sum(len(ack.acks) for ack in cluster.acks()) == 101


@pytest.mark.real
def test_a_partition_that_never_appears_is_a_clear_error(cluster: WorkerCluster, producer: BufferedProducer):
    cluster.apply(only=(["a"], []))
    producer.growth_timeout_s = 0.2
    producer.send(cluster.topic("ack"), 0, b"x")
    producer.flush(10)
    with pytest.raises(MissingPartition, match=r"ack has no partition 7.* acktree topology apply"):
        producer.send(cluster.topic("ack"), 7, b"x")


@pytest.mark.real
def test_a_rejected_record_fails_one_flush_and_not_the_next(
    cluster: WorkerCluster, producer: BufferedProducer
):
    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="1000")
    producer.produce(cluster.topic("b"), b"x" * 5000)
    with pytest.raises(DeliveryFailed, match="did not accept a record"):
        producer.flush(10)
    producer.produce(cluster.topic("b"), b"small", b"k", [("h", b"1")])
    producer.flush(10)
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"small"]


def test_a_flush_that_times_out_raises_and_drops_the_remaining_records():
    producer = BufferedProducer(producer_settings(NOBODY, {}))
    for _ in range(3):
        producer.produce("t", b"x")
    with pytest.raises(DeliveryFailed, match=r"all records within 0\.1 s; the remaining ones were dropped"):
        producer.flush(0.1)
    producer.flush(0.1)


@pytest.mark.parametrize("flush", ["buffered", "drained", "results"])
def test_a_flush_after_a_fatal_error_raises_that_error(cluster: WorkerCluster, flush: str):
    """librdkafka's client ends it with a SystemError that says nothing of a producer."""
    cluster.apply(only=(["a"], []))
    settings = producer_settings(cluster.bootstrap, {}, transactional_id=cluster.topic("id"))
    buffered = BufferedProducer(settings)
    sent, results = buffered.producer, ResultProducer(buffered.producer, Liveness())
    flushes: dict[str, Callable[[], object]] = {
        "buffered": lambda: buffered.flush(10),
        "drained": buffered.drain,
        "results": results.flush,
    }
    sent.init_transactions(10)
    sent.begin_transaction()
    results.send(cluster.topic("a"), b"x")
    flushes[flush]()
    make_producer(settings).init_transactions(10)
    for _ in range(3):
        buffered.produce(cluster.topic("a"), b"y")
        results.send(cluster.topic("a"), b"y")
    with pytest.raises(KafkaException, match="fenced") as raised:
        flushes[flush]()
    assert raised.value.args[0].fatal()
    assert (buffered.producer is not sent) == (flush == "buffered")


@pytest.mark.real
@pytest.mark.parametrize("is_column", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_record_sent_after_a_flush_that_timed_out_is_not_dropped_with_the_others(
    cluster: WorkerCluster, producer: BufferedProducer, is_column: bool
):
    """A Spark task's second attempt uses the producer of the first."""
    cluster.apply(only=(["a"], ["b"]))
    topic = cluster.topic("b")
    values = [str(number).encode() for number in range(10)]
    for value in values:
        producer.produce(topic, b"given up")
        with suppress(DeliveryFailed):
            producer.flush(0)
        if is_column:
            assert not producer.produce_rows(topic, Rows([value]))
        else:
            producer.produce(topic, value)
        producer.flush(10)
    read = [record.value() for record in cluster.read(topic) if record.value() != b"given up"]
    assert sorted(read, key=int) == values


def test_a_full_queue_makes_the_worker_wait_and_loses_nothing(cluster: WorkerCluster):
    cluster.apply(first=(["a"], ["b"]), second=(["b"], []))
    cluster.emit(range(2000))
    worker = cluster.start(Forward(), "first", user={"queue.buffering.max.messages": "20"})
    until(lambda: worker.acked == 2000)
    worker.stop()
    values = {int(record.value()) for record in cluster.read(cluster.topic("b"))}
    assert values == set(range(2000))


class DataAway(SpoutOutput):
    """An output whose data partitions have no reachable leader, while the control topics have one."""

    def __init__(self, bootstrap: str, *_, **more) -> None:
        super().__init__(bootstrap, {"queue.buffering.max.messages": "20"}, **more)
        self.producer = make_producer({**self.settings, "bootstrap.servers": NOBODY})


@pytest.mark.real
def test_acks_do_not_wait_for_data_that_cannot_be_delivered(cluster: WorkerCluster, monkeypatch):
    monkeypatch.setattr("acktree.producers.kafka.output.STOP_TIMEOUT_S", 0.1)
    cluster.apply(only=(["a"], ["b"]))
    cluster.emit(range(100), 0)
    monkeypatch.setattr("acktree.producers.worker.loop.AtLeastOnce", DataAway)
    worker = cluster.start(Forward())
    # How many fit varies: librdkafka's queue holds connection errors, too.
    until(lambda: sum(len(ack.acks) for ack in cluster.acks()) > 0, "acks of what fills the queue")
    assert worker.acked < 100
    worker.worker.stop()
    worker.join()
    assert isinstance(worker.error, DeliveryFailed)
    assert cluster.committed("only") == {}


@pytest.mark.real
def test_no_init_is_sent_for_data_that_cannot_be_delivered(cluster: WorkerCluster, monkeypatch):
    class HundredNumbers(Spout):
        left = iter(range(100))

        def next_tuple(self, emitter):
            number = next(self.left)
            emitter.emit(b"%d" % number, number)

    monkeypatch.setattr("acktree.producers.kafka.output.STOP_TIMEOUT_S", 0.1)
    monkeypatch.setattr("acktree.producers.spouts.spout_loop.SpoutOutput", DataAway)
    cluster.apply(only=(["a"], []))
    worker = SpoutWorker(cluster.bootstrap, cluster.name, HundredNumbers())
    running = RunningWorker(worker)
    until(lambda: worker.pending > 0, "what fills the queue")
    worker.stop()
    running.join()
    assert isinstance(running.error, DeliveryFailed)
    assert cluster.read(cluster.topic("ack-init")) == []


def test_a_stop_does_not_wait_forever_for_a_broker_that_is_away(monkeypatch):
    monkeypatch.setattr("acktree.producers.kafka.output.STOP_TIMEOUT_S", 0.1)
    output = AtLeastOnce(NOBODY, {})
    output.produce("t", b"x")
    output.begin_stop()
    with pytest.raises(DeliveryFailed, match=r"all records within 0\.1 s of the stop"):
        output.flush_and_commit(Consumer({"group.id": "g"}), [])


def test_a_record_that_times_out_aborts_its_transaction_and_not_the_worker(cluster: WorkerCluster):
    output = ExactlyOnce(cluster.bootstrap, {}, "g")
    output.delivery_error.on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), Message(topic="t"))
    output.serve()
    with pytest.raises(TransactionAborted):
        output.flush_and_commit(Consumer({"group.id": "g"}), [])
    assert output.flush_and_commit(Consumer({"group.id": "g"}), [])


@pytest.mark.parametrize(
    "setting",
    ["enable.idempotence=false", "acks=1", "acks=0", "transactional.id=mine", "bootstrap.servers=there"],
)
@pytest.mark.parametrize("output", [AtLeastOnce, lambda *given: ExactlyOnce(*given, "g")])
def test_a_setting_that_breaks_a_guarantee_is_refused_with_the_reason(output, setting: str):
    name, _, value = setting.partition("=")
    with pytest.raises(RefusedSetting, match=f"{name}={value} is refused: "):
        output(NOBODY, {name: value})
