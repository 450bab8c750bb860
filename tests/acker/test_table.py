"""The table's memory and bounds, and the ages it gives of the oldest roots."""

import random
from pathlib import Path

import numpy as np
import pytest

from acker.tester import SEED, Tester, entries
from acktree.acker.folding.finished import BUFFERED_ROOTS
from acktree.acker.folding.reasons import MAX_REASONS, MAX_TEXT
from acktree.acker.folding.table import MAX_ENTRIES, Table
from acktree.acker.kernels.slots import BUCKETS, home_of
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ID, Ack, AckInit, Fail


def fold_records(table, kind, roots_of_records):
    """Fold one batch of records that name these roots in one way."""
    times = np.zeros(len(roots_of_records), np.int64)
    if kind == "inits":
        inits = [AckInit(0, 1, entries((root, 1) for root in roots)) for roots in roots_of_records]
        table.fold_inits(decode_init_batch([encode_ack_init(init) for init in inits]), times, 0)
        return
    none = entries([])
    making = {
        "acks": lambda roots: Ack("b", 1, entries((root, 1) for root in roots)),
        "fails": lambda roots: Ack("b", 1, none, tuple(Fail(root, "") for root in roots)),
        "resets": lambda roots: Ack("b", 1, none, (), np.array(roots, ID)),
    }
    table.fold_acks(
        decode_ack_batch([encode_ack(making[kind](roots)) for roots in roots_of_records]), times, 0
    )


@pytest.mark.parametrize("kind", ["inits", "acks", "fails", "resets"])
def test_the_table_is_at_most_48_bytes_a_root_while_it_grows(kind):
    table = Table(SEED)
    for start in range(1, 5001, 2500):
        fold_records(table, kind, [range(at, at + 100) for at in range(start, start + 2500, 100)])
        assert len(table) == table.folded == start + 2499
        assert (table.nbytes - table.bucket_counts.nbytes) / len(table) <= 48


def test_an_empty_table_is_small_and_reports_all_of_its_memory():
    slots, bucket_counts, finished = 24 * 1024, 4 * 16_384, 8 * (1024 + 1 + BUFFERED_ROOTS)
    assert Table(SEED).nbytes == slots + bucket_counts + finished


def test_the_table_gives_memory_back():
    tester = Tester().init_record((root, 1) for root in range(1, 10_001))
    large = tester.partition.table.nbytes
    tester.ack_record(acks=[(root, 1) for root in range(1, 10_001)])
    assert tester.partition.table.nbytes < large / 2
    tester.partition.table.clear_finished()
    tester.partition.table.clear_finished()
    assert tester.partition.table.nbytes < large / 5


def test_at_the_cap_the_oldest_orphans_are_dropped_first_and_never_a_pending_root():
    tester = Tester(max_entries=100)
    tester.init_record((root, 1) for root in range(1, 61))
    for number in range(60):
        tester.now_ms += 10
        tester.ack(1000 + number, 1)
    table = tester.partition.table
    assert table.pending == 60
    assert table.dropped_orphans == 20
    assert [number for number in range(60) if tester.entry(1000 + number)] == list(range(20, 60))


@pytest.mark.parametrize("kind", ["ack", "fail", "reset"])
def test_at_the_cap_the_older_half_of_the_orphans_is_dropped_whatever_made_them(kind):
    tester = Tester(max_entries=10)
    for gone in range(100, 120):
        tester.ack(gone, 1).init(gone, 1).now_ms += 10
    for root in range(1, 12):
        getattr(tester, kind)(root, *([1] if kind == "ack" else [])).now_ms += 10
    assert [root for root in range(1, 12) if tester.entry(root)] == list(range(6, 12))


def test_a_record_of_many_orphans_frees_as_much_room_as_it_needs():
    tester = Tester(max_entries=100).ack_record(acks=[(root, 1) for root in range(1, 41)])
    tester.now_ms += 10
    tester.ack_record(acks=[(root, 1) for root in range(41, 91)])
    tester.now_ms += 10
    tester.ack_record(acks=[(root, 1) for root in range(101, 181)])
    assert tester.partition.table.refused_orphans == 0
    assert all(tester.entry(root) for root in range(101, 181))
    assert len(tester.partition.table) <= 100


