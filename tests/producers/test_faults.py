"""A call that breaks a rule fails its tuple and the others go on, in the double and on a broker."""

import contextlib
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.errors import DeliveryFailed, Misuse, WrongThread
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.testing import BoltDouble
from acktree.wire.header import HEADER
from producers.cluster import WorkerCluster, until
from producers.conformance import (
    Outcome,
    Run,
    conformance,
    conformance_with_exactly_once,
    in_memory,
    on_broker,
)

pytestmark = pytest.mark.simulated

EMISSIONS = [
    ("NotSerializable: a value must be", {"a": 1}, {}),
    ("NotSerializable: a value must be", bytearray(b"x"), {}),
    ("NotSerializable: a value cannot be encoded as UTF-8", "\ud800", {}),
    ("NotSerializable: a key must be", b"x", {"key": 7}),
    ("NotSerializable: a key cannot be encoded as UTF-8", b"x", {"key": "\ud800"}),
    ("NotSerializable: a header's name cannot be encoded as UTF-8", b"x", {"headers": [("\ud800", b"")]}),
    ("NotSerializable: the name of a header contains NUL", b"x", {"headers": [("acktree\0x", b"")]}),
    ("NotSerializable: a header's value must be", b"x", {"headers": [("h", 7)]}),
    ("NotSerializable: a header must be a pair", b"x", {"headers": [(b"acktree", b"")]}),
    ("NotSerializable: headers must be a list", b"x", {"headers": {"h": b""}}),
    ("NotSerializable: a timestamp must be an int", b"x", {"timestamp_ms": "now"}),
    ("NotSerializable: a timestamp must be an int ", b"x", {"timestamp_ms": 1.5}),
    ("NotSerializable: a timestamp must be an int of 64 bits", b"x", {"timestamp_ms": 1 << 63}),
    ("ReservedHeader: ", b"x", {"headers": [(HEADER, b"")]}),
    ("WrongTopic: ", b"x", {"topic": "nowhere"}),
]
"""For each number, the reason with which its tuple fails and what is emitted for it; later ones succeed."""
COUNT = len(EMISSIONS) + 4


def emission_of(tup):
    number = int(tup.value)
    return EMISSIONS[number][1:] if number < len(EMISSIONS) else (tup.value, {})


class BasicEmitter(BasicBolt):
    def execute(self, tup, emit):
        value, more = emission_of(tup)
        emit(value, **more)


class Swallowing(BasicBolt):
    def execute(self, tup, emit):
        value, more = emission_of(tup)
        with contextlib.suppress(Exception):
            emit(value, **more)


class ByHandEmitter(Bolt):
    def execute(self, tup, collector):
        value, more = emission_of(tup)
        collector.emit(value, anchors=tup, **more)
        collector.ack(tup)


class SwallowingByHand(Bolt):
    def execute(self, tup, collector):
        value, more = emission_of(tup)
        with contextlib.suppress(Exception):
            collector.emit(value, anchors=[tup], **more)
        collector.ack(tup)


class ByClock(Bolt):
    """Emits in ``tick``, where no tuple is being executed that could fail."""

    tick_interval_s = 0.01

    def __init__(self):
        self.held = []

    def execute(self, tup, collector):
        self.held.append(tup)

    def tick(self, collector):
        for tup in self.held:
            value, more = emission_of(tup)
            collector.emit(value, anchors=tup, **more)
            collector.ack(tup)
        self.held.clear()


class AsyncEmitter(AsyncBolt):
    async def execute(self, tup, emit):
        value, more = emission_of(tup)
        emit(value, **more)


class SwallowingAsync(AsyncBolt):
    async def execute(self, tup, emit):
        value, more = emission_of(tup)
        with contextlib.suppress(Exception):
            emit(value, **more)


class BatchEmitter(BatchBolt):
    def execute(self, tuples, collector):
        for tup in tuples:
            value, more = emission_of(tup)
            collector.emit(value, anchors=tup, **more)


class ColumnsEmitter(BatchBolt):
    def execute(self, tuples, collector):
        for tup in tuples:
            value, more = emission_of(tup)
            if "headers" in more or "topic" in more:
                collector.emit_many([value], [tup], **more)
            elif "timestamp_ms" in more:
                collector.emit(value, anchors=tup, **more)
        rest = [tup for tup in tuples if set(emission_of(tup)[1]) <= {"key"}]
        emissions = [emission_of(tup) for tup in rest]
        keys = [more.get("key") for _, more in emissions]
        collector.emit_many([value for value, _ in emissions], rest, keys=keys)


