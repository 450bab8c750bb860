"""To what time the bolts of a spout have worked: what moves the clocks of its trees, and what does not."""

import numpy as np
import pytest

from acker.tester import START_MS, Tester
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.work_clock import (
    MAX_LOOKS,
    NEVER_MS,
    STILL_MS,
    Barrier,
    Behind,
    BoltClock,
    Limit,
    Look,
    WorkClock,
    bolts_behind,
)
from acktree.core.topology.file import parse_topology
from acktree.core.topology.registry import History, Published

A, B, T_MS = 11, 12, 3000
LIMITS = AgeLimits.of_seconds(message_s=3, orphan_s=30, retention_s=600)
PLACES = ("words", 0), ("words", 1)

TEXT = """
name = "t"
[spouts.lines]
topics = ["source"]
emits = ["words"]
[spouts.clicks]
topics = ["clicks"]
emits = ["pages"]
[bolts.count]
reads = ["words"]
emits = ["counts"]
[bolts.store]
reads = ["counts", "pages"]
emits = ["counts"]
"""


def published(version=1, text=TEXT, **tasks):
    return Published(
        **parse_topology(text).model_dump(),
        version=version,
        spout_tasks=tasks or {"lines": (0,), "clicks": (1,)},
        slots=(),
    )


def clock_of(*versions):
    clock = WorkClock()
    clock.follow(History("t", {each.version: each for each in versions or (published(),)}))
    return clock


def ends(*offsets):
    return dict(zip(PLACES, offsets, strict=True))


@pytest.mark.parametrize(
    ("committed", "newest", "left"),
    [
        (ends(5, 7), ends(9, 9), []),
        (ends(5, 6), ends(9, 9), [PLACES[1]]),
        (ends(5, -1), ends(9, 9), [PLACES[1]]),
        ({PLACES[0]: 5}, ends(9, 9), [PLACES[1]]),
        (ends(2, 7), ends(2, 9), []),
        (ends(1, 7), ends(2, 9), [PLACES[0]]),
    ],
    ids=["passed", "behind", "nothing committed", "not known", "a lost end", "a lost end, behind"],
)
def test_a_bolt_has_worked_up_to_a_time_once_it_has_committed_the_log_ends_of_then(committed, newest, left):
    assert Barrier(1, ends(5, 7)).left(committed, newest) == left


def see(clock, at_ms, now, committed):
    clock.see(Barrier(at_ms, ends(*now)), ends(*committed))
    return clock.worked_ms


def test_a_lagging_bolt_has_worked_up_to_the_last_time_whose_log_ends_it_has_passed():
    clock = BoltClock()
    assert see(clock, 0, (10, 10), (0, 0)) == NEVER_MS
    assert see(clock, 1000, (20, 20), (9, 10)) == NEVER_MS
    assert see(clock, 2000, (30, 30), (20, 10)) == 0
    assert see(clock, 3000, (40, 40), (35, 29)) == 1000
    assert clock.behind == Behind(1000, "words/1", 3000)
    assert see(clock, 4000, (40, 40), (40, 40)) == 4000
    assert clock.behind is None


@pytest.mark.parametrize("now", [(4, 4), (12, 12)], ids=["not yet", "as far as before"])
def test_a_log_truncated_and_regrown_between_two_observations_stops_no_clock(now):
    clock = BoltClock()
    assert see(clock, 0, (10, 10), (5, 5)) == NEVER_MS
    assert see(clock, 1000, now, (2, 2)) == NEVER_MS
    assert see(clock, 2000, now, now) == 2000


def test_a_partition_missing_from_a_recreated_topic_stops_no_clock():
    clock = BoltClock()
    assert see(clock, 0, (10, 10), (5, 5)) == NEVER_MS
    clock.see(Barrier(1000, {PLACES[0]: 3}), {PLACES[0]: 2})
    assert clock.worked_ms == NEVER_MS
    clock.see(Barrier(2000, {PLACES[0]: 3}), {PLACES[0]: 3})
    assert clock.worked_ms == 2000


