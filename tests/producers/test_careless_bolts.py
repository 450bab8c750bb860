"""Careless code of a bolt fails its own tuple: no fail is lost, nothing is acked that has not run."""

import pytest

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt, RetryLater
from acktree.producers.testing import BoltDouble
from producers.cluster import WorkerCluster
from producers.conformance import in_memory, on_broker

pytestmark = pytest.mark.simulated

COUNT, BAD = 6, b"3"


class RustPanic(BaseException):
    """What an extension in Rust raises that panics: no Exception."""


class WithoutRepr:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def panics():
    raise RustPanic("index out of bounds")


def waits_for_ever():
    raise RetryLater(WithoutRepr(), "later")  # type: ignore[arg-type]


async def later():
    raise AssertionError("nobody awaits it")


def generates():
    yield 1


class CarelessOne:
    def __init__(self, does) -> None:
        self.does = does


class CarelessByHand(CarelessOne, Bolt):
    def execute(self, tup, collector):
        if tup.value == BAD:
            return self.does()
        collector.emit(tup.value, anchors=tup)
        return collector.ack(tup)


class CarelessBasic(CarelessOne, BasicBolt):
    def execute(self, tup, emit):
        if tup.value == BAD:
            return self.does()
        return emit(tup.value)


class CarelessAsync(CarelessOne, AsyncBolt):
    async def execute(self, tup, emit):
        if tup.value == BAD:
            return self.does()
        return emit(tup.value)


class CarelessBatch(CarelessOne, BatchBolt):
    def execute(self, tuples, collector):
        for tup in tuples:
            if tup.value == BAD:
                return self.does()
            collector.emit(tup.value, anchors=tup)
        return None


class CarelessTable(CarelessOne, BatchBolt):
    def execute(self, tuples, collector):
        table = tuples.table()
        if BAD in table["value"].to_pylist():
            return self.does()
        return collector.emit_many(table["value"], table["row"])


KINDS = [CarelessByHand, CarelessBasic, CarelessAsync, CarelessBatch, CarelessTable]
DOES = [
    (panics, "RustPanic: index out of bounds"),
    (waits_for_ever, "InvalidRetry: retry_after_s must be a number of seconds"),
    (later, "BadHandler: execute returned a coroutine, which is never awaited: subclass AsyncBolt"),
    (generates, "BadHandler: execute returned a generator, which is never iterated: emit its items"),
]


def check_the_bad_one_alone_fails(outcome, reason: str) -> None:
    bad = int(BAD)
    assert list(outcome.failed) == [bad]
    assert outcome.failed[bad].startswith(reason)
    assert outcome.acked == set(range(COUNT)) - {bad}
    assert outcome.open == {bad}
    assert sorted(int(emission.value) for emission in outcome.emitted) == sorted(outcome.acked)


def split_by_tuple() -> list:
    """Return every kind with all it may do; but a delay is never split: a whole batch waits for it."""
    of_batches = (CarelessBatch, CarelessTable)
    pairs = [(kind, *done) for kind in KINDS for done in DOES]
    return [each for each in pairs if not (each[0] in of_batches and each[1] is waits_for_ever)]


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize(("kind", "does", "reason"), split_by_tuple())
def test_an_exception_or_bad_return_value_fails_only_its_tuple(kind, exactly_once: bool, does, reason: str):
    check_the_bad_one_alone_fails(in_memory(exactly_once)(kind(does), COUNT), reason)


@pytest.mark.parametrize(
    ("kind", "does", "reason"),
    [(CarelessByHand, *DOES[0]), (CarelessAsync, *DOES[0]), (CarelessBatch, *DOES[2])],
)
def test_a_worker_fails_that_tuple_as_the_double_does(cluster: WorkerCluster, kind, does, reason: str):
    check_the_bad_one_alone_fails(on_broker(cluster, True)(kind(does), COUNT), reason)


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", [CarelessByHand, CarelessBasic, CarelessBatch, CarelessTable])
def test_an_exception_meant_for_the_process_ends_it_and_fails_nothing(kind, ends):
    def end():
        raise ends

    double = BoltDouble(kind(end))
    with pytest.raises(ends):
        double.give(b"1", BAD)
    assert double.failed == {}


class FailsWith(Bolt):
    """Fails a tuple by something else than text, at once or in a tick."""

    tick_interval_s = 0.01

    def __init__(self, reason, *, in_tick: bool) -> None:
        self.reason, self.in_tick = reason, in_tick
        self.held = []

    def execute(self, tup, collector):
        if tup.value != BAD:
            collector.ack(tup)
        elif self.in_tick:
            self.held.append(tup)
        else:
            collector.fail(tup, self.reason)

    def tick(self, collector):
        while self.held:
            collector.fail(self.held.pop(), self.reason)


class BatchFailsWith(BatchBolt):
    def __init__(self, reason) -> None:
        self.reason = reason

    def execute(self, tuples, collector):
        for tup in tuples:
            if tup.value == BAD:
                collector.fail(tup, self.reason)


REASONS = [
    (ValueError("no such word"), "ValueError: no such word"),
    (None, ""),
    (b"bytes", "b'bytes'"),
    (WithoutRepr(), "a value of WithoutRepr, whose repr raised ZeroDivisionError"),
]


@pytest.mark.parametrize(("reason", "text"), REASONS)
@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_fail_whose_reason_is_not_text_is_sent_anyway(exactly_once: bool, reason, text: str):
    for bolt in (FailsWith(reason, in_tick=False), FailsWith(reason, in_tick=True), BatchFailsWith(reason)):
        outcome = in_memory(exactly_once)(bolt, COUNT)
        assert outcome.failed == {int(BAD): text}
        assert outcome.acked == set(range(COUNT)) - {int(BAD)}


def test_an_exception_as_the_reason_includes_its_stack():
    class Catches(Bolt):
        def execute(self, tup, collector):
            try:
                int(tup.value)
            except ValueError as error:
                caught = error
            collector.fail(tup, caught)

    double = BoltDouble(Catches())
    double.give(b"x")
    assert double.failed[0].startswith("ValueError: invalid literal")
    assert "int(tup.value)" in double.stacks[0]


def test_an_exactly_once_worker_survives_a_fail_whose_reason_is_not_text(cluster: WorkerCluster):
    outcome = on_broker(cluster, True)(FailsWith(ValueError("no"), in_tick=False), COUNT)
    assert outcome.failed == {int(BAD): "ValueError: no"}
