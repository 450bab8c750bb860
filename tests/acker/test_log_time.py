"""Log time and expiry: boundaries, leaps, wrong dates, orphans, resets; nothing sleeps."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.tester import START_MS, Tester
from acktree.acker.folding.clock import UNKNOWN_MS, LogClock, TopicClock, Watermark
from acktree.acker.folding.expiry import AgeLimits, ticks
from acktree.acker.kernels.slots import NO_LIMIT
from hypothesis_profiles import examples

T_MS = 3000
LIMITS = AgeLimits.of_seconds(message_s=3, orphan_s=30, retention_s=600)
A, B = 11, 12


def times(*ms):
    return np.array(ms, np.int64)


@pytest.fixture
def tester():
    return Tester(LIMITS).observe().expire()


def test_a_clock_is_unknown_before_its_first_record():
    clock = TopicClock(0)
    assert clock.time_ms == UNKNOWN_MS
    clock.fold(times(500), 1, wall_ms=9000)
    assert clock.time_ms == UNKNOWN_MS


def test_while_behind_the_clock_is_the_append_time_that_a_second_record_confirms():
    clock = TopicClock(0)
    clock.fold(times(500, 600, 700), 3, wall_ms=9000)
    assert clock.time_ms == 600
    clock.fold(times(800), 4, wall_ms=9000)
    assert clock.time_ms == 700


def test_a_record_dated_wrongly_does_not_move_the_clock():
    clock = TopicClock(0)
    clock.fold(times(500, 600, 8000, 700, 710, 3, 720), 7, wall_ms=9000)
    assert clock.time_ms == 700
    clock.fold(times(8000), 8, wall_ms=9000)
    assert clock.time_ms == 720


def test_a_record_without_an_append_time_does_not_move_the_clock():
    clock = TopicClock(0)
    clock.fold(times(500, 600, UNKNOWN_MS, UNKNOWN_MS), 4, wall_ms=9000)
    assert clock.time_ms == 500
    clock.fold(times(UNKNOWN_MS, 700), 6, wall_ms=9000)
    assert clock.time_ms == 600


def test_no_record_moves_the_clock_past_wall_time():
    clock = TopicClock(0)
    clock.fold(times(500, 10_000, 10_001), 3, wall_ms=9000)
    assert clock.time_ms == 9000


def test_at_the_end_of_the_log_the_clock_is_the_wall_time_before_the_end_was_queried():
    clock = TopicClock(5)
    clock.observe(Watermark(wall_ms=1000, high=5))
    assert clock.time_ms == 1000


def test_a_position_below_the_high_watermark_is_not_the_end():
    clock = TopicClock(5)
    clock.fold(times(100, 200), 7, wall_ms=1000)
    clock.observe(Watermark(wall_ms=1000, high=8))
    assert clock.time_ms == 100
    clock.reach(7)
    assert clock.time_ms == 100
    clock.reach(8)
    assert clock.time_ms == 1000


def test_under_a_steady_stream_the_first_end_not_reached_is_the_one_that_counts():
    clock = TopicClock(0)
    clock.observe(Watermark(wall_ms=1000, high=3))
    clock.observe(Watermark(wall_ms=2000, high=9))
    clock.reach(5)
    assert clock.time_ms == 1000
    clock.observe(Watermark(wall_ms=3000, high=9))
    assert clock.time_ms == 1000
    clock.reach(9)
    assert clock.time_ms == 3000


@given(st.lists(st.tuples(st.integers(-1, 50), st.integers(0, 50), st.booleans()), max_size=30))
def test_the_clock_never_goes_back(events):
    clock, before = TopicClock(0), UNKNOWN_MS
    for number, (append, wall, is_watermark) in enumerate(events):
        if is_watermark:
            clock.observe(Watermark(wall, append))
        else:
            clock.fold(times(append), number, wall)
        assert clock.time_ms >= before
        before = clock.time_ms


def test_log_time_is_the_smaller_of_both_topics():
    clock = LogClock(TopicClock(0), TopicClock(0))
    clock.inits.observe(Watermark(1000, 0))
    assert clock.time_ms == UNKNOWN_MS
    clock.acks.observe(Watermark(400, 0))
    assert clock.time_ms == 400


def test_the_age_of_a_root_lies_between_log_time_and_wall_time():
    clock = LogClock(TopicClock(0), TopicClock(0))
    clock.inits.observe(Watermark(1000, 0))
    clock.acks.observe(Watermark(1000, 0))
    ages = clock.ages_of(times(UNKNOWN_MS, 3, 999, 1000, 1500, 2000, 99_999), wall_ms=2000)
    assert ages.tolist() == [2000, 1000, 1000, 1000, 1500, 2000, 2000]
    assert clock.ages_of(times(5), wall_ms=10).tolist() == [1000]


@pytest.mark.parametrize(("ms", "expected"), [(0, 0), (1, 1), (10, 1), (11, 2), (3000, 300), (inf, NO_LIMIT)])
def test_an_age_in_ticks_is_rounded_up(ms, expected):
    assert ticks(ms) == expected


def test_a_root_is_timed_out_after_the_timeout_and_within_a_tenth_and_a_second(tester):
    tester.init(A, 1, task=3).wait(T_MS - 1, step_ms=7)
    assert tester.timed_out == []
    tester.wait(T_MS // 10 + 1000, step_ms=50)
    assert tester.timed_out == [(3, A)]
    assert tester.entry(A) is None


@given(st.integers(0, 1000), st.integers(100, 120_000), st.floats(0.1, 2.5))
@examples(80)
def test_no_root_is_timed_out_early_or_late_whenever_the_scans_run(phase_ms, timeout_ms, pauses):
    """A look is due every ``scan_interval_ms``; a busy machine is late with it."""
    limits = AgeLimits(timeout_ms, 10 * timeout_ms, inf)
    step_ms = max(1, int(pauses * limits.scan_interval_ms))
    tester = Tester(limits).wait(3 * step_ms, step_ms)
    tester.now_ms += phase_ms % step_ms
    tester.init(A, 1)
    while not tester.timed_out:
        assert tester.now_ms - tester.init_log[0][0] <= 1.1 * timeout_ms + 1000, "late"
        tester.wait(step_ms, step_ms)
    assert tester.now_ms - tester.init_log[0][0] > timeout_ms, "early"


@pytest.mark.parametrize("timeout_ms", [1000, 5000, 10_000, 30_000, 3_600_000])
def test_a_leap_is_at_least_three_scan_intervals(timeout_ms):
    limits = AgeLimits(timeout_ms, 10 * timeout_ms, inf)
    assert limits.leap_ms >= 3 * limits.scan_interval_ms


def test_those_of_three_roots_that_are_acked_in_time_do_not_time_out(tester):
    tester.init(A, 1).init(B, 2).init(13, 3).wait(T_MS // 2)
    tester.ack(A, 1).ack(13, 3).wait(T_MS)
    assert tester.acked == [(0, A), (0, 13)]
    assert tester.timed_out == [(0, B)]


def test_a_reset_keeps_a_root_alive(tester):
    tester.init(A, 1)
    for _ in range(5):
        tester.wait(T_MS - 500).reset(A)
    assert tester.timed_out == []
    tester.wait(T_MS - 500).ack(A, 1)
    assert tester.acked == [(0, A)]


def test_a_reset_that_stops_lets_the_root_time_out(tester):
    tester.init(A, 1).wait(2000).reset(A).wait(T_MS - 10)
    assert tester.timed_out == []
    assert tester.wait(1400).timed_out == [(0, A)]


def test_a_root_that_resets_keep_alive_is_timed_out_at_half_the_retention():
    tester = Tester(AgeLimits.of_seconds(3, 30, retention_s=60)).observe().expire().init(A, 1)
    while not tester.timed_out and tester.now_ms < START_MS + 100_000:
        tester.wait(1000).reset(A)
    assert 30_000 <= tester.now_ms - START_MS <= 32_000


def test_an_orphan_is_kept_until_its_own_timeout_and_gets_no_result(tester):
    tester.ack(A, 1).wait(29_000)
    assert tester.partition.table.orphans == 1
    tester.wait(4000)
    assert tester.partition.table.orphans == 0
    assert tester.partition.table.dropped_orphans == 1
    assert tester.timed_out == []


def test_a_root_counts_its_age_from_its_init_not_from_its_first_ack(tester):
    tester.ack(A, 1).wait(10_000).init(A, 1, 2).wait(T_MS - 10)
    assert tester.timed_out == []
    assert tester.wait(1400).timed_out == [(0, A)]


def test_a_root_that_failed_before_its_init_is_dropped_as_an_orphan(tester):
    tester.fail(A).wait(35_000)
    assert len(tester.partition.table) == 0
    tester.init(A, 1)
    assert tester.failed == []


def test_timeouts_can_be_turned_off_and_the_life_limit_stays():
    tester = Tester(AgeLimits(inf, inf, 50_000)).observe().expire().init(A, 1).ack(B, 1).wait(49_000, 500)
    assert tester.timed_out == []
    assert len(tester.partition.table) == 2
    assert tester.wait(3000).timed_out == [(0, A)]
    assert len(tester.partition.table) == 0


def test_with_a_message_timeout_of_0_every_root_ends_at_half_the_retention():
    tester = (
        Tester(AgeLimits.of_seconds(0, 30, retention_s=100)).observe().expire().init(A, 1).wait(49_000, 500)
    )
    assert tester.timed_out == []
    assert tester.partition.cut == (0, 0)
    assert tester.wait(3000).timed_out == [(0, A)]
    assert tester.partition.cut == tester.partition.positions


def test_with_timeouts_off_a_leap_holds_nothing_back_for_longer_than_a_life():
    tester = Tester(AgeLimits.of_seconds(0, 30, retention_s=100)).observe().expire().init(A, 1)
    tester.now_ms += 1_000_000
    assert tester.observe().expire().timed_out == []
    assert tester.wait(51_000).timed_out == [(0, A)]


def test_timeouts_can_be_turned_off_and_on_again_for_what_is_pending(tester):
    tester.init(A, 1).partition.change_limits(AgeLimits.of_seconds(0, 30, 600))
    assert tester.wait(10_000).timed_out == []
    tester.partition.change_limits(LIMITS)
    assert tester.wait(100).timed_out == [(0, A)]


def test_nothing_is_timed_out_before_log_time_is_known():
    tester = Tester(LIMITS).init(A, 1)
    tester.now_ms += 100_000
    assert tester.expire().timed_out == []


def test_an_acker_away_for_ten_timeouts_times_out_nothing_that_was_acked_meanwhile():
    writer = Tester(LIMITS, eager=False)
    for root in range(1, 1001):
        writer.now_ms += 30
        writer.init(root, root).ack(max(root - 50, 1), max(root - 50, 1))
    for root in range(951, 1001):
        writer.now_ms += 30
        writer.ack(root, root)
    writer.now_ms += 10 * T_MS
    inits = acks = 0
    while inits < 1000 or acks < len(writer.ack_log):
        inits, acks = min(inits + 170, 1000), min(acks + 100, len(writer.ack_log))
        writer.fold(inits, acks).observe().expire()
    writer.wait(2 * T_MS)
    assert writer.timed_out == []
    assert len({root for _, root in writer.acked}) == 1000


def test_nothing_times_out_when_a_hanging_transaction_releases_a_partition(tester):
    """The ack topic's position stops below the high watermark, so log time stands still."""
    for root in range(1, 11):
        tester.init(root, root)
    tester.eager = False
    for root in range(1, 11):
        tester.now_ms += 100
        tester.ack(root, root)
    tester.wait(20 * T_MS)
    assert tester.timed_out == []
    tester.fold_all().wait(100)
    assert tester.timed_out == []
    assert len(tester.acked) == 10


