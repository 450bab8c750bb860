"""The breaker: when it opens, what it lets through, when it closes; and nothing is given up too early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.core.reports.breaker import BUCKETS, Breaker, BreakerPolicy, Held

IN_A_ROW = BreakerPolicy(max_consecutive=3, probe_initial_s=1, probe_max_s=8)
BY_RATIO = BreakerPolicy(max_ratio=0.5, window_s=10, min_results=4, probe_initial_s=1, probe_max_s=8)


def fail(breaker: Breaker, times: int, now_s: float = 0.0, reason: str = "ValueError: no") -> bool:
    results = [breaker.failed(now_s, "count@vm:1", reason) for _ in range(times)]
    return any(results)


def test_it_is_off_by_default():
    breaker = Breaker()
    assert not fail(breaker, 1_000)
    assert not breaker.is_open


def test_an_ack_ends_a_row_of_failures():
    breaker = Breaker(IN_A_ROW)
    fail(breaker, 2)
    breaker.acked(1, 0.0)
    assert not fail(breaker, 2)
    assert fail(breaker, 1)
    assert breaker.opening.why == "3 failures in a row"


def test_a_ratio_counts_only_with_enough_results():
    breaker = Breaker(BY_RATIO)
    assert not fail(breaker, 3)
    assert fail(breaker, 1)
    assert breaker.opening.why == "4 of 4 results within 10 s were failures"


def test_a_ratio_that_is_met_and_not_exceeded_opens_nothing():
    breaker = Breaker(BY_RATIO)
    breaker.acked(50, 0.0)
    assert not fail(breaker, 50)
    assert fail(breaker, 1)


def test_results_older_than_the_window_no_longer_count():
    breaker = Breaker(BY_RATIO)
    breaker.acked(1_000_000, 0.0)
    assert not fail(breaker, 1_000, 9.9)
    assert breaker.check(10.6)


def test_it_says_which_bolt_and_exception_failed_most():
    breaker = Breaker(BreakerPolicy(max_consecutive=4))
    breaker.failed(0, "store@vm:7", "KeyError: 1")
    fail(breaker, 2)
    breaker.failed(5.0, "count@vm:2", "ValueError: yes")
    assert breaker.opening[0] == 5.0
    assert breaker.opening[2:] == ("count@vm:2", "ValueError: yes")


def test_probes_are_due_after_a_growing_time_and_at_most_the_longest():
    breaker, times = Breaker(IN_A_ROW), []
    fail(breaker, 3)
    for tick in range(400):
        now_s = tick / 10
        if breaker.is_probe_due(now_s):
            breaker.probed([tick], now_s)
            times.append(now_s)
    assert times == [1, 2, 4, 8, 16, 24, 32]
    assert breaker.probes_sent == 7


def test_results_from_before_it_opened_neither_close_it_nor_count_later():
    breaker = Breaker(IN_A_ROW)
    fail(breaker, 3)
    breaker.acked(100, 1.0)
    assert not fail(breaker, 100, 1.0)
    assert breaker.is_open
    breaker.close(2.0)
    assert not fail(breaker, 2, 2.0)


def test_one_that_opens_again_soon_continues_its_back_off():
    breaker = Breaker(IN_A_ROW)
    fail(breaker, 3)
    breaker.probed(["a"], 1.0)
    breaker.close(1.5)
    fail(breaker, 3, 2.0)
    assert not breaker.is_probe_due(3.9)
    assert breaker.is_probe_due(4.0)
    breaker.close(5.0)
    fail(breaker, 3, 100.0)
    assert breaker.is_probe_due(101.0)


def test_one_that_is_switched_off_closes():
    breaker = Breaker(IN_A_ROW)
    fail(breaker, 3)
    breaker.follow(BreakerPolicy(), 1.0)
    assert not breaker.is_open
    assert not fail(breaker, 100)


def test_without_a_breaker_nothing_is_held_back():
    held: Held[int] = Held()
    held.add(1, 5.0)
    assert held.pop_over(Breaker(), 5.0) == [1]


def test_held_failures_are_given_up_when_a_window_and_a_step_of_it_have_passed():
    held, breaker = Held[int](), Breaker(BY_RATIO)
    held.add(1, 5.0)
    held.add(2, 6.0)
    assert held.pop_over(breaker, 15.0 + 10 / BUCKETS) == []
    assert held.pop_over(breaker, 15.1 + 10 / BUCKETS) == [1]
    assert len(held) == 1


def test_failures_held_when_it_opens_are_not_given_up():
    held, breaker = Held[int](), Breaker(IN_A_ROW)
    held.add(1, 0.0)
    fail(breaker, 3)
    with pytest.raises(AssertionError):
        held.pop_over(breaker, 1_000.0)
    assert (held.pop_all(), len(held)) == ([1], 0)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["ack", "fail", "fail", "hold", "probe", "time"]), st.integers(0, 40)),
    max_size=200,
)
POLICIES = st.builds(
    BreakerPolicy,
    max_ratio=st.sampled_from([None, 0.1, 0.5, 0.9]),
    window_s=st.sampled_from([1.0, 10.0]),
    min_results=st.integers(1, 10),
    max_consecutive=st.sampled_from([None, 1, 3, 10]),
    probe_initial_s=st.just(1.0),
    probe_max_s=st.sampled_from([1.0, 8.0]),
)


@given(EVENTS, POLICIES)
def test_nothing_is_given_up_while_it_is_open_or_before_a_window_without_an_opening(events, policy):
    breaker, held, now_s = Breaker(policy), Held[tuple[int, float]](), 0.0
    opened: list[float] = []
    waiting: set[tuple[int, float]] = set()
    last_probe_s = float("-inf")
    for number, (what, amount) in enumerate(events):
        now_s += amount / 20 if what == "time" else 0.0
        was_open = breaker.is_open
        if what == "ack":
            breaker.acked(amount, now_s)
        elif what == "fail":
            breaker.failed(now_s, "b@h:1", "E: x")
        elif what == "hold" and not breaker.is_open:
            held.add((number, now_s), now_s)
            waiting.add((number, now_s))
        elif what == "probe" and breaker.is_probe_due(now_s):
            assert now_s - last_probe_s >= policy.probe_initial_s
            breaker.probed([number], now_s)
            last_probe_s = now_s
            if amount > 30:
                breaker.close(now_s)
        breaker.check(now_s)
        if breaker.is_open and not was_open:
            opened.append(now_s)
        if breaker.is_open:
            waiting -= set(held.pop_all())
            assert not waiting
            continue
        for entry in held.pop_over(breaker, now_s):
            waiting.remove(entry)
            failed_s = entry[1]
            if policy.is_on:
                assert now_s > failed_s + policy.window_s
            assert not any(failed_s < at_s <= now_s for at_s in opened)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 2)), min_size=1, max_size=200), POLICIES)
def test_it_opens_exactly_when_the_results_of_its_window_say_so(results, policy):
    breaker, now_s, seen, streak = Breaker(policy), 0.0, [], 0
    for is_failure, pause_s in results:
        now_s += pause_s
        seen.append((now_s, is_failure))
        streak = streak + 1 if is_failure else 0
        (breaker.failed(now_s, "", "") if is_failure else breaker.acked(1, now_s))
        if breaker.is_open:
            break
    step_s = policy.window_s / BUCKETS
    inner = [failed for at_s, failed in seen if at_s > now_s - policy.window_s + step_s]
    outer = [failed for at_s, failed in seen if at_s > now_s - policy.window_s - step_s]
    if breaker.is_open:
        is_row = policy.max_consecutive is not None and streak >= policy.max_consecutive
        assert is_row or (policy.max_ratio is not None and len(outer) >= policy.min_results)
    elif policy.is_on and policy.max_ratio is not None and is_failure and inner == outer:
        is_enough = len(inner) >= policy.min_results
        assert not (is_enough and sum(inner) > policy.max_ratio * len(inner))