def test_when_pending_roots_fill_the_cap_orphans_are_refused_and_inits_are_not():
    tester = Tester(max_entries=50).init_record((root, 1) for root in range(1, 61))
    tester.ack(1000, 1).fail(1001).reset(1002)
    table = tester.partition.table
    assert (table.pending, table.orphans, table.refused_orphans) == (60, 0, 3)
    tester.init(61, 1)
    assert tester.ack_record(acks=[(root, 1) for root in range(1, 62)]).partition.table.pending == 0
    assert len(tester.acked) == 61


def test_an_empty_record_is_folded_even_if_pending_roots_are_over_the_cap():
    """It needs no room, but one orphan was there to evict, of which half was none."""
    tester = Tester(max_entries=4).ack_record(acks=[(1, 1)])
    tester.init_record((root, 1) for root in range(2, 7)).ack_record()
    assert (tester.partition.table.pending, tester.partition.table.orphans) == (5, 0)


def test_orphans_up_to_the_cap_are_kept():
    tester = Tester(max_entries=1000).ack_record(acks=[(root, 1) for root in range(1, 701)])
    table = tester.ack_record(acks=[(root, 1) for root in range(701, 1001)]).partition.table
    assert (table.orphans, table.dropped_orphans, table.refused_orphans) == (1000, 0, 0)
    table = tester.ack(1001, 1).partition.table
    assert (table.orphans, table.refused_orphans) == (1, 0)


def test_the_cap_and_the_bounds_of_reasons_are_those_of_the_documentation():
    docs = " ".join((Path(__file__).parents[2] / "docs" / "acker.md").read_text().split())
    assert (
        f"such early failures the latest {MAX_REASONS:,} reasons are kept, each cut to {MAX_TEXT:,}" in docs
    )
    assert f"its cap ({MAX_ENTRIES // 10**6} million entries)" in docs


def test_a_table_neither_full_nor_sparse_is_not_copied():
    tester = Tester().init_record((root, 1) for root in range(1, 2001))
    slots = tester.partition.table.slots
    tester.ack_record(acks=[(root, 1) for root in range(1, 401)]).init(9000, 1)
    assert tester.partition.table.slots is slots
    tester = Tester()
    slots = tester.partition.table.slots
    assert tester.init(1, 1).ack(1, 1).partition.table.slots is slots


def test_a_quarter_of_the_slots_stays_empty_so_that_every_search_ends():
    tester = Tester()
    for root in range(1, 1501):
        table = tester.init(root, 1).partition.table
        assert len(table) <= 0.75 * len(table.slots)


def roots_at(slots, table):
    """Return a root for each of these slots, where it belongs."""
    homes = {}
    for root in range(1, 10_000):
        slot = int(home_of(np.uint64(root), table.state.seed, np.uint64(len(table.slots))))
        homes.setdefault(slot, []).append(root)
    return [homes[slot].pop() for slot in slots]


def test_the_oldest_orphan_is_dropped_at_the_cap_wherever_it_is():
    tester = Tester(max_entries=4)
    roots = roots_at([0, 1023, 5, 6, 7], tester.partition.table)
    for root in roots:
        tester.ack(root, 1).now_ms += 10
    assert [tester.entry(root) is None for root in roots] == [True, True, False, False, False]


@pytest.mark.parametrize("order", range(10))
def test_every_root_is_found_after_removals_where_the_table_wraps_around(order):
    tester, source = Tester(), random.Random(order)
    roots = roots_at([1019, 1020, 1020, 1021, 1022, 1022, 1023, 1023, 0, 0, 2, 3], tester.partition.table)
    source.shuffle(roots)
    tester.init_record((root, root) for root in roots)
    source.shuffle(roots)
    while roots:
        root = roots.pop()
        assert tester.ack(root, root).entry(root) is None
        assert [tester.entry(other).value for other in roots] == roots


