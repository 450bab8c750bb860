"""A batch that raises is executed again in halves, so that only the poison fails."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.producers import BatchBolt, Reject, RetryLater
from acktree.producers.collecting import held_output
from acktree.producers.testing import BoltDouble
from acktree.producers.worker.executing.halving import FURTHER_FAILURES, execute_in_halves


class Doubles(BatchBolt):
    """Emits two children of each tuple in turn, and raises at the first poison, with all it has emitted."""

    def __init__(self, poison: dict[bytes, Exception]) -> None:
        self.poison, self.executions = poison, 0

    def execute(self, tuples: Any, collector: Any) -> None:
        self.executions += 1
        for tup in tuples:
            collector.emit(b"one " + tup.value, anchors=tup)
            values = [b"two " + tup.value]
            collector.emit_many(values, [tup])
            values.clear()
            if tup.value in self.poison:
                raise self.poison[tup.value]


def given_values(count: int, poison: dict[bytes, Exception], **options: Any) -> tuple[Doubles, BoltDouble]:
    bolt = Doubles(poison)
    double = BoltDouble(bolt, **options)
    double.give(*(b"%d" % number for number in range(count)))
    return bolt, double


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.parametrize("poison", [{0}, {99}, {31}, {7, 8, 50}, set(range(40, 48))])
def test_only_the_poison_of_a_batch_fails_and_nothing_of_a_failed_try_is_sent(
    poison: set[int], exactly_once: bool
):
    bolt, double = given_values(
        100, {b"%d" % number: ValueError(f"{number}") for number in poison}, exactly_once=exactly_once
    )
    assert double.failed == {number: f"ValueError: {number}" for number in poison}
    good = set(range(100)) - poison
    assert (double.acked, set(double.open)) == (good, poison)
    sent = sorted(emission.value for emission in double.emitted)
    assert sent == sorted(b"%s %d" % (word, number) for number in good for word in (b"one", b"two"))
    assert double.counters.emitted == len(sent)
    assert double.counters.executed == 100
    assert bolt.executions <= len(poison) * 15 + 1


def test_the_poison_of_a_batch_says_that_it_is_never_retried():
    _, double = given_values(50, {b"7": Reject("no number")})
    assert (double.failed, double.rejected) == ({7: "no number"}, {7})


def test_a_batch_that_asks_to_wait_waits_as_a_whole():
    bolt, double = given_values(50, {b"7": RetryLater(3, "busy")})
    assert set(double.failed) == set(double.retry_after_s) == set(range(50))
    assert (bolt.executions, double.emitted) == (1, [])


def test_a_bolt_that_fails_everything_costs_few_executions():
    bolt, double = given_values(1000, {b"%d" % number: OSError("down") for number in range(1000)})
    assert len(double.failed) == 1000
    assert bolt.executions <= 2 * (1000).bit_length() + FURTHER_FAILURES + 1
    assert double.emitted == []


def test_tuples_that_were_failed_before_the_exception_are_not_executed_again():
    class Fails(BatchBolt):
        seen: list[bytes]

        def execute(self, tuples: Any, collector: Any) -> None:
            for tup in tuples:
                if tup.value == b"0":
                    collector.fail(tup, "mine")
                elif tup.value == b"3":
                    raise ValueError("three")

    double = BoltDouble(Fails())
    double.give(b"0", b"1", b"2", b"3")
    assert (double.failed, double.acked) == ({0: "mine", 3: "ValueError: three"}, {1, 2})


def test_a_batch_that_emits_too_much_to_be_held_is_sent_and_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("acktree.producers.collecting.batch.MAX_HELD_BYTES", 500)
    bolt, double = given_values(20, {b"19": ValueError("no")})
    assert set(double.failed) == set(range(20))
    assert (bolt.executions, double.acked) == (1, set())
    assert set(double.open) == set(range(20)), "children are sent, and no tree is done"
    assert held_output.MAX_HELD_BYTES == 64 << 20


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=12))
def test_every_item_is_done_or_fails_once_and_the_work_is_bounded(count: int, poison: set[int]):
    done, failed, executions = list[int](), list[int](), 0

    def execute(part: Any) -> Exception | None:
        nonlocal executions
        executions += 1
        if poison & set(part):
            return ValueError()
        done.extend(part)
        return None

    execute_in_halves(
        range(count),
        ValueError(),
        execute,
        lambda part, _error: failed.extend(part),
        may_split=lambda _error: True,
        may_go_on=lambda: True,
    )
    assert sorted(done + failed) == list(range(count))
    assert set(failed) >= poison & set(range(count))
    assert executions <= 2 * (len(poison) + 1) * (count.bit_length() + 1)


def test_the_rest_fails_unexecuted_when_there_is_no_time_left():
    failed = list[int]()
    no: Any = lambda *_: False  # noqa: E731
    execute_in_halves(
        range(4), ValueError(), lambda _part: pytest.fail("executed"), lambda part, _: failed.extend(part),
        may_split=no, may_go_on=no,
    )  # fmt: skip
    assert sorted(failed) == [0, 1, 2, 3]