class TablesEmitter(BatchBolt):
    def execute(self, tuples, collector):
        for row, value in enumerate(tuples.table()["value"].to_pylist()):
            number = int(value)
            if number < len(EMISSIONS) and "timestamp_ms" in EMISSIONS[number][2]:
                collector.fail(tuples[row], EMISSIONS[number][0])  # rows of a table have none
                continue
            value, more = EMISSIONS[number][1:] if number < len(EMISSIONS) else (value, {})
            keys = [more.pop("key")] if "key" in (more := dict(more)) else None
            collector.emit_many([value], pa.array([row]), keys=keys, **more)


KINDS = [
    *(BasicEmitter, Swallowing, ByHandEmitter, SwallowingByHand, ByClock),
    *(AsyncEmitter, SwallowingAsync, BatchEmitter, ColumnsEmitter, TablesEmitter),
]


def check_the_guilty_alone_fail(outcome: Outcome, reasons: list[str]) -> None:
    guilty = set(range(len(reasons)))
    assert set(outcome.failed) == guilty
    assert [
        reason for reason in reasons if not outcome.failed[reasons.index(reason)].startswith(reason)
    ] == []
    assert outcome.acked - guilty == outcome.acked
    assert outcome.open == guilty


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_emission_that_cannot_be_written_fails_its_tuple_and_no_other(kind, exactly_once: bool):
    check_emissions(in_memory(exactly_once)(kind(), COUNT))


@pytest.mark.parametrize(
    ("kind", "exactly_once"),
    [(BasicEmitter, False), (ByHandEmitter, True), (AsyncEmitter, True), (ColumnsEmitter, False)],
)
def test_a_worker_fails_those_tuples_as_the_double_does(cluster: WorkerCluster, kind, exactly_once: bool):
    check_emissions(on_broker(cluster, exactly_once)(kind(), COUNT))


def check_emissions(outcome: Outcome) -> None:
    check_the_guilty_alone_fail(outcome, [reason for reason, _, _ in EMISSIONS])
    innocent = range(len(EMISSIONS), COUNT)
    assert outcome.acked == set(innocent)
    assert sorted(int(emission.value) for emission in outcome.emitted) == list(innocent)


class Stranger(Bolt):
    def execute(self, tup, collector):
        self.tuple = tup


@pytest.fixture
def stranger():
    bolt = Stranger()
    BoltDouble(bolt).give(b"x")
    return bolt.tuple


def ack_twice(tup, collector, _):
    collector.ack(tup)
    collector.ack(tup)


def emit_late(tup, collector, _):
    collector.emit(b"in time", anchors=tup)
    collector.ack(tup)
    collector.emit(b"late", anchors=tup)


def fail_late(tup, collector, _):
    collector.ack(tup)
    collector.fail(tup, "too late")


def reset_late(tup, collector, _):
    collector.ack(tup)
    collector.reset_timeout(tup)


def ack_a_stranger(tup, collector, stranger):
    collector.ack(tup)
    collector.ack(stranger)


def emit_for_a_stranger(tup, collector, stranger):
    collector.emit(b"x", anchors=[tup, stranger])
    collector.ack(tup)


CALLS: list[tuple[str, Callable]] = [
    ("AckedTwice: cannot ack ", ack_twice),
    ("EmitAfterAck: cannot emit anchored to ", emit_late),
    ("AckedTwice: cannot fail ", fail_late),
    ("AckedTwice: cannot reset the timeout of ", reset_late),
    ("NotInHand: cannot ack ", ack_a_stranger),
    ("NotInHand: cannot emit anchored to ", emit_for_a_stranger),
]


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_swallowed_misuse_fails_the_tuple_that_is_executed(stranger, exactly_once: bool, swallows: bool):
    check_misuses(in_memory(exactly_once), stranger, swallows)


@conformance_with_exactly_once()
def test_a_misuse_fails_the_tuple_that_is_executed_and_no_other(run: Run, stranger):
    check_misuses(run, stranger, swallows=False)