@pytest.mark.parametrize("seed", [0, 1 << 40, 1 << 63])
def test_random_roots_spread_over_the_table_whatever_the_seed(seed):
    roots, state = np.random.default_rng(5).integers(1, 2**64 - 1, 1000, np.uint64), Table(seed).state
    homes = {int(home_of(root, state.seed, np.uint64(1000))) for root in roots}
    assert len(homes) > 500


def fold_ack(table, root, tick, bucket, **parts):
    record = Ack("b", 1, parts.get("acks", entries([(root, 1)])), (), np.array(parts.get("resets", []), ID))
    table.fold_acks(decode_ack_batch([encode_ack(record)]), np.array([tick]), bucket)


@pytest.mark.parametrize("bucket", [0, 1, BUCKETS // 2, BUCKETS - 1])
@pytest.mark.parametrize("tick", [0, 1, 2**31, 2**32 - 2])
def test_an_entry_keeps_its_birth_and_gets_a_new_age_from_its_init_and_its_resets(bucket, tick):
    table, init = Table(SEED), decode_init_batch([encode_ack_init(AckInit(65_535, 1, entries([(1, 3)])))])
    fold_ack(table, 1, tick, bucket)
    assert table.entry(1) == (1, False, False, 0, bucket, tick)
    table.fold_inits(init, np.array([tick + 1]), 77)
    assert table.entry(1) == (2, True, False, 65_535, bucket, tick + 1)
    fold_ack(table, 1, tick + 2, 78, acks=entries([]), resets=[1])
    assert table.entry(1) == (2, True, False, 65_535, bucket, tick + 2 & 0xFFFFFFFF)


@pytest.mark.parametrize("oldest", [0, 5, BUCKETS - 1])
def test_all_expired_births_are_removed_and_no_others(oldest):
    table = Table(SEED)
    for number in range(4):
        fold_ack(table, 1 + number, 100, (oldest + number) % BUCKETS)
    table.expire(100, oldest_bucket=oldest, expired_buckets=2)
    assert [table.entry(root) is None for root in (1, 2, 3, 4)] == [True, True, False, False]


@pytest.mark.parametrize("oldest", [0, 5, BUCKETS - 1])
def test_orphans_that_were_removed_or_born_later_get_no_new_birth(oldest):
    table, init = Table(SEED), decode_init_batch([encode_ack_init(AckInit(0, 1, entries([(9, 1)])))])
    fold_ack(table, 9, 100, oldest)
    table.fold_inits(init, np.array([100]), oldest)
    for number in range(4):
        fold_ack(table, 1 + number, 100, (oldest + number) % BUCKETS)
    table.renew_orphans(200, 50, oldest, 2, 8200)
    later = [(oldest + 2) % BUCKETS, (oldest + 3) % BUCKETS]
    assert [table.entry(root).bucket for root in (1, 2, 3, 4)] == [8200, 8200, *later]
    assert sorted(np.flatnonzero(table.bucket_counts)) == sorted([8200, *later])
    assert table.bucket_counts.sum() == table.renewed_orphans + 2 == 4


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_scan_returns_the_ages_of_the_oldest_remaining_pending_root_and_orphan(seed):
    tester = Tester(seed=seed)
    table = tester.partition.table
    table.expire(0)
    assert (table.oldest_pending_ticks, table.oldest_orphan_ticks) == (None, None)
    for root in (1, 2, 3, 4):
        tester.init(root, 1).now_ms += 50
        tester.ack(10 + root, 1).now_ms += 50
    table.expire(tester.now_ms // 10, 39, 34)
    assert (table.oldest_pending_ticks, table.oldest_orphan_ticks) == (30, 25)
    assert table.oldest_pending(tester.now_ms // 10, 2) == [(2, 30), (3, 20)]
    assert [root for root, _ in table.oldest_pending(tester.now_ms // 10, 9)] == [2, 3, 4]
    table.expire(tester.now_ms // 10, 0, 0)
    assert (table.oldest_pending_ticks, table.oldest_orphan_ticks) == (None, None)
