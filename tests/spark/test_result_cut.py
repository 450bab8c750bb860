"""How far the result topic may be committed."""

from pyroaring import BitMap64

from acktree.spark.done_set import decode_metadata, encode_metadata
from acktree.spark.result_cut import LEAST_TOLD, Opened, ResultCut


class Cut:
    """A cut with what is open said in the test."""

    def __init__(self) -> None:
        self.results = ResultCut(100)
        self.open: set[tuple[int, int]] = set()
        self.frontiers = {0: 0, 1: 0}

    def cut(self, **reach: int) -> int:
        return self.results.cut(
            {int(slot[1:]): upto for slot, upto in reach.items()},
            self.frontiers,
            lambda slot, offset: (slot, offset) in self.open,
        )


def test_with_nothing_read_the_position_stays() -> None:
    assert Cut().cut() == 100


def test_an_ack_inside_the_commit_lets_the_position_pass() -> None:
    tester = Cut()
    tester.results.note(100, {0: 49}, ())
    assert tester.cut(s0=50) == 101


def test_an_ack_beyond_the_reach_of_the_commit_holds_the_position() -> None:
    tester = Cut()
    tester.results.note(100, {0: 10}, ())
    tester.results.note(101, {0: 50}, ())
    tester.results.note(102, {0: 20}, ())
    assert tester.cut(s0=50) == 101
    assert tester.cut(s0=51) == 103


def test_every_slot_of_a_record_must_be_reached() -> None:
    tester = Cut()
    tester.results.note(100, {0: 10, 1: 99}, ())
    assert tester.cut(s0=50, s1=99) == 100
    assert tester.cut(s0=50, s1=100) == 101


def test_a_failure_holds_the_position_until_its_replay_is_written() -> None:
    tester = Cut()
    tester.open = {(0, 7)}
    tester.results.note(100, {}, [Opened(0, 7, 7)])
    tester.results.note(101, {0: 3}, ())
    assert tester.cut(s0=5) == 100
    tester.results.written([(0, 7)])
    assert tester.cut(s0=5) == 102


def test_a_failure_that_was_finished_since_holds_it_until_the_commit_tells_so() -> None:
    tester = Cut()
    tester.results.note(100, {}, [Opened(0, 7, 7)])
    assert tester.cut(s0=7) == 100
    assert tester.cut(s0=8) == 101


def test_a_second_failure_of_the_same_record_holds_again() -> None:
    tester = Cut()
    tester.open = {(0, 7)}
    tester.results.note(100, {}, [Opened(0, 7, 7)])
    tester.results.written([(0, 7)])
    assert tester.cut(s0=5) == 101
    tester.results.note(101, {}, [Opened(0, 7, 7)])
    assert tester.cut(s0=5) == 101


def test_a_commit_that_tells_less_than_the_one_before_takes_the_position_back() -> None:
    tester = Cut()
    tester.results.note(100, {0: 60}, ())
    tester.results.note(101, {0: 99, 1: 5}, ())
    assert tester.cut(s0=100, s1=100) == 102
    tester.results.note(102, {0: 49}, ())
    tester.frontiers = {0: 10, 1: 9}
    assert tester.cut(s0=70, s1=100) == 101
    tester.frontiers = {0: 100, 1: 9}
    assert tester.cut(s0=100, s1=100) == 103


def test_what_the_frontier_has_passed_or_is_no_more_of_this_task_holds_nothing() -> None:
    tester = Cut()
    tester.results.note(100, {0: 60, 1: 5}, ())
    assert tester.cut(s0=100, s1=100) == 101
    tester.frontiers = {0: 61}
    assert tester.cut(s0=70) == 101


def test_facts_are_forgotten_once_the_frontier_has_passed_them() -> None:
    tester = Cut()
    for number in range(10 * LEAST_TOLD):
        tester.results.note(100 + number, {0: number}, ())
        tester.frontiers = {0: number}
        tester.cut(s0=number + 1)
    assert len(tester.results._told) <= LEAST_TOLD + 2


def test_no_result_of_a_record_that_a_shorter_bitmap_leaves_out_is_passed() -> None:
    """Every second record done takes more room than a long run of them."""
    tester, done = Cut(), BitMap64()
    done.add_range(60_000, 100_000)
    tester.results.note(100, {0: 99_999}, ())
    assert tester.cut(s0=encode_metadata(1, "id", 0, done)[1]) == 101
    done |= BitMap64(range(1, 50_000, 2))
    tester.results.note(101, {0: 49_999}, ())
    text, reach = encode_metadata(1, "id", 0, done)
    assert decode_metadata(text, 0).done.range_cardinality(60_000, 100_000) < 40_000
    assert tester.cut(s0=reach) == 100
