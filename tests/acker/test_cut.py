"""The cut: it never passes the first record of an entry, never goes back, and reaches the end when quiet."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acker.tester import Tester
from acktree.acker.cut import BUCKET_MS, BirthBuckets, Positions
from acktree.acker.expiry import Limits
from acktree.acker.kernels import BIRTH_BUCKETS

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


def test_an_orphan_holds_the_cut_too():
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
    tester = Tester(Limits.of_seconds(3, 30, 600)).observe().expire().init(A, 1)
    for _ in range(5):
        tester.wait(2000).reset(A)
    assert tester.partition.cut == (0, 0)
    assert tester.timed_out == []


def test_the_cut_moves_on_from_bucket_to_bucket():
    tester = Tester()
    for root in range(1, 6):
        tester.init(root, 1)
        tester.now_ms += BUCKET_MS
    cuts = []
    for root in range(1, 6):
        cuts.append(tester.partition.cut.inits)
        tester.ack(root, 1)
    assert cuts == [0, 1, 2, 3, 4]


def test_a_timeout_lets_the_cut_go_on():
    tester = Tester(Limits.of_seconds(3, 30, 600)).observe().expire().init(A, 1).wait(4500)
    assert tester.timed_out == [(0, A)]
    assert tester.partition.cut == (1, 0)


def test_when_all_birth_buckets_are_in_use_the_newest_stays_open():
    counts = np.ones(BIRTH_BUCKETS, np.int32)
    births = BirthBuckets(counts, Positions(0, 0))
    numbers = [births.open(number * BUCKET_MS, Positions(number, number), 0) for number in range(20_000)]
    assert max(numbers) == BIRTH_BUCKETS - 2
    assert births.cut(Positions(20_000, 20_000)) == (0, 0)
    counts[0] = 0
    assert births.cut(Positions(20_000, 20_000)) == (1, 1)
    assert births.open(20_000 * BUCKET_MS, Positions(20_000, 20_000), 0) == BIRTH_BUCKETS - 1


def test_buckets_that_are_done_are_forgotten():
    tester = Tester()
    for root in range(1, 50):
        tester.now_ms += BUCKET_MS
        tester.init(root, 1).ack(root, 1)
    assert tester.partition._births.oldest == 0


def test_outlived_counts_only_buckets_whose_last_birth_is_long_ago():
    births = BirthBuckets(np.ones(BIRTH_BUCKETS, np.int32), Positions(0, 0))
    for number in range(4):
        births.open(number * BUCKET_MS, Positions(number, number), latest_ms=1000 * number)
    assert [births.outlived(before) for before in (0, 1, 1000, 1001, 99_000)] == [0, 1, 1, 2, 4]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 300)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_the_cut_lies_below_the_first_record_of_every_entry_and_never_goes_back(events):
    tester, first, before = Tester(), {}, Positions(0, 0)
    for root, kind, pause_ms in events:
        tester.now_ms += pause_ms
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
    tester = Tester(Limits.of_seconds(30, 300, 6000)).observe()
    assert tester.partition.oldest_age_s == 0
    tester.init(A, 1).wait(1000).init(B, 1).wait(500)
    assert tester.partition.oldest_age_s == 1.5
    assert tester.reset(A).partition.oldest_age_s == 1.5
    assert tester.ack(A, 1).partition.oldest_age_s == 0.5
    assert tester.ack(B, 1).partition.oldest_age_s == 0


def test_bucket_numbers_go_round_and_round():
    counts = np.zeros(BIRTH_BUCKETS, np.int32)
    births = BirthBuckets(counts, Positions(0, 0))
    for number in range(2 * BIRTH_BUCKETS + 10):
        assert births.open(number * BUCKET_MS, Positions(number, number), 0) == number
        counts[(number - 1) % BIRTH_BUCKETS], counts[number % BIRTH_BUCKETS] = 0, 1
        assert births.cut(Positions(10**9, 10**9)) == (number, number)


def test_outlived_counts_from_the_oldest_bucket_on_and_stops_at_the_first_that_is_young():
    births = BirthBuckets(np.ones(BIRTH_BUCKETS, np.int32), Positions(0, 0))
    for number, latest_ms in enumerate([0, 5000, 1000]):
        births.open(number * BUCKET_MS, Positions(number, number), latest_ms)
    assert births.outlived(1001) == 1


def test_a_bucket_stays_open_for_its_time_and_no_longer():
    births = BirthBuckets(np.ones(BIRTH_BUCKETS, np.int32), Positions(0, 0))
    walls = (300, 549, 550, 799, 800)
    assert [births.open(wall, Positions(0, 0), 0) for wall in walls] == [1, 1, 2, 2, 3]
    assert BUCKET_MS == 250
