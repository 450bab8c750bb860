"""When the table is scanned for expired entries: not before one can exist, and not too late."""

from math import inf

import pytest

from acker.tester import Tester
from acktree.acker.folding.expiry import AgeLimits, Expiry

T_MS = 3000
LIMITS = AgeLimits.of_seconds(message_s=3, orphan_s=30, retention_s=600)
A, B = 11, 12


def test_many_simultaneous_timeouts_are_all_reported(monkeypatch):
    monkeypatch.setattr("acktree.acker.folding.table.EXPIRE_ROWS", 10)
    tester = Tester(LIMITS).observe().expire()
    tester.init_record((root, 1) for root in range(1, 2001))
    tester.wait(T_MS + 1500)
    assert sorted(root for _, root in tester.timed_out) == list(range(1, 2001))
    assert len(tester.partition.table) == 0


def test_scans_are_no_more_frequent_than_the_bound_requires():
    expiry = Expiry(LIMITS)
    expiry.records_folded(0)
    expiry.advance(3001)
    assert expiry.is_due(3001)
    expiry.scanned(0, inf)
    expiry.advance(3001 + 49)
    assert not expiry.is_due(3001 + 49)
    expiry.advance(3001 + 50)
    assert expiry.is_due(3001 + 50)


def advance(expiry, start_ms, end_ms):
    for now_ms in [*range(start_ms, end_ms, 500), end_ms]:
        expiry.advance(now_ms)
    return expiry.is_due(end_ms)


@pytest.mark.parametrize(("pending_ms", "orphan_ms", "due_ms"), [(9000, inf, 12_000), (inf, 9000, 39_000)])
def test_no_scan_is_due_before_the_oldest_remaining_entry_can_expire(pending_ms, orphan_ms, due_ms):
    expiry = Expiry(LIMITS)
    expiry.advance(10_000)
    expiry.scanned(pending_ms, orphan_ms)
    assert not advance(expiry, 10_000, due_ms)
    assert advance(expiry, due_ms, due_ms + 1)


def test_unchanged_limits_cause_no_scan():
    expiry = Expiry(LIMITS)
    expiry.advance(10_000)
    expiry.scanned(inf, inf)
    expiry.change(AgeLimits(LIMITS.message_ms, LIMITS.orphan_ms, LIMITS.life_ms))
    assert not advance(expiry, 10_000, 12_000)


def test_an_empty_table_is_not_scanned():
    expiry = Expiry(LIMITS)
    expiry.advance(10**9)
    expiry.scanned(inf, inf)
    expiry.advance(10**9 + 500)
    assert not expiry.is_due(10**9 + 500)


@pytest.mark.parametrize(("timeout_ms", "scan_interval_ms"), [(1500, 100), (15_000, 500), (60_000, 1000)])
def test_the_scan_interval_is_a_thirtieth_of_the_timeout_within_100_ms_and_1_s(timeout_ms, scan_interval_ms):
    assert AgeLimits(timeout_ms, 10 * timeout_ms, inf).scan_interval_ms == scan_interval_ms


def look(tester, ms):
    """Let time pass and return whether there was a scan."""
    tester.now_ms += ms
    return tester.observe().partition.expire(tester.now_ms) is not None


def test_the_table_is_not_scanned_while_all_entries_are_young():
    tester = Tester(LIMITS).observe().init(A, 1).ack(B, 1)
    assert [look(tester, 500) for _ in range(3)] == [False] * 3


def test_a_root_kept_young_by_resets_causes_no_scan_after_each_pause():
    tester = Tester(LIMITS).observe().init(A, 1)
    looks = 0
    for _ in range(20):
        looks += look(tester, 500)
        tester.reset(A)
    assert looks <= 4


def test_a_younger_root_does_not_time_out_late_because_of_an_older_one():
    tester = Tester(AgeLimits.of_seconds(30, 300, 21_600)).observe().init(A, 1).wait(20_000, 1000).init(B, 1)
    assert tester.wait(30_000, 1000).timed_out == [(0, A)]
    assert tester.wait(4000, 1000).timed_out == [(0, A), (0, B)]


def test_a_younger_orphan_is_also_dropped_in_time():
    tester = Tester(AgeLimits(inf, 30_000, inf)).observe().ack(A, 1).wait(20_000, 1000).ack(B, 1)
    assert tester.wait(29_000, 1000).partition.table.orphans == 1
    assert tester.wait(2000, 1000).partition.table.orphans == 0


@pytest.mark.parametrize(("leap_ms", "held_ms"), [(1000, 0), (1001, 1001), (2000, 2000), (100_000, T_MS)])
def test_a_leap_delays_timeouts_by_its_length_up_to_a_message_timeout(leap_ms, held_ms):
    expiry = Expiry(LIMITS)
    expiry.advance(10_000)
    expiry.records_folded(0)
    expiry.advance(10_000 + leap_ms)
    end_ms = 10_000 + leap_ms + held_ms
    assert advance(expiry, 10_000 + leap_ms, end_ms - 1) == (not held_ms)
    assert advance(expiry, end_ms - 1, end_ms)


def test_a_reset_that_is_folded_before_the_init_counts():
    tester = Tester(LIMITS, eager=False).observe().init(A, 1).init(B, 1)
    tester.now_ms += 900
    tester.reset(A)
    tester.fold(0, 1).fold(2, 1)
    assert tester.wait(2500, 500).timed_out == [(0, B)]
    assert tester.wait(1500, 500).timed_out == [(0, B), (0, A)]
