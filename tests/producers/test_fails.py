"""Stack traces of failed tuples: each is that of its own place, and a flood of fails formats few of them."""

import traceback

import pytest

from acktree.producers import AsyncBolt, BasicBolt, BatchBolt, Bolt
from acktree.producers.collecting.arithmetic.packing import MAX_STACKS
from acktree.producers.collecting.fails import Fails, place_of, stack_of
from acktree.producers.testing import BoltDouble
from acktree.producers.tuples import Tuple

COUNT = 200


def parse(value: bytes) -> int:
    return int(value)


class Parses(BasicBolt):
    """Fails words, those that begin with "c" by an exception that has another as its cause."""

    def execute(self, tup, emit):
        if not tup.value.startswith(b"c"):
            parse(tup.value)
        try:
            parse(tup.value)
        except ValueError as error:
            raise KeyError("no number") from error


@pytest.fixture
def formatted(monkeypatch) -> list[type]:
    """The types of the exceptions whose stack is formatted, by a logger or for a fail."""
    found: list[type] = []
    original = traceback.TracebackException.from_exception.__func__

    def from_exception(cls, error, *arguments, **more):
        found.append(type(error))
        return original(cls, error, *arguments, **more)

    monkeypatch.setattr(traceback.TracebackException, "from_exception", classmethod(from_exception))
    return found


def test_tuples_that_fail_at_one_place_have_one_stack_formatted_once_per_flush(formatted):
    double = BoltDouble(Parses())
    for flush in (1, 2):
        double.give(*[b"word"] * COUNT)
        assert formatted == [ValueError] * flush
    assert len(set(double.stacks.values())) == 1
    assert len(double.stacks) == 2 * COUNT
    assert "return int(value)" in double.stacks[COUNT]


def test_only_as_many_stacks_are_formatted_as_go_with_a_flush(formatted):
    double = BoltDouble(Parses())
    double.give(*(b"c %d" % number for number in range(COUNT)))
    assert len(formatted) == MAX_STACKS
    stacks = [stack for stack in double.stacks.values() if stack]
    assert len(stacks) == len(set(stacks)) == MAX_STACKS
    assert all(f"b'c {number}'" in stack for number, stack in enumerate(stacks)), "each has its own cause"
    assert len(double.failed) == COUNT


def test_no_stack_is_formatted_for_an_untracked_tuple_whose_fail_is_not_sent(formatted):
    fails = Fails(None, None)  # type: ignore[arg-type]
    assert fails.stack_of(Tuple(None, b"", None), raised(0)) == ""  # type: ignore[arg-type]
    assert formatted == []


NO_NUMBER = ValueError("no number")


def refuse() -> None:
    raise NO_NUMBER


class RefusesBasic(BasicBolt):
    def execute(self, tup, emit):
        refuse()


class RefusesByHand(Bolt):
    def execute(self, tup, collector):
        refuse()


class RefusesAtOnce(AsyncBolt):
    async def execute(self, tup, emit):
        refuse()


class RefusesBatch(BatchBolt):
    def execute(self, batch, emit):
        refuse()


class RefusesFirstBatch(BatchBolt):
    """Refuses a batch, and takes its halves."""

    def execute(self, batch, emit):
        if len(batch) > 1:
            refuse()


@pytest.mark.parametrize(
    "bolt", [RefusesBasic, RefusesByHand, RefusesAtOnce, RefusesBatch, RefusesFirstBatch]
)
def test_an_exception_that_is_raised_repeatedly_keeps_only_its_last_traceback(bolt):
    double = BoltDouble(bolt())
    for _ in range(20):
        double.give(b"a", b"b")
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(NO_NUMBER.__traceback__)]
    assert frames.count("refuse") == 1
    assert frames[-1] == "refuse"
    assert all("refuse()" in stack for stack in double.stacks.values())


def raised(number: int) -> BaseException:
    """Return an exception of one of several places."""
    try:
        if number == 0:
            parse(b"a")
        if number == 1:
            parse(b"b")
        try:
            parse(b"c")
        except ValueError as error:
            if number == 2:
                error.add_note("a note")
            if number == 3:
                raise KeyError("c") from None
            raise KeyError("c") from (error if number == 4 else ValueError("another"))
    except Exception as error:
        return error
    raise AssertionError


def test_exceptions_of_one_place_have_the_same_stack_and_those_of_another_do_not():
    errors = [raised(number) for number in range(6) for _ in range(2)]
    for one in errors:
        for other in errors:
            assert (place_of(one) == place_of(other)) == (stack_of(one) == stack_of(other)), (one, other)


def test_a_cycle_of_causes_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert place_of(one) == place_of(one)
    assert place_of(ExceptionGroup("some", [one])) != place_of(ExceptionGroup("some", [one]))
