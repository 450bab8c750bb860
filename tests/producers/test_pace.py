"""A turn stays short: how many records are taken at once."""

from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.worker.batch_sizing import Pace


def run(pace: Pace, record_s: float, turns: int, fixed_s: float = 0.0) -> float:
    """Take ``turns`` full turns; return how long the last one took."""
    took_s = 0.0
    for _ in range(turns):
        took_s = fixed_s + pace.records * record_s
        pace.note(pace.records, took_s)
    return took_s


@given(st.floats(1e-7, 0.09))
def test_a_turn_takes_what_it_should_after_a_few_turns_whatever_a_record_takes(record_s):
    pace = Pace(0.1, 1, 10_000)
    assert run(pace, record_s, 10) <= 0.1001
    assert pace.records in (10_000, int(0.1 / record_s), int(0.1 / record_s) + 1)


def test_a_bolt_that_becomes_slow_is_given_less_after_one_turn():
    pace = Pace(0.1, 1, 10_000)
    run(pace, 1e-6, 10)
    run(pace, 0.01, 1)
    assert pace.records == 10


def test_few_records_that_happened_to_wait_do_not_hold_the_next_turns_back():
    pace = Pace(0.1, 1, 10_000)
    for _ in range(3):
        pace.note(1, 0.01)
    assert pace.records == 10
    run(pace, 1e-6, 3)
    assert pace.records == 10_000


def test_a_batch_whose_cost_is_not_its_records_never_gets_smaller_than_the_least():
    pace = Pace(2.0, 100, 10_000)
    run(pace, 1e-6, 20, fixed_s=30.0)
    assert pace.records == 100


def test_a_clock_that_did_not_move_is_no_error():
    pace = Pace(0.1, 1, 10_000)
    pace.note(10, 0.0)
    assert pace.records == 100
