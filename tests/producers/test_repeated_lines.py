"""What a worker logs of many tuples that fail: bounded, and nothing without a count."""

import logging

import pytest

from acktree.core import world
from acktree.producers import BasicBolt, BatchBolt
from acktree.producers.collecting.repeated_lines import INTERVAL_S, MAX_KINDS
from acktree.producers.errors import Misuse
from acktree.producers.testing import BoltDouble

pytestmark = pytest.mark.simulated
COUNT = 1_000


class FailsAtTwoPlaces(BasicBolt):
    def execute(self, tup, emit):
        if tup.value == b"even":
            raise ValueError(f"no even {tup.offset}")
        raise ValueError(f"no odd {tup.offset}")


class MisusesOnly(BasicBolt):
    def execute(self, tup, emit):
        try:
            emit(7)
        except Misuse:
            pass


class FailsWhole(BatchBolt):
    def execute(self, tuples, collector):
        raise ValueError(len(tuples))


def of_bolts(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what bolts have logged; clients of other tests may still log."""
    return [record for record in caplog.records if record.name == "acktree.bolt"]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in of_bolts(caplog)]


def test_one_traceback_per_place_and_interval_is_logged_then_a_count_of_the_rest(caplog, simulation):
    double = BoltDouble(FailsAtTwoPlaces())
    double.give(*[b"even", b"odd"] * COUNT)
    first = of_bolts(caplog)
    assert len(first) == 2
    assert all(record.exc_info for record in first)
    world.sleep(INTERVAL_S)
    double.give(b"even")
    more = lines(caplog)[2:]
    assert [line for line in more if line.startswith(f"{COUNT - 1} more in 10 s like: ")] == [
        f"{COUNT - 1} more in 10 s like: {line.getMessage()}" for line in first
    ]
    assert len(more) == 3, "the next interval begins with a line of its own"
    assert {record.action for record in of_bolts(caplog)} == {"tuple_failed"}
    assert len(double.failed) == 2 * COUNT + 1, "each tuple has its own reason"


@pytest.mark.parametrize("bolt", [MisusesOnly, FailsWhole])
def test_refused_calls_and_failed_batches_are_logged_once_per_place_and_interval(caplog, bolt):
    double = BoltDouble(bolt())
    for _ in range(20):
        double.give(b"a", b"b", b"c", b"d")
    assert len(lines(caplog)) <= 3


def test_lines_about_exceptions_that_all_differ_are_also_bounded(caplog):
    class Grouped(BasicBolt):
        def execute(self, tup, emit):
            raise ExceptionGroup("several", [ValueError(tup.offset)])

    BoltDouble(Grouped()).give(*[b"x"] * (2 * MAX_KINDS))
    assert len(lines(caplog)) == MAX_KINDS + 1
