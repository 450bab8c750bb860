"""Children that their topic would never accept: their tuples fail, once, and the worker goes on."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ConfigEntry

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, Spout
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.collecting.transactional import TransactionalCollector
from acktree.producers.errors import DeliveryFailed, MissingKey, TooLarge
from acktree.producers.kafka import record_limits
from acktree.producers.kafka.record_limits import CLIENT_BYTES, FRAME_BYTES, read_limits
from acktree.producers.spouts.spout_loop import SpoutWorker
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import Hand, Tuple
from acktree.producers.worker.executing.intake import Intake
from acktree.spark.tasks.writing.row_limits import read_stage_limits
from acktree.wire.header import find_header
from acktree.wire.ids import origin_of
from producers.cluster import WorkerCluster, until
from producers.trees import Net, published

pytestmark = pytest.mark.simulated

LARGE = b"x" * 5_000
REASON = "TooLarge: no"


class Choosy(Net):
    """A bolt "join" whose topic rejects LARGE values, and a sink behind it."""

    def __init__(self) -> None:
        super().__init__(published(join=(["a"], ["b"]), sink=(["b"], [])))
        self.join = self.collectors["join"]

    def use_transactions(self) -> None:
        """Give the join a transactional collector."""
        packer = AckPacker(self.history, "join", self.on_control_record)
        self.join = self.collectors["join"] = TransactionalCollector(
            "join", self.history, packer, self.produce
        )

    def produce(self, topic, value, key, headers, timestamp_ms=0) -> None:
        if value == LARGE:
            raise TooLarge("no")
        super().produce(topic, value, key, headers, timestamp_ms)

    def takes(self, *offsets: int) -> list[Tuple]:
        self.hand: Hand = {}
        return [self.take("join", self.spout(offset), self.hand) for offset in offsets]

    def flush(self) -> None:
        """Send everything acked or failed, and let the sink ack what it gets."""
        self.join.release()
        self.join.flush()
        for record in self.topics["b"]:
            if find_header(record.headers() or ()):
                self.ack(self.take("sink", record))

    def failures(self) -> dict[int, str]:
        """Return the reasons by source offset; there is one for each."""
        offsets = [origin_of(root).offset for root, _ in self.failed]
        assert len(offsets) == len(set(offsets))
        return dict(zip(offsets, (reason for _, reason in self.failed), strict=True))


@pytest.fixture(params=["at least once", "exactly once"])
def net(request: pytest.FixtureRequest) -> Choosy:
    made = Choosy()
    if request.param == "exactly once":
        made.use_transactions()
    return made


def test_the_ack_of_each_parent_becomes_a_fail_and_the_others_trees_close(net: Choosy):
    one, two, other = net.takes(0, 1, 2)
    net.join.emit(LARGE, anchors=[one, two])
    net.join.emit(b"small", anchors=other)
    for tup in (one, two, other):
        net.join.ack(tup)
    net.flush()
    assert net.failures() == {0: REASON, 1: REASON}
    assert (net.done(2), net.hand) == (True, {})
    counters = net.join.counters
    assert (counters.unwritable, counters.emitted, counters.failed, counters.acked) == (1, 1, 2, 1)


def test_a_parent_stays_in_hand_until_the_bolt_is_done_with_it(net: Choosy):
    (parent,) = net.takes(0)
    net.join.emit(LARGE, anchors=parent)
    net.join.emit(LARGE, anchors=[parent])
    net.join.emit(b"small", anchors=parent)
    net.join.reset_timeout(parent)
    net.flush()
    assert (net.failures(), list(net.hand)) == ({}, [parent.offset])
    net.join.ack(parent)
    net.flush()
    assert net.failures() == {0: REASON}


def test_a_bolts_own_fail_of_the_parent_takes_precedence(net: Choosy):
    (parent,) = net.takes(0)
    net.join.emit(LARGE, anchors=parent)
    net.join.fail(parent, "mine")
    net.flush()
    assert net.failures() == {0: "mine"}


def test_a_dropped_parent_does_not_fail(net: Choosy):
    (parent,) = net.takes(0)
    net.join.emit(LARGE, anchors=parent)
    net.join.drop([parent])
    net.join.ack(parent)
    net.flush()
    assert net.failures() == {}


def test_an_unanchored_child_is_logged_and_counted(net: Choosy, caplog: pytest.LogCaptureFixture):
    (tup,) = net.takes(0)
    net.join.emit(LARGE, anchors=())
    net.join.ack(tup)
    net.flush()
    assert net.done(0)
    assert net.join.counters.unwritable == 1
    assert "a child was not written: no; parents: none" in caplog.text


def test_an_untracked_parent_counts_as_failed(net: Choosy):
    net.hand = {}
    untracked = net.take("join", net.spout(), net.hand)
    net.join.emit(LARGE, anchors=untracked)
    net.join.ack(untracked)
    net.flush()
    assert (net.failures(), net.join.counters.failed) == ({}, 1)


@pytest.mark.parametrize("by", ["columns", "tuples"])
def test_a_batch_fails_the_parents_once_however_often_it_emits(by: str):
    net = Choosy()
    records = [net.spout(offset) for offset in range(4)]
    anchors = [Intake("join", net.history).anchors_of(record) for record in records]
    batch, collector = TupleBatch(records, anchors, net.join), BatchCollector(net.join)
    collector.begin(batch)
    given = batch if by == "columns" else list(batch)
    collector.emit_many([b"0", LARGE, LARGE, b"3"], given)
    collector.emit_many([b"0", b"1", LARGE, b"3"], given)
    collector.emit(LARGE, anchors=[batch[2], batch[3]])
    collector.fail(batch[2], "mine")
    collector.finish()
    net.flush()
    assert net.failures() == {1: REASON, 2: "mine", 3: REASON}
    assert [net.done(offset) for offset in range(4)] == [True, False, False, False]
    assert (net.join.counters.emitted, net.join.counters.unwritable) == (5, 4)


class RejectedWindow(Bolt):
    """At a tick, emits a child of nine tuples and an unanchored one, both rejected, and an accepted one."""

    tick_interval_s = 0.01

    def __init__(self, value: bytes | None, key: bytes | None) -> None:
        self.held: list[Tuple] = []
        self.value, self.key = value, key

    def execute(self, tup, collector):
        self.held.append(tup)

    def tick(self, collector):
        if len(self.held) < 10:
            return
        collector.emit(self.value, anchors=self.held[:9], key=self.key)
        collector.emit(self.value, anchors=(), key=self.key)
        collector.emit(b"fine", anchors=self.held[9], key=b"k")
        for tup in self.held:
            collector.ack(tup)
        self.held.clear()


REFUSED = [
    (LARGE, b"k", "TooLarge: a record of 5", {"max_message_bytes": "1000"}),
    (b"keyless", None, "MissingKey: a record without a key", {"cleanup_policy": "compact"}),
    (b"keyless", None, "MissingKey: a record without a key", {"cleanup_policy": "compact,delete"}),
]


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(("value", "key", "reason", "config"), REFUSED)
def test_a_window_whose_child_is_rejected_fails_its_tuples_and_the_worker_continues(
    cluster: WorkerCluster, exactly_once: bool, value, key, reason: str, config
):
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.set_topic("b", **config)
    worker = cluster.start(RejectedWindow(value, key))
    for first in (0, 10):
        cluster.emit(range(first, first + 10), 0)
        until(lambda finished=first + 10: worker.error or worker.acked + worker.failed == finished)
    worker.stop()
    fails = [fail for ack in cluster.acks() for fail in ack.fails]
    assert sorted(origin_of(fail.root).offset for fail in fails) == [*range(9), *range(10, 19)]
    assert all(fail.reason.startswith(reason) and cluster.topic("b") in fail.reason for fail in fails)
    assert [record.value() for record in cluster.read(cluster.topic("b"))] == [b"fine"] * 2
    assert (worker.unwritable, worker.emitted) == (4, 2)
    assert cluster.committed("only") == cluster.ends()


HOUR_MS = 3_600_000


@pytest.mark.real
@pytest.mark.parametrize(
    ("kind", "exactly_once"),
    [
        (BatchBolt, False),
        (BasicBolt, True),
        *(
            pytest.param(kind, exactly_once, marks=pytest.mark.slow)
            for kind, exactly_once in (
                (BatchBolt, True),
                (BasicBolt, False),
                (Bolt, False),
                (Bolt, True),
                (AsyncBolt, False),
                (AsyncBolt, True),
            )
        ),
    ],
)
def test_a_child_with_a_timestamp_that_its_topic_rejects_fails_its_tuple_alone(
    cluster: WorkerCluster, kind: type, exactly_once: bool
):
    now_ms = int(time.time() * 1000)
    times = {b"3": now_ms + 2 * HOUR_MS, b"5": now_ms - 2 * HOUR_MS}

    class BasicStamp(BasicBolt):
        def execute(self, tup, emit):
            emit(tup.value, timestamp_ms=times.get(tup.value, now_ms))

    class ByHandStamp(Bolt):
        def execute(self, tup, collector):
            collector.emit(tup.value, anchors=tup, timestamp_ms=times.get(tup.value))
            collector.ack(tup)

    class BatchStamp(BatchBolt):
        def execute(self, tuples, collector):
            for tup in tuples:
                collector.emit(tup.value, anchors=[tup], timestamp_ms=times.get(tup.value))

    class AsyncStamp(AsyncBolt):
        async def execute(self, tup, emit):
            emit(tup.value, timestamp_ms=times.get(tup.value))

    bolts = {BasicBolt: BasicStamp, Bolt: ByHandStamp, BatchBolt: BatchStamp, AsyncBolt: AsyncStamp}
    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.set_topic(
        "b", message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS)
    )
    cluster.emit(range(10), 0)
    worker = cluster.start(bolts[kind]())
    until(lambda: worker.error or worker.acked + worker.failed == 10)
    worker.stop()
    fails = {origin_of(fail.root).offset: fail.reason for ack in cluster.acks() for fail in ack.fails}
    assert fails.keys() == {3, 5}
    assert all(reason.startswith("InvalidTimestamp: a record with timestamp ") for reason in fails.values())
    assert "message.timestamp.after.max.ms is 3600000" in fails[3]
    assert "message.timestamp.before.max.ms is 3600000" in fails[5]
    assert sorted(int(record.value()) for record in cluster.read(cluster.topic("b"))) == [
        0,
        1,
        2,
        4,
        6,
        7,
        8,
        9,
    ]
    assert cluster.committed("only") == cluster.ends()


def test_a_topic_with_log_append_time_accepts_any_timestamp(cluster: WorkerCluster):
    class Far(BasicBolt):
        def execute(self, tup, emit):
            emit(tup.value, timestamp_ms=int(time.time() * 1000) + 100 * HOUR_MS)

    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", message_timestamp_type="LogAppendTime")
    cluster.emit([0])
    worker = cluster.start(Far())
    until(lambda: worker.error or worker.acked + worker.failed == 1)
    worker.stop()
    assert (worker.acked, len(cluster.read(cluster.topic("b")))) == (1, 1)


def test_a_compacted_topic_accepts_empty_keys_and_tombstones(cluster: WorkerCluster):
    class Keyed(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many([b"v", None], [tuples[0]] * 2, keys=[b"", b"gone"])

    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", cleanup_policy="compact")
    cluster.emit([0])
    worker = cluster.start(Keyed())
    until(lambda: worker.error or worker.acked + worker.failed == 1)
    worker.stop()
    assert [(r.key(), r.value()) for r in cluster.read(cluster.topic("b"))] == [(b"", b"v"), (b"gone", None)]


def test_if_a_topic_becomes_compacted_the_worker_stops_and_the_next_fails_the_tuple(
    cluster: WorkerCluster,
):
    class Keyless(BatchBolt):
        def execute(self, tuples, collector):
            collector.emit_many(tuples.values, tuples)

    cluster.apply(only=(["a"], ["b"]))
    worker = cluster.start(Keyless())
    cluster.set_topic("b", cleanup_policy="compact")
    cluster.emit([0], 0)
    worker.join()
    assert isinstance(worker.error, DeliveryFailed)
    again = cluster.start(Keyless())
    until(lambda: cluster.committed("only") == {0: 1})
    assert again.failed == 1


def test_a_spout_may_catch_the_error_of_a_record_that_is_too_large(cluster: WorkerCluster):
    class TooLargeSpout(Spout):
        refused: TooLarge | None = None

        def __init__(self) -> None:
            self.values: Iterator[bytes] = iter([LARGE, b"small"])
            self.acked: list[bytes] = []

        def next_tuple(self, emitter):
            for value in self.values:
                try:
                    emitter.emit(value, value)
                except TooLarge as error:
                    self.refused = error
            if self.acked:
                worker.stop()

        def ack(self, message):
            self.acked.append(message.id)

    cluster.ackers = 0
    cluster.apply(only=(["a"], []))
    cluster.set_topic("a", max_message_bytes="1000")
    spout = TooLargeSpout()
    worker = SpoutWorker(cluster.bootstrap, cluster.name, spout)
    worker.run()
    assert spout.acked == [b"small"]
    assert cluster.topic("a") in str(spout.refused)


def test_the_clients_limit_applies_with_a_warning_if_topic_limits_are_unreadable(
    cluster: WorkerCluster, caplog: pytest.LogCaptureFixture
):
    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="3000000", cleanup_policy="compact")
    known, absent = cluster.topic("b"), [cluster.topic("x"), cluster.topic("y")]
    limits = read_limits(cluster.bootstrap, [known, *absent], {})
    assert limits.compacted == {known}
    limits.check(known, b"x" * 2_000_000, b"k", None)
    limits.check(absent[0], b"x" * CLIENT_BYTES, None, None)
    with pytest.raises(TooLarge):
        limits.check(absent[0], b"x" * (CLIENT_BYTES + 1), None, None)
    with pytest.raises(MissingKey):
        limits.check(known, b"x", None, None)
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert all(topic in warning.getMessage() for topic in absent)
    assert "DescribeConfigs" in warning.getMessage()


@pytest.mark.parametrize(("user", "bytes_taken"), [({}, CLIENT_BYTES), ({"message.max.bytes": "2000"}, 2000)])
def test_without_the_right_to_read_limits_the_producer_keeps_its_own(
    cluster: WorkerCluster, user, bytes_taken
):
    limits = read_limits(cluster.bootstrap, [cluster.topic("absent")], user)
    assert (limits.by_topic, limits.compacted) == ({}, frozenset())
    assert limits.settings["message.max.bytes"] == str(bytes_taken)


def test_a_worker_starts_even_if_a_topic_accepts_more_than_any_client_sends(cluster: WorkerCluster):
    """librdkafka takes no message.max.bytes above 10^9."""
    cluster.apply(only=(["a"], ["b"]))
    cluster.set_topic("b", max_message_bytes="2147483647")
    limits = read_limits(cluster.bootstrap, [cluster.topic("b")], {})
    Producer(limits.settings)
    Producer(dict(read_stage_limits(cluster.bootstrap, [cluster.topic("b")], {}).settings))


@pytest.mark.parametrize("left_out", ["max.message.bytes", "cleanup.policy", "message.timestamp.type"])
def test_a_limit_that_a_broker_leaves_out_counts_as_unknown(
    left_out: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    settings = {
        "max.message.bytes": "5000",
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
    }
    del settings[left_out]
    answer: Future[dict[str, ConfigEntry]] = Future()
    answer.set_result({name: ConfigEntry(name, value) for name, value in settings.items()})
    broker = SimpleNamespace(describe_configs=lambda resources, **_: {resources[0]: answer})
    monkeypatch.setattr(record_limits, "make_admin", lambda *_: broker)
    limits = read_limits("anywhere", ["t"], {})
    payload_bytes = CLIENT_BYTES if left_out == "max.message.bytes" else 5000 - FRAME_BYTES
    assert limits.settings["message.max.bytes"] == str(payload_bytes)
    assert limits.compacted == ({"t"} if left_out != "cleanup.policy" else set())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (left_out != "message.timestamp.type")
    assert all(f"the broker does not report {left_out}" in text for text in said)