def test_after_an_outage_the_workers_get_as_long_as_it_was_before_anything_times_out(tester):
    tester.init(A, 1).wait(500)
    tester.now_ms += 100_000
    tester.observe().expire()
    assert tester.timed_out == []
    tester.wait(T_MS - 200)
    assert tester.timed_out == []
    tester.ack(A, 1).wait(10 * T_MS)
    assert tester.acked == [(0, A)]
    assert tester.timed_out == []


def test_after_an_outage_what_is_not_acked_times_out_once_that_time_is_over(tester):
    tester.init(A, 1).wait(500)
    tester.now_ms += 100_000
    tester.observe().expire().wait(T_MS + 500)
    assert tester.timed_out == [(0, A)]


def test_a_leap_while_catching_up_also_delays_timeouts():
    writer = Tester(LIMITS, eager=False).init(A, 1).init(B, 1).ack(B, 0).ack(B, 0)
    writer.now_ms += 100_000
    writer.init(20, 0).init(21, 0).ack(20, 0).ack(20, 0)
    writer.now_ms += 200
    writer.ack(A, 1)
    writer.fold(2, 2).expire().fold(4, 4).expire()
    assert writer.timed_out == []
    writer.fold(4, 5).expire()
    assert (0, A) in writer.acked


def test_changed_limits_apply_to_what_is_pending(tester):
    tester.init(A, 1).wait(1500)
    tester.partition.change_limits(AgeLimits.of_seconds(1, 30, 600))
    assert tester.wait(100).timed_out == [(0, A)]


