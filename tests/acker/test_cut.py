"""The cut: it never passes the first record of an entry, never goes back, and reaches the end when quiet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.tester import Tester
from acktree.acker.folding.cut import BUCKET_MS, CutBuckets, Positions
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.kernels.slots import BUCKETS
from hypothesis_profiles import examples

A, B = 11, 12


def test_when_nothing_is_pending_the_cut_is_the_end_of_the_log():
    tester = Tester()
    assert tester.partition.cut == (0, 0)
    tester.init(A, 1).ack(A, 1)
    assert tester.partition.cut == (1, 1)


def test_the_cut_stays_where_the_oldest_pending_root_began():
    tester = Tester().init(A, 1).ack(A, 1)
    tester.init(B, 1)
    for root in range(100, 110):
        tester.now_ms += BUCKET_MS
        tester.init(root, 1).ack(root, 1)
    assert tester.partition.cut == (1, 1)
    tester.ack(B, 1)
    assert tester.partition.cut == tester.partition.positions == (12, 12)


def test_an_orphan_also_holds_the_cut():
    tester = Tester().init(A, 1)
    tester.now_ms += BUCKET_MS
    tester.ack(B, 1)
    tester.now_ms += BUCKET_MS
    tester.ack(A, 1).init(13, 1)
    assert tester.partition.cut == (1, 0)


def test_an_orphan_that_cancels_still_holds_the_cut():
    tester = Tester().ack(A, 1)
    tester.now_ms += BUCKET_MS
    tester.init(B, 1)
    tester.now_ms += BUCKET_MS
    tester.ack(A, 1)
    assert tester.partition.cut == (0, 0)


def test_a_reset_moves_the_age_and_not_the_cut():
    tester = Tester(AgeLimits.of_seconds(3, 30, 600)).observe().expire().init(A, 1)
    for _ in range(5):
        tester.wait(2000).reset(A)
    assert tester.partition.cut == (0, 0)
    assert tester.timed_out == []


def test_the_cut_advances_bucket_by_bucket():
    tester = Tester()
    for root in range(1, 6):
        tester.init(root, 1)
        tester.now_ms += BUCKET_MS
    cuts = []
    for root in range(1, 6):
        cuts.append(tester.partition.cut.inits)
        tester.ack(root, 1)
    assert cuts == [0, 1, 2, 3, 4]


def test_a_timeout_lets_the_cut_advance():
    tester = Tester(AgeLimits.of_seconds(3, 30, 600)).observe().expire().init(A, 1).wait(4500)
    assert tester.timed_out == [(0, A)]
    assert tester.partition.cut == (1, 0)


def test_when_all_birth_buckets_are_in_use_the_newest_stays_open():
    counts = np.ones(BUCKETS, np.int32)
    buckets = CutBuckets(counts, Positions(0, 0))
    numbers = [buckets.open(number * BUCKET_MS, Positions(number, number), 0) for number in range(20_000)]
    assert max(numbers) == BUCKETS - 2
    assert buckets.cut(Positions(20_000, 20_000)) == (0, 0)
    counts[0] = 0
    assert buckets.cut(Positions(20_000, 20_000)) == (1, 1)
    assert buckets.open(20_000 * BUCKET_MS, Positions(20_000, 20_000), 0) == BUCKETS - 1


def test_finished_buckets_are_removed():
    tester = Tester()
    for root in range(1, 50):
        tester.now_ms += BUCKET_MS
        tester.init(root, 1).ack(root, 1)
    assert tester.partition.buckets.oldest == 0


def test_outlived_counts_only_buckets_whose_last_birth_is_long_ago():
    buckets = CutBuckets(np.ones(BUCKETS, np.int32), Positions(0, 0))
    for number in range(4):
        buckets.open(number * BUCKET_MS, Positions(number, number), latest_ms=1000 * number)
    assert [buckets.count_older(before) for before in (0, 1, 1000, 1001, 99_000)] == [0, 1, 1, 2, 4]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 300)), max_size=60))
@examples(200)
def test_the_cut_lies_below_the_first_record_of_every_entry_and_never_goes_back(events):
    tester, first, before = Tester(), {}, Positions(0, 0)
    for root, kind, scan_interval_ms in events:
        tester.now_ms += scan_interval_ms
        position = tester.partition.positions
        (tester.init, tester.ack, tester.reset)[kind](*((root, 1) if kind < 2 else (root,)))
        if tester.entry(root) is None:
            first.pop(root, None)
        else:
            first.setdefault(root, position)
        cut = tester.partition.cut
        assert all(cut.inits <= at.inits and cut.acks <= at.acks for at in first.values())
        assert cut >= before
        assert cut.inits >= before.inits
        assert cut.acks >= before.acks
        if not first:
            assert cut == tester.partition.positions
        before = cut


def test_the_oldest_age_is_that_of_the_oldest_entry_left():
    tester = Tester(AgeLimits.of_seconds(30, 300, 6000)).observe()
    assert tester.partition.oldest_age_s == 0
    tester.init(A, 1)
    assert tester.partition.oldest_age_s == 0
    tester.wait(1000).init(B, 1).wait(500)
    assert tester.partition.oldest_age_s == 1.5
    assert tester.reset(A).partition.oldest_age_s == 1.5
    assert tester.ack(A, 1).partition.oldest_age_s == 0.5
    assert tester.ack(B, 1).partition.oldest_age_s == 0


def test_an_entry_is_no_younger_than_now_before_log_time_is_known():
    assert Tester().init(A, 1).partition.oldest_age_s == 0


def test_bucket_numbers_wrap_around():
    counts = np.zeros(BUCKETS, np.int32)
    buckets = CutBuckets(counts, Positions(0, 0))
    for number in range(2 * BUCKETS + 10):
        assert buckets.open(number * BUCKET_MS, Positions(number, number), 0) == number
        counts[(number - 1) % BUCKETS], counts[number % BUCKETS] = 0, 1
        assert buckets.cut(Positions(10**9, 10**9)) == (number, number)


def test_outlived_counts_from_the_oldest_bucket_and_stops_at_the_first_young_one():
    buckets = CutBuckets(np.ones(BUCKETS, np.int32), Positions(0, 0))
    for number, latest_ms in enumerate([0, 5000, 1000]):
        buckets.open(number * BUCKET_MS, Positions(number, number), latest_ms)
    assert buckets.count_older(1001) == 1


def test_a_bucket_stays_open_for_its_time_and_no_longer():
    buckets = CutBuckets(np.ones(BUCKETS, np.int32), Positions(0, 0))
    walls = (300, 549, 550, 799, 800)
    assert [buckets.open(wall, Positions(0, 0), 0) for wall in walls] == [1, 1, 2, 2, 3]
    assert BUCKET_MS == 250
    assert BUCKETS * BUCKET_MS > 3_600_000


T_S = 30
ORPHAN_LIMITS = AgeLimits.of_seconds(T_S, 10 * T_S, 21_600)


def cut_lag_s(tester):
    """Seconds since the oldest record above the cut was appended, 0 if the cut is the end of the log."""
    cut = tester.partition.cut
    above = [*tester.init_log[cut.inits :], *tester.ack_log[cut.acks :]]
    return (tester.now_ms - min((ms for ms, _ in above), default=tester.now_ms)) / 1000


@pytest.mark.parametrize("kind", ["ack", "fail", "reset"])
def test_when_quiet_the_cut_reaches_the_end_in_a_timeout_even_if_an_init_is_missing(kind):
    tester = Tester(ORPHAN_LIMITS).observe().expire()
    getattr(tester, kind)(A)
    assert tester.wait(20_000, 1000).partition.cut == (0, 0)
    assert tester.wait(10_000, 1000).partition.cut == tester.partition.positions == (0, 1)
    assert (tester.partition.table.orphans, tester.partition.table.renewed_orphans) == (1, 1)


@given(st.randoms(use_true_random=False), st.sampled_from([1, 2, 5, 30, 120]))
@examples(15)
def test_orphans_never_hold_the_cut_back_by_a_timeout_under_load(draw, timeout_s):
    limits = AgeLimits.of_seconds(timeout_s, 10 * timeout_s, 21_600)
    tester, step_ms, orphans = Tester(limits).observe().expire(), int(limits.scan_interval_ms), 0
    for root in range(1000, 1000 + int(4000 * timeout_s / step_ms)):
        tester.init(root, 1).ack(root, 1)
        if draw.random() < 0.3:
            tester.ack(draw.randint(1, 300), 1)
            orphans += 1
        tester.wait(step_ms, step_ms)
        assert cut_lag_s(tester) < timeout_s
    assert tester.partition.table.orphans > 0
    assert tester.timed_out == []


def test_resets_let_an_orphan_hold_the_cut_until_its_init():
    tester = Tester(ORPHAN_LIMITS).observe().expire().ack(A, 1)
    for _ in range(20):
        tester.wait(15_000, 1000).reset(A)
    assert tester.partition.table.renewed_orphans == 0
    assert tester.crash(tester.partition.cut).init(A, 1).acked == [(0, A)]


def test_an_orphan_kept_alive_by_resets_holds_the_cut_for_at_most_half_the_retention():
    tester = Tester(AgeLimits.of_seconds(3, 30, 100)).observe().expire().ack(A, 1)
    for _ in range(60):
        tester.wait(1000, 500).reset(A)
    tester.wait(3000, 500)
    assert cut_lag_s(tester) < 12


def test_an_init_that_comes_after_a_timeout_still_completes_its_tree():
    tester = Tester(ORPHAN_LIMITS).observe().expire().ack(A, 1).wait(100_000, 1000)
    assert tester.ack(A, 2).init(A, 1, 2).acked == [(0, A)]
    assert len(tester.partition.table) == 0
    assert not tester.partition.table.bucket_counts.any()


def test_a_crash_after_the_hold_can_only_delay_a_tree():
    tester = Tester(ORPHAN_LIMITS).observe().expire().ack(A, 1).wait(100_000, 1000)
    tester.crash(tester.partition.cut).init(A, 1, 2).ack(A, 2)
    assert tester.acked == []
    assert tester.wait(35_000, 1000).timed_out == [(0, A)]


def test_late_messages_of_roots_an_earlier_owner_finished_hold_the_cut_only_briefly():
    tester = Tester(ORPHAN_LIMITS).observe().expire().init(A, 1).ack(A, 1)
    tester.crash(tester.partition.cut).ack(A, 1)
    assert tester.partition.table.orphans == 1
    assert tester.wait(30_000, 1000).partition.cut == tester.partition.positions


def test_only_old_orphans_get_a_new_birth_and_no_pending_root_or_young_orphan_does():
    tester = Tester(ORPHAN_LIMITS).observe().expire().ack(A, 1).wait(1000).init(B, 1).wait(27_000, 1000)
    tester.ack(13, 1)
    born = [tester.entry(root).bucket for root in (B, 13)]
    tester.wait(2000)
    assert tester.entry(A).bucket > born[1] > born[0]
    assert [tester.entry(root).bucket for root in (B, 13)] == born
    assert tester.partition.cut == (0, 1)


def test_an_orphan_gets_a_new_birth_once_it_is_older_than_its_hold_and_not_before():
    tester, buckets = Tester().ack(A, 1), []
    table, tick = tester.partition.table, tester.entry(A).tick
    for now_tick in (tick + 100, tick + 101):
        table.renew_orphans(now_tick, 100, oldest_bucket=0, old_buckets=1, bucket=5)
        buckets.append(tester.entry(A).bucket)
    assert buckets == [0, 5]


def test_after_an_outage_orphans_hold_the_cut_as_long_as_timeouts_are_held_back():
    tester = Tester(ORPHAN_LIMITS).observe().expire().ack(A, 1)
    tester.now_ms += 600_000
    tester.observe().expire()
    assert tester.wait(29_000, 1000).partition.cut == (0, 0)
    assert tester.wait(2000, 1000).partition.cut == (0, 1)


def test_without_a_message_timeout_an_orphan_holds_the_cut_until_its_own():
    tester = Tester(AgeLimits.of_seconds(0, 30, 600)).observe().expire().ack(A, 1).wait(29_000, 500)
    assert tester.partition.cut == (0, 0)
    assert tester.wait(3000).partition.cut == (0, 1)


def test_the_cut_goes_back_with_a_truncated_log_and_pending_roots_stay():
    tester = Tester().init(A, 1).ack(A, 1)
    tester.now_ms += BUCKET_MS
    tester.init(B, 1)
    partition = tester.partition
    assert partition.cut == (1, 1)
    partition.go_back(partition.clock.inits, 0)
    assert partition.positions == (0, 1)
    assert partition.cut == (0, 1)
    assert partition.table.pending == 1
