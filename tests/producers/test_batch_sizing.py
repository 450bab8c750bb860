"""Batch sizing keeps turns short: how many records are read at once."""

from hypothesis import given
from hypothesis import strategies as st

from acktree.producers.worker.executing.batch_sizing import BatchSizer


def run(sizer: BatchSizer, record_s: float, turns: int, fixed_s: float = 0.0) -> float:
    """Take ``turns`` full turns; return how long the last one took."""
    took_s = 0.0
    for _ in range(turns):
        took_s = fixed_s + sizer.records * record_s
        sizer.update(sizer.records, took_s)
    return took_s


@given(st.floats(1e-7, 0.09))
def test_after_a_few_turns_a_turn_takes_its_intended_time_whatever_a_record_takes(record_s):
    sizer = BatchSizer(0.1, 1, 10_000)
    assert run(sizer, record_s, 10) <= 0.1001
    assert sizer.records in (10_000, int(0.1 / record_s), int(0.1 / record_s) + 1)


def test_a_bolt_that_becomes_slow_gets_fewer_records_after_one_turn():
    sizer = BatchSizer(0.1, 1, 10_000)
    run(sizer, 1e-6, 10)
    run(sizer, 0.01, 1)
    assert sizer.records == 10


def test_turns_of_few_records_do_not_limit_the_next_turns():
    sizer = BatchSizer(0.1, 1, 10_000)
    for _ in range(3):
        sizer.update(1, 0.01)
    assert sizer.records == 10
    run(sizer, 1e-6, 3)
    assert sizer.records == 10_000


def test_a_batch_of_constant_cost_never_gets_smaller_than_the_minimum():
    sizer = BatchSizer(2.0, 100, 10_000)
    run(sizer, 1e-6, 20, fixed_s=30.0)
    assert sizer.records == 100


def test_a_turn_that_took_no_time_is_not_an_error():
    sizer = BatchSizer(0.1, 1, 10_000)
    sizer.update(10, 0.0)
    assert sizer.records == 100