def test_limits_come_from_the_topology_and_a_leap_is_a_tenth_of_the_timeout_or_1_s():
    assert AgeLimits.of_seconds(30, 300, 21_600) == AgeLimits(30_000, 300_000, 10_800_000)
    assert [AgeLimits(ms, 10 * ms, inf).leap_ms for ms in (1000, 10_000, 30_000)] == [1000, 1000, 3000]


def test_the_clock_of_one_partition_survives_ticks_beyond_32_bits():
    tester = Tester(LIMITS)
    tester.now_ms = (2**32 - 100) * 10
    tester.observe().expire().init(A, 1).wait(T_MS - 10)
    assert tester.timed_out == []
    assert tester.wait(1400).timed_out == [(0, A)]


@pytest.mark.parametrize(("timeout_ms", "hold_ms"), [(400, 200), (1000, 650), (30_000, 28_750), (inf, inf)])
def test_an_orphan_holds_the_cut_for_a_timeout_less_a_bucket_and_a_scan_interval(timeout_ms, hold_ms):
    assert AgeLimits(timeout_ms, 10 * timeout_ms, inf).hold_ms == hold_ms


def test_the_oldest_pending_root_is_reported_with_an_age_that_is_never_negative():
    tester = Tester(LIMITS).init(A, 1)
    assert tester.partition.oldest_pending(9) == [(0.0, A)]
    assert tester.observe().wait(1500).partition.oldest_pending(9) == [(1.5, A)]
    assert Tester(LIMITS).observe().partition.oldest_pending(9) == []


def test_after_a_truncation_a_clock_keeps_its_time_and_awaits_no_lost_end():
    clock = TopicClock(5)
    clock.observe(Watermark(wall_ms=1000, high=5))
    clock.observe(Watermark(wall_ms=2000, high=9))
    clock.go_back(3)
    assert (clock.next_offset, clock.time_ms) == (3, 1000)
    clock.observe(Watermark(wall_ms=3000, high=3))
    assert clock.time_ms == 3000
