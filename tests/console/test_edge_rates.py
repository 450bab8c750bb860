"""Looks at a topology: how often, and what a log moved between two of them: the rates of the page's graph."""

import pytest

from acktree.console.page.serving.watcher import Moved, edge_rates, wait_s

WORDS = "words", None
BEFORE = Moved(0, 100, {WORDS: {0: 1_000, 1: 500}})


def rate(now, *earlier):
    return edge_rates([*earlier, now], now).get(WORDS)


def test_a_rate_covers_the_whole_time_between_two_observations():
    assert rate(Moved(9_000, 10_000, {WORDS: {0: 1_100, 1: 500}}), BEFORE) == 10.0


def test_a_slow_observation_raises_no_rate():
    slow = Moved(0, 8_000, {WORDS: {0: 0}})  # nobody knows when in these seconds the log ended at 0
    assert rate(Moved(9_000, 10_000, {WORDS: {0: 1_000}}), slow) == 100.0


def test_a_position_that_appears_or_goes_back_has_no_rate_until_it_is_seen_again():
    appeared = Moved(2_000, 2_100, {WORDS: {0: 1_000, 1: 500, 2: 50_000}})
    anew = Moved(2_000, 2_100, {WORDS: {0: 3, 1: 0}})
    assert rate(appeared, BEFORE) is None
    assert rate(anew, BEFORE) is None
    later = Moved(4_000, 4_000, {WORDS: {0: 5, 1: 0}})
    assert rate(later, BEFORE, anew) == 1.0


def test_two_simultaneous_observations_give_no_rate():
    assert rate(Moved(100, 900, {WORDS: {0: 1_000, 1: 900}}), BEFORE) is None


@pytest.mark.parametrize(
    ("took_s", "waited_s"), [(0.2, 1.8), (1.5, 4.0), (2.5, 5.0), (4.0, 5.0), (30.0, 5.0)]
)
def test_a_long_observation_is_followed_by_a_longer_wait_but_figures_stay_fresh(took_s, waited_s):
    assert wait_s(took_s, 2.0) == pytest.approx(waited_s)
