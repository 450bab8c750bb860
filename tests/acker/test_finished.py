"""Late messages: messages of a root after its result are counted, make no orphan and hold no cut."""

import random
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker.test_fold_properties import deliver, grow_tree
from acker.tester import SEED, Tester, entries
from acktree.acker.folding.cut import BUCKET_MS
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.finished import BUFFERED_ROOTS, MAX_FINISHED, FinishedRoots
from acktree.acker.folding.table import Table
from acktree.acker.kernels.finished_roots import add_finished, is_finished, is_nearly_full
from acktree.acker.kernels.slots import BUFFERED, COUNTS, FINISHED
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import Ack, AckInit
from hypothesis_profiles import examples

A = 11
LIMITS = AgeLimits.of_seconds(message_s=3, orphan_s=30, retention_s=600)
LATE = {
    "ack": lambda tester: tester.ack(A, 1),
    "fail": lambda tester: tester.fail(A),
    "reset": lambda tester: tester.reset(A),
}
RESULTS = {
    "acked": lambda tester: tester.init(A, 1).ack(A, 1),
    "acked at once": lambda tester: tester.init(A),
    "acked by its init": lambda tester: tester.ack(A, 1).init(A, 1),
    "failed": lambda tester: tester.init(A, 1).fail(A),
    "failed by its init": lambda tester: tester.fail(A).init(A, 1),
    "timed out": lambda tester: tester.init(A, 1).wait(4500),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
@pytest.mark.parametrize("finish", RESULTS.values(), ids=RESULTS)
def test_messages_after_the_result_make_no_orphan_and_hold_no_cut(finish, late):
    tester = Tester(LIMITS).observe().expire()
    finish(tester)
    results = (tester.acked, tester.failed, tester.timed_out)
    assert sum(map(len, results)) == 1
    late(tester)
    table = tester.partition.table
    assert (table.late, len(table)) == (1, 0)
    assert tester.partition.cut == tester.partition.positions
    assert sum(map(len, results)) == 1


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
@pytest.mark.parametrize("roots", [1, BUFFERED_ROOTS - 1, BUFFERED_ROOTS, BUFFERED_ROOTS + 1, 100])
def test_messages_after_the_result_in_the_same_batch_are_late(roots, late):
    tester = Tester(LIMITS, eager=False)
    pairs = [(root, 1) for root in range(A, A + roots)]
    tester.init_record(pairs).ack_record(acks=pairs)
    late(tester)
    table = tester.fold_all().partition.table
    assert (len(tester.acked), table.late, len(table)) == (roots, 1, 0)


def test_a_second_ack_in_the_record_that_finishes_the_root_is_late():
    tester = Tester(LIMITS).init(A, 1).ack_record(acks=[(A, 1), (A, 1), (A, 2)])
    assert (tester.acked, tester.partition.table.late, len(tester.partition.table)) == ([(0, A)], 2, 0)


def test_an_init_after_the_result_starts_a_new_tree():
    """A root id comes back after 16 attempts or 255 runs: that emission gets its result, too."""
    tester = Tester(LIMITS).init(A, 1).ack(A, 1).init(A, 2).ack(A, 2)
    assert tester.acked == [(0, A), (0, A)]
    assert tester.partition.table.late == 0


def test_a_dropped_orphan_is_not_remembered_as_finished():
    tester = Tester(LIMITS).observe().expire().ack(A, 1).wait(33_000)
    assert tester.partition.table.dropped_orphans == 1
    assert tester.ack(A, 1).partition.table.orphans == 1


def test_finished_roots_are_remembered_for_one_to_two_orphan_timeouts():
    tester = Tester(LIMITS).observe().expire().wait(20_000).init(A, 1).ack(A, 1)
    assert tester.wait(29_000).ack(A, 1).partition.table.late == 1
    assert tester.wait(32_000).ack(A, 1).partition.table.late == 1
    assert tester.partition.table.orphans == 1


def fold_and_ack(table, roots):
    pairs = entries((root, 1) for root in roots)
    table.fold_inits(decode_init_batch([encode_ack_init(AckInit(0, 1, pairs))]), np.zeros(1, np.int64), 0)
    table.fold_acks(decode_ack_batch([encode_ack(Ack("b", 1, pairs))]), np.zeros(1, np.int64), 0)
    assert len(table) == 0


def count_late(table, roots):
    before = table.late
    pairs = entries((root, 1) for root in roots)
    table.fold_acks(decode_ack_batch([encode_ack(Ack("b", 1, pairs))]), np.zeros(1, np.int64), 0)
    return table.late - before


@pytest.fixture(scope="module")
def small():
    """Sets that begin so small that a test need not finish thousands of roots."""
    with patch("acktree.acker.folding.finished.LEAST_PLACES", 16):
        yield


@given(st.lists(st.integers(1, 45), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
@examples(60)
def test_the_latest_finished_roots_are_remembered_however_they_are_batched(small, sizes, seed):
    table, roots = Table(seed, max_finished=100), list(range(1, sum(sizes) + 1))
    at = 0
    for size in sizes:
        fold_and_ack(table, roots[at : at + size])
        at += size
    latest = roots[-100:]
    assert count_late(table, latest) == len(latest)


@pytest.mark.parametrize("size", [1, 7])
def test_a_quarter_of_the_finished_set_stays_empty_so_that_every_search_is_short(small, size):
    table = Table(SEED)
    for start in range(1, 500, size):
        fold_and_ack(table, range(start, start + size))
        assert table.counts[FINISHED] <= 0.75 * len(table.finished.young)


def test_the_number_of_remembered_roots_is_bounded(small):
    table = Table(SEED, max_finished=100)
    for start in range(1, 5001, 25):
        fold_and_ack(table, range(start, start + 25))
    assert table.finished.nbytes <= 16 * 4 * 100 * 2
    assert count_late(table, range(1, 51)) == 0


def test_a_full_set_accepts_no_more_and_ends_every_search():
    table = Table(SEED)
    table.finished.young = np.zeros(4, np.uint64)
    for root in range(1, 10):
        add_finished(table.state, np.uint64(root))
    assert [is_finished(table.state, np.uint64(root)) for root in range(1, 10)] == [True] * 3 + [False] * 6


def test_buffered_roots_count_towards_the_size_of_the_set():
    table = Table(SEED)
    table.finished.young = np.zeros(16, np.uint64)
    for root in range(1, 9):
        add_finished(table.state, np.uint64(root))
    assert table.state.counts[BUFFERED] == 8
    assert [bool(is_nearly_full(table.state, rows)) for rows in (4, 5)] == [False, True]


def test_a_rotation_clears_only_the_older_set():
    counts = np.zeros(COUNTS, np.int64)
    finished = FinishedRoots(counts, np.uint64(SEED))
    finished.young[5], counts[FINISHED] = 77, 1
    finished.rotate()
    assert (77 in finished.old, 77 in finished.young, counts[FINISHED]) == (True, False, 0)
    finished.rotate()
    assert 77 not in finished.old


def test_a_finished_set_doubles_once_three_quarters_are_full():
    finished, places = FinishedRoots(np.zeros(COUNTS, np.int64), np.uint64(SEED)), []
    finished.young = np.zeros(1024, np.uint64)
    for rows in (768, 769, 10_000):
        finished.reserve(rows)
        places.append(len(finished.young))
    assert places == [1024, 2048, 20_000]


def test_the_memory_of_finished_roots_is_that_of_both_sets_and_as_documented():
    finished = FinishedRoots(np.zeros(COUNTS, np.int64), np.uint64(SEED))
    finished.reserve(5000)
    young = finished.nbytes - 8 * (1 + BUFFERED_ROOTS)
    assert young == 8 * len(finished.young) >= 8 * 5000
    finished.rotate()
    assert finished.nbytes == young + 8 * (len(finished.young) + BUFFERED_ROOTS)
    docs = " ".join((Path(__file__).parents[2] / "docs" / "acker.md").read_text().split())
    assert f"at least the latest {MAX_FINISHED:,}; and none" in docs


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
@examples(100)
def test_late_messages_lose_no_tree_in_a_crash_and_otherwise_hold_no_cut(draw, trees, may_crash):
    edge_source = random.Random(draw.random()).getrandbits
    sent = {root: grow_tree(draw, root, lambda: edge_source(64) | 1) for root in range(1, trees + 1)}
    stream = [(root, message) for root, messages in sent.items() for message in messages]
    draw.shuffle(stream)
    tester, committed, crashes = Tester(LIMITS), (0, 0), 0
    committed = tester.partition.cut
    for root, message in stream:
        tester.now_ms += draw.choice([0, 100, BUCKET_MS])
        deliver(tester, root, message)
        for _, done in draw.sample(tester.acked, min(len(tester.acked), 2)):
            late = draw.choice([again for again in sent[done] if again[0] == "ack"] or [("ack", [1])])
            deliver(tester, done, late)
        if draw.random() < 0.3:
            assert tester.partition.cut >= committed
            committed = tester.partition.cut
        if may_crash and draw.random() < 0.2:
            tester.crash(committed)
            crashes += 1
    assert {root for _, root in tester.acked} == set(sent)
    if not crashes:
        assert tester.partition.cut == tester.partition.positions
        assert len(tester.acked) == len(sent)
