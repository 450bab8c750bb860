"""A bolt says when the source record of a failed tuple is emitted again, or that it never is."""

import asyncio
import decimal
from collections.abc import Callable
from typing import Any

import pytest

from acktree.core.topology.file import BoltTable
from acktree.producers import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Reject,
    RetryLater,
)
from acktree.producers.bolt import AnyBolt
from acktree.producers.errors import BadHandler
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.executing.bolt_kinds import check_bolt, find_never_retried

HALF_RETENTION_S = 10_800.0


def outcome(double: BoltDouble) -> tuple[dict[int, str], set[int], dict[int, float], set[int]]:
    return double.failed, double.rejected, double.retry_after_s, double.acked


def raising(kind: str, error_of: Callable[[bytes | None], Exception | None]) -> AnyBolt:
    """Return a bolt of a kind that raises what ``error_of`` returns for a value."""

    def check(tup: Any) -> None:
        if (error := error_of(tup.value)) is not None:
            raise error

    class Basic(BasicBolt):
        never_retry = (KeyError,)

        def execute(self, tup: Any, emit: Any) -> None:
            check(tup)

    class Async(AsyncBolt):
        never_retry = (KeyError,)

        async def execute(self, tup: Any, emit: Any) -> None:
            await asyncio.sleep(0)
            check(tup)

    class Batch(BatchBolt):
        never_retry = (KeyError,)

        def execute(self, tuples: Any, collector: Any) -> None:
            for tup in tuples:
                check(tup)

    class ByHand(Bolt):
        never_retry = (KeyError,)

        def execute(self, tup: Any, collector: Any) -> None:
            check(tup)
            collector.ack(tup)

    return {"basic": Basic, "async": Async, "batch": Batch, "bolt": ByHand}[kind]()


KINDS = ("basic", "async", "batch", "bolt")


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_says_that_its_tuple_is_never_retried(kind: str, exactly_once: bool):
    errors = {b"b": Reject("no number"), b"c": KeyError("x")}
    double = BoltDouble(raising(kind, errors.get), exactly_once=exactly_once)
    for value in (b"a", b"b", b"c"):
        double.give(value)
    assert outcome(double) == ({1: "no number", 2: "KeyError: 'x'"}, {1, 2}, {}, {0})
    double.close()


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_says_when_its_tuple_is_retried(kind: str, exactly_once: bool):
    errors = {b"b": RetryLater(1.5, "closed"), b"c": RetryLater(0), b"d": ValueError("plain")}
    double = BoltDouble(raising(kind, errors.get), exactly_once=exactly_once)
    for value in (b"a", b"b", b"c", b"d"):
        double.give(value)
    failed, rejected, after_s, acked = outcome(double)
    assert failed == {1: "closed", 2: "again in 0 s", 3: "ValueError: plain"}
    assert (rejected, after_s, acked) == (set(), {1: 1.5, 2: 0}, {0})
    double.close()


class Says(Bolt):
    """Fails each tuple with the arguments that it was made with."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def execute(self, tup: Any, collector: Any) -> None:
        collector.fail(tup, "no", **self.arguments)


@pytest.mark.parametrize("exactly_once", [False, True])
def test_an_explicit_fail_says_when_its_tuple_is_retried_or_that_it_never_is(exactly_once: bool):
    for arguments, rejected, after_s in (
        ({}, set(), {}),
        ({"retry": False}, {0}, {}),
        ({"retry_after_s": 0}, set(), {0: 0.0}),
        ({"retry_after_s": HALF_RETENTION_S}, set(), {0: HALF_RETENTION_S}),
    ):
        double = BoltDouble(Says(**arguments), exactly_once=exactly_once)
        double.give(b"a")
        assert outcome(double) == ({0: "no"}, rejected, after_s, set())


class SaysInBatch(BatchBolt):
    def execute(self, tuples: Any, collector: Any) -> None:
        collector.fail(tuples[0], "later", retry_after_s=2)
        collector.fail(tuples[1], "never", retry=False)


def test_a_fail_in_a_batch_says_when_its_tuple_is_retried_or_that_it_never_is():
    double = BoltDouble(SaysInBatch())
    double.give(b"a", b"b", b"c")
    assert outcome(double) == ({0: "later", 1: "never"}, {1}, {0: 2.0}, {2})


@pytest.mark.parametrize(
    "arguments",
    [
        {"retry_after_s": -1},
        {"retry_after_s": HALF_RETENTION_S + 0.1},
        {"retry_after_s": float("nan")},
        {"retry_after_s": float("inf")},
        {"retry_after_s": "5"},
        {"retry_after_s": True},
        {"retry_after_s": 5, "retry": False},
        {"retry": "no"},
    ],
)
def test_a_fail_with_an_invalid_delay_is_refused_and_the_tuple_fails_plainly(arguments: dict[str, Any]):
    double = BoltDouble(Says(**arguments))
    double.give(b"a")
    assert double.failed[0].startswith("InvalidRetry: ")
    assert "retry" in double.failed[0]
    assert (double.rejected, double.retry_after_s, double.in_hand) == (set(), {}, [])
    assert double.counters.misuses == 1


class SaysInTick(Bolt):
    tick_interval_s = 1.0

    def execute(self, tup: Any, collector: Any) -> None:
        self.tup = tup

    def tick(self, collector: Any) -> None:
        collector.fail(self.tup, "no", retry_after_s=-1)


def test_a_fail_that_is_refused_between_tuples_does_not_leave_its_tuple_in_hand():
    double = BoltDouble(SaysInTick())
    double.give(b"a")
    double.tick()
    assert double.in_hand == []
    assert double.failed[0].startswith("InvalidRetry: ")


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_with_an_invalid_delay_fails_its_tuple_plainly(kind: str):
    double = BoltDouble(raising(kind, {b"a": RetryLater(-1)}.get))
    double.give(b"a")
    assert double.failed[0].startswith("InvalidRetry: retry_after_s must be a number of seconds from 0 to")
    assert (double.rejected, double.retry_after_s) == (set(), {})
    double.close()


def test_the_table_of_a_bolt_names_exceptions_beside_those_of_its_class():
    bolt = raising("basic", {}.get)
    table = BoltTable.model_validate(
        {"reads": ["in"], "never_retry": ["builtins.ValueError", "decimal.DecimalException"]}
    )
    assert find_never_retried(bolt, table, "b") == (KeyError, ValueError, decimal.DecimalException)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("builtins.NoSuchError", "has no 'NoSuchError'"),
        ("no_such_module.Error", "no module 'no_such_module'"),
        ("builtins.len", "not an exception class"),
        ("builtins.KeyboardInterrupt", "not an exception class"),
    ],
)
def test_a_name_in_the_table_that_is_not_an_exception_is_refused_with_its_key(place: str, said: str):
    table = BoltTable.model_validate({"reads": ["in"], "never_retry": [place]})
    with pytest.raises(BadHandler, match=r"bolts\.b\.never_retry") as refused:
        find_never_retried(raising("basic", {}.get), table, "b")
    assert said in str(refused.value)


@pytest.mark.parametrize("never", [ValueError, [ValueError], ("ValueError",), (BaseException,), (7,)])
def test_a_class_with_an_invalid_never_retry_is_refused(never: Any):
    bolt = raising("basic", {}.get)
    type(bolt).never_retry = never
    with pytest.raises(BadHandler, match="never_retry must be a tuple of exception classes"):
        check_bolt(bolt)