def test_a_bolt_far_behind_is_followed_in_fractions_of_its_queue():
    clock, per_s = BoltClock(), 10
    for second in range(100 * MAX_LOOKS):
        done = max(0, second - 1000) * per_s
        see(clock, 1000 * second, (second * per_s, 0), (done, 0))
        if second > 2000:
            assert 1000 <= second - clock.worked_ms / 1000 <= 1000 * (1 + 4 / MAX_LOOKS)
    assert len(clock._barriers) <= MAX_LOOKS


def test_a_stalled_partition_is_named_before_a_longer_queue():
    clock = BoltClock()
    for second in range(STILL_MS // 1000 + 1):
        see(clock, 1000 * second, (1000, 3), (second, 2))
        assert clock.behind.partition == ("words/1" if second == STILL_MS // 1000 else "words/0")
    assert clock.behind.still_ms == 0


def test_an_unobserved_bolt_counts_as_behind_and_stalled():
    clock = BoltClock()
    clock.unseen(7)
    clock.unseen(5000)
    assert clock.behind == Behind(7, "", 7)
    see(clock, 6000, (1, 1), (1, 1))
    assert clock.behind is None
    clock.unseen(7000)
    assert clock.behind == Behind(6000, "", 7000)


def test_a_spout_is_limited_by_the_bolt_furthest_behind_that_it_can_reach():
    clock = clock_of()
    assert clock.limits(0) == {}
    clock.see(
        Look(100, {}, {"count": Behind(2000, "words/1", 4000), "store": Behind(3000, "counts/0", 3000)})
    )
    assert clock.limits(5000) == {
        "lines": Limit("count", 3.0, "words/1", 1.0),
        "clicks": Limit("store", 2.0, "counts/0", 2.0),
    }
    clock.see(Look(200, {}, {"count": Behind(2000, "words/1", 4000)}))
    assert set(clock.limits(5000)) == {"lines"}


def test_a_waiting_root_ends_at_half_of_the_control_retention():
    limits = AgeLimits.of_seconds(message_s=3, orphan_s=30, retention_s=60)
    tester = Tester(limits).observe().expire().init(A, 1)
    found = set[int]()
    while tester.now_ms < START_MS + 29_000:
        tester.now_ms += 500
        timed_out = expire(tester, NEVER_MS, tester.now_ms)
        found |= set() if timed_out is None else set(timed_out.roots.tolist())
        assert not found
    while tester.now_ms < START_MS + 32_000:
        tester.now_ms += 500
        timed_out = expire(tester, NEVER_MS, tester.now_ms)
        found |= set() if timed_out is None else set(timed_out.roots.tolist())
    assert found == {A}


def test_a_spout_waits_for_every_bolt_that_its_records_can_reach():
    history = History("t", {1: published()})
    assert bolts_behind(history, "lines") == {"count", "store"}
    assert bolts_behind(history, "clicks") == {"store"}


def test_a_spout_waits_for_a_bolt_of_the_newest_version_that_any_version_leads_to():
    moved = TEXT.replace('emits = ["words"]', 'emits = ["pages"]').replace(
        '["pages"]\n[bolts', '["words"]\n[bolts'
    )
    history = History("t", {1: published(), 2: published(2, moved)})
    assert bolts_behind(history, "lines") == {"count", "store"}
    without = TEXT.split("[bolts.count]")[0].replace("words", "pages") + '[bolts.store]\nreads = ["pages"]\n'
    history = History("t", {1: published(), 2: published(2, without)})
    assert bolts_behind(history, "lines") == {"store"}


def test_the_clock_of_a_spout_is_that_of_its_bolt_furthest_behind():
    clock = clock_of()
    clock.see(Look(100, {"count": 40, "store": 90}))
    assert clock.clocks(now_ms=200, folded_ms=100).tolist() == [40, 90, 200]


def test_roots_of_a_task_that_the_newest_version_removed_age_by_the_clock_of_their_spout():
    clock = clock_of(published(1, lines=(0, 2), clicks=(1,)), published(2, lines=(0,), clicks=(1,)))
    clock.see(Look(100, {"count": 40, "store": 90}))
    assert clock.clocks(now_ms=200, folded_ms=100).tolist() == [40, 90, 40, 200]


def test_roots_of_a_spout_that_the_newest_version_removed_age_by_log_time():
    removed = TEXT.replace('[spouts.clicks]\ntopics = ["clicks"]\nemits = ["pages"]\n', "")
    removed = removed.replace('"counts", "pages"', '"counts"')
    clock = clock_of(published(1), published(2, removed, lines=(0,)))
    clock.see(Look(100, {"count": 40, "store": 90}))
    assert clock.clocks(now_ms=200, folded_ms=100).tolist() == [40, 200]


def test_a_clock_is_never_later_than_log_time():
    clock = clock_of()
    clock.see(Look(100, {"count": 90, "store": 90}))
    assert clock.clocks(now_ms=50, folded_ms=100).tolist() == [50, 50, 50]


def test_an_observation_counts_once_the_log_up_to_it_is_folded():
    clock = clock_of()
    clock.see(Look(100, {"count": 40, "store": 40}))
    clock.see(Look(200, {"count": 190, "store": 190}))
    assert clock.clocks(now_ms=300, folded_ms=99).tolist() == [NEVER_MS, NEVER_MS, 300]
    assert clock.clocks(now_ms=300, folded_ms=199).tolist() == [40, 40, 300]
    assert clock.clocks(now_ms=300, folded_ms=200).tolist() == [190, 190, 300]


def test_a_bolt_that_was_not_observed_stops_the_clock():
    clock = clock_of()
    clock.see(Look(100, {"store": 90}))
    assert clock.clocks(now_ms=200, folded_ms=100).tolist() == [NEVER_MS, 90, 200]


def test_roots_of_no_spout_and_of_a_spout_without_bolts_age_by_log_time():
    alone = published(1, TEXT.split("[bolts.count]")[0], lines=(3,), clicks=(1,))
    assert clock_of(alone).clocks(now_ms=200, folded_ms=NEVER_MS).tolist() == [200] * 5


def test_observations_are_bounded_and_the_newest_is_kept():
    clock = clock_of()
    for at_ms in range(10 * MAX_LOOKS):
        clock.see(Look(at_ms, {"count": at_ms, "store": at_ms}))
    newest = 10 * MAX_LOOKS - 1
    assert clock.clocks(newest, newest).tolist()[0] == newest
    assert len(clock._looks) <= MAX_LOOKS


def waiting():
    """Return a tester whose roots A and B wait, A in a tree of task 0, B of task 1."""
    return Tester(LIMITS).observe().expire().init(A, 1).init(B, 1, task=1)


def expire(tester, *clocks_ms):
    tester.observe()
    return tester.partition.expire(tester.now_ms, np.array(clocks_ms))


def test_a_root_ages_by_the_clock_of_its_task():
    tester = waiting()
    for _ in range(20):
        tester.now_ms += 500
        assert not len((expire(tester, NEVER_MS, NEVER_MS, tester.now_ms) or [[]])[0])
    tester.now_ms += 500
    timed_out = expire(tester, START_MS + 10, tester.now_ms, tester.now_ms)
    assert timed_out.roots.tolist() == [B]
    tester.now_ms += 500
    assert expire(tester, START_MS + T_MS + 20, 0, 0).roots.tolist() == [A]


def test_each_ack_makes_a_root_younger_but_not_an_orphan():
    tester = waiting().ack(99, 1)
    tester.now_ms += 2000
    tester.ack(A, 5).ack(99, 5)
    entry = tester.partition.table.entry
    assert entry(A).tick - entry(B).tick == 200
    assert entry(99).tick == entry(B).tick
