"""How far the result topic may be committed."""

from acktree.spark.ledger.result_cut import Emission, ResultCut

FIRST, SECOND = Emission(0, 16, 7), Emission(0, 17, 7)
"""Two emissions of one record."""


class Cut:
    """A cut with what is open said in the test."""

    def __init__(self) -> None:
        self.results = ResultCut(100)
        self.open: set[Emission] = set()

    def cut(self, **reach: int) -> int:
        reached = {int(slot[1:]): upto for slot, upto in reach.items()}
        return self.results.cut(reached, self.open.__contains__)


def test_the_position_stays_while_nothing_is_read() -> None:
    assert Cut().cut() == 100


def test_an_ack_inside_the_commit_lets_the_position_pass() -> None:
    tester = Cut()
    tester.results.record(100, {0: 49}, ())
    assert tester.cut(s0=50) == 101


def test_an_ack_beyond_the_reach_of_the_commit_holds_the_position() -> None:
    tester = Cut()
    tester.results.record(100, {0: 10}, ())
    tester.results.record(101, {0: 50}, ())
    tester.results.record(102, {0: 20}, ())
    assert tester.cut(s0=50) == 101
    assert tester.cut(s0=51) == 103


def test_every_slot_of_a_record_must_be_reached() -> None:
    tester = Cut()
    tester.results.record(100, {0: 10, 1: 99}, ())
    assert tester.cut(s0=50, s1=99) == 100
    assert tester.cut(s0=50, s1=100) == 101


def test_a_slot_that_is_no_longer_read_holds_nothing() -> None:
    tester = Cut()
    tester.results.record(100, {0: 10, 1: 99}, [Emission(1, 16, 5)])
    assert tester.cut(s0=50) == 101


def test_a_failure_holds_the_position_until_its_replay_is_written() -> None:
    tester = Cut()
    tester.open = {FIRST}
    tester.results.record(100, {}, [FIRST])
    tester.results.record(101, {0: 3}, ())
    assert tester.cut(s0=5) == 100
    tester.results.written([FIRST])
    assert tester.cut(s0=5) == 102


def test_a_failure_finished_since_holds_the_position_until_the_commit_includes_it() -> None:
    tester = Cut()
    tester.results.record(100, {}, [FIRST])
    assert tester.cut(s0=7) == 100
    assert tester.cut(s0=8) == 101


def test_the_failure_of_a_replay_holds_the_position_whatever_became_of_the_earlier_failure() -> None:
    tester = Cut()
    tester.open = {FIRST, SECOND}
    tester.results.record(100, {}, [FIRST])
    tester.results.written([FIRST])
    assert tester.cut(s0=5) == 101
    tester.results.record(101, {}, [SECOND])
    tester.results.written([FIRST])
    assert tester.cut(s0=5) == 101
    tester.results.written([SECOND])
    assert tester.cut(s0=5) == 102