def check_misuses(run: Run, stranger, swallows: bool) -> None:
    class Misusing(Bolt):
        def execute(self, tup, collector):
            number = int(tup.value)
            if number >= len(CALLS):
                collector.ack(tup)
                return
            try:
                CALLS[number][1](tup, collector, stranger)
            except Misuse:
                if not swallows:
                    raise
                if number == len(CALLS) - 1:
                    collector.ack(tup)

    outcome = run(Misusing(), len(CALLS) + 3)
    assert set(outcome.failed) == set(range(len(CALLS)))
    assert [outcome.failed[n][: len(reason)] for n, (reason, _) in enumerate(CALLS)] == [r for r, _ in CALLS]
    assert set(range(len(CALLS), len(CALLS) + 3)) <= outcome.acked
    assert not outcome.open & set(range(len(CALLS), len(CALLS) + 3))


def test_a_misuse_is_logged_once_with_its_stack_and_counted(caplog: pytest.LogCaptureFixture):
    class Twice(Bolt):
        def execute(self, tup, collector):
            ack_twice(tup, collector, None)

    double = BoltDouble(Twice())
    double.give(b"0")
    (record,) = (logged for logged in caplog.records if logged.levelname in ("WARNING", "ERROR"))
    assert "AckedTwice: cannot ack" in record.getMessage()
    assert "ack_twice" in (record.stack_info or "")
    counters = double.counters
    assert (counters.misuses, counters.executed, counters.acked, counters.failed) == (1, 1, 0, 1)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_tuple_failed_by_an_exception_may_be_acked_by_the_bolt_that_holds_it(exactly_once: bool):
    class Holds(Bolt):
        def __init__(self):
            self.held = []

        def execute(self, tup, collector):
            self.held.append(tup)
            if tup.value == b"1":
                raise ValueError("not one")

        def tick(self, collector):
            for tup in self.held:
                collector.emit(b"x", anchors=tup)
                collector.ack(tup)

    double = BoltDouble(Holds(), exactly_once=exactly_once)
    double.give(b"0", b"1", b"2")
    double.tick()
    assert (double.acked, double.failed) == ({0, 2}, {1: "ValueError: not one"})
    assert (set(double.open), double.counters.misuses) == ({1}, 0)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_second_ack_in_a_tick_does_not_stop_the_acks_after_it(exactly_once: bool):
    class AckAgainAtTick(Bolt):
        def __init__(self):
            self.held = []

        def execute(self, tup, collector):
            self.held.append(tup)
            if tup.value == b"0":
                collector.ack(tup)

        def tick(self, collector):
            for tup in self.held:
                collector.ack(tup)

    double = BoltDouble(AckAgainAtTick(), exactly_once=exactly_once)
    double.give(b"0", b"1", b"2")
    double.tick()
    assert {1, 2} <= double.acked
    assert (double.in_hand, double.counters.misuses) == ([], 1)


def uneven(tuples, collector):
    collector.emit_many([b"x"], [tuples[0], tuples[0]])


def late(tuples, collector):
    collector.fail(tuples[0], "UnevenBatch: mine")
    collector.emit_many([b"x", b"y"], [tuples[0], tuples[1]])


def twice(tuples, collector):
    collector.fail(tuples[0], "mine")
    collector.fail(tuples[0], "again")


@pytest.mark.parametrize(
    ("does", "reason"), [(uneven, "UnevenBatch: "), (late, "UnevenBatch: mine"), (twice, "mine")]
)
@conformance()
def test_a_misuse_in_a_batch_fails_the_tuples_that_it_names(run: Run, does, reason: str):
    class WrongBatch(BatchBolt):
        def execute(self, tuples, collector):
            if tuples[0].value == b"0":
                with contextlib.suppress(Exception):
                    does(tuples, collector)

    outcome = run(WrongBatch(), 3)
    assert set(outcome.failed) == {0}
    assert outcome.failed[0].startswith(reason)
    assert outcome.acked == {1, 2}


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda table, c: c.emit_many([b"x"], pa.array([len(table)])), "NotInHand: "),
        (lambda table, c: c.emit_many([b"x"], pa.array([-1])), "NotInHand: "),
        (lambda table, c: c.emit_many([b"x"], pa.array([None])), "NotInHand: "),
        (lambda table, c: c.emit_many([b"x"], pa.array([[0]])), "NotInHand: "),
        (lambda table, c: c.emit_many([b"x"], pa.array([])), "UnevenBatch: "),
        (lambda table, c: c.emit_many(table["value"], table["row"], topic="nowhere"), "WrongTopic: "),
        (
            lambda table, c: c.emit_many(table["value"], table["row"], headers=[(HEADER, b"")]),
            "ReservedHeader: ",
        ),
        (lambda table, c: c.emit_many(pa.array([1, 2]), table["row"]), "NotSerializable: "),
    ],
)
def test_a_misuse_that_names_no_row_fails_the_whole_table(does, reason: str):
    class WrongTable(BatchBolt):
        def execute(self, tuples, collector):
            with contextlib.suppress(Exception):
                does(tuples.table(), collector)

    double = BoltDouble(WrongTable())
    double.give(b"x", b"y")
    assert set(double.failed) == {0, 1}
    assert all(failure.startswith(reason) for failure in double.failed.values())
    assert (double.acked, double.emitted) == (set(), [])


def test_emitting_for_an_earlier_batch_fails_the_current_one():
    class Keeps(BatchBolt):
        kept = None

        def execute(self, tuples, collector):
            if self.kept is not None:
                collector.emit_many(self.kept.values, self.kept)
            self.kept = tuples

    double = BoltDouble(Keeps(), emits=["b"])
    double.give(b"a")
    double.give(b"b")
    assert (double.acked, double.emitted) == ({0}, [])
    assert double.failed[1].startswith("EmitAfterAck: ")


@pytest.mark.real
@pytest.mark.parametrize("exactly_once", [False, True])
def test_calls_from_another_thread_are_refused_and_fail_their_tuples(
    cluster: WorkerCluster, exactly_once: bool
):
    class Pooled(Bolt):
        def __init__(self):
            self.refused = []

        def execute(self, tup, collector):
            thread = threading.Thread(target=self.work, args=(tup, collector), name="a pool's")
            thread.start()
            thread.join()

        def work(self, tup, collector):
            for call in (
                lambda: collector.emit(b"x", anchors=tup),
                lambda: collector.emit(b"x", anchors=()),
                lambda: collector.reset_timeout(tup),
                lambda: collector.fail(tup, "r"),
                lambda: collector.ack(tup),
            ):
                try:
                    call()
                except WrongThread as error:
                    self.refused.append(str(error))

    cluster.apply(exactly_once, only=(["a"], ["b"]))
    cluster.emit(range(20), 0)
    bolt = Pooled()
    worker = cluster.start(bolt)
    until(lambda: worker.error or cluster.committed("only") == {0: 20}, "all are failed and committed")
    worker.stop()
    assert (worker.failed, worker.acked, worker.emitted, worker.misuses) == (20, 0, 0, 100)
    assert len(bolt.refused) == 100
    assert all('in thread "a pool\'s": a collector may be called only by' in text for text in bolt.refused)
    reasons = {fail.reason.partition(" cannot ")[0] for ack in cluster.acks() for fail in ack.fails}
    assert reasons == {"WrongThread:"}


def test_a_basic_and_an_async_bolt_emit_only_in_their_own_thread():
    def elsewhere(call) -> None:
        def refused():
            with pytest.raises(WrongThread):
                call()

        thread = threading.Thread(target=refused)
        thread.start()
        thread.join()

    class Elsewhere(BasicBolt):
        def execute(self, tup, emit):
            elsewhere(lambda: emit(b"x"))

    class ElsewhereAsync(AsyncBolt):
        async def execute(self, tup, emit):
            elsewhere(lambda: emit(b"x"))

    for bolt in (Elsewhere(), ElsewhereAsync()):
        double = BoltDouble(bolt)
        double.give(b"0")
        assert (double.acked, double.emitted) == (set(), [])
        assert double.failed[0].startswith("WrongThread: ")
        double.close()


def test_a_failed_delivery_that_the_bolt_swallows_ends_the_worker_without_an_ack(
    cluster: WorkerCluster,
):
    class Swallows(BasicBolt):
        def execute(self, tup, emit):
            with contextlib.suppress(Exception):
                emit(b"x")

    cluster.apply(only=(["a"], ["b"]))
    cluster.emit(range(3), 0)

    class RefusedProducer(AtLeastOnce):
        def produce(self, *record):
            raise DeliveryFailed("no right to write")

    worker = cluster.start(Swallows(), output=RefusedProducer(cluster.bootstrap, {}))
    worker.join()
    assert isinstance(worker.error, DeliveryFailed)
    assert (cluster.acks(), cluster.committed("only")) == ([], {})
