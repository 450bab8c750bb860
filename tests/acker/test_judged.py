"""Late messages: what comes for a root after its verdict is counted, makes no orphan and holds no cut."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker.test_fold_properties import deliver, grow_tree
from acker.tester import SEED, Tester, entries
from acktree.acker import kernels
from acktree.acker.cut import BUCKET_MS
from acktree.acker.expiry import Limits
from acktree.acker.judged import Judged
from acktree.acker.table import Table
from acktree.schemas.batch_codec import decode_ack_batch, decode_init_batch
from acktree.schemas.codec import Ack, AckInit, encode_ack, encode_ack_init

A = 11
LIMITS = Limits.of_seconds(message_s=3, orphan_s=30, retention_s=600)
LATE = {
    "ack": lambda tester: tester.ack(A, 1),
    "fail": lambda tester: tester.fail(A),
    "reset": lambda tester: tester.reset(A),
}
VERDICTS = {
    "acked": lambda tester: tester.init(A, 1).ack(A, 1),
    "acked at once": lambda tester: tester.init(A),
    "acked by its init": lambda tester: tester.ack(A, 1).init(A, 1),
    "failed": lambda tester: tester.init(A, 1).fail(A),
    "failed by its init": lambda tester: tester.fail(A).init(A, 1),
    "timed out": lambda tester: tester.init(A, 1).wait(4500),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
@pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS)
def test_what_comes_after_a_verdict_is_no_orphan_and_holds_no_cut(verdict, late):
    tester = Tester(LIMITS).observe().expire()
    verdict(tester)
    told = (tester.acked, tester.failed, tester.timed_out)
    assert sum(map(len, told)) == 1
    late(tester)
    table = tester.partition.table
    assert (table.late, len(table)) == (1, 0)
    assert tester.partition.cut == tester.partition.positions
    assert sum(map(len, told)) == 1


def test_an_init_after_the_verdict_makes_a_root_of_its_own():
    """A root id comes back after 16 attempts or 255 runs: that emission gets its verdict, too."""
    tester = Tester(LIMITS).init(A, 1).ack(A, 1).init(A, 2).ack(A, 2)
    assert tester.acked == [(0, A), (0, A)]
    assert tester.partition.table.late == 0


def test_an_orphan_that_was_dropped_had_no_verdict():
    tester = Tester(LIMITS).observe().expire().ack(A, 1).wait(33_000)
    assert tester.partition.table.dropped_orphans == 1
    assert tester.ack(A, 1).partition.table.orphans == 1


def test_verdicts_are_remembered_for_an_orphan_timeout_at_least_and_two_at_most():
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


@given(st.lists(st.integers(1, 900), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
@settings(max_examples=40, deadline=None)
def test_the_latest_verdicts_are_remembered_however_they_come(sizes, seed):
    table, roots = Table(seed, max_judged=2000), list(range(1, sum(sizes) + 1))
    at = 0
    for size in sizes:
        fold_and_ack(table, roots[at : at + size])
        at += size
    latest = roots[-2000:]
    assert count_late(table, latest) == len(latest)


def test_what_is_remembered_is_bounded():
    table = Table(SEED, max_judged=2000)
    for start in range(1, 100_001, 500):
        fold_and_ack(table, range(start, start + 500))
    assert table._judged.nbytes <= 16 * 4 * 2000 * 2
    assert count_late(table, range(1, 1001)) == 0


def test_a_set_that_is_full_takes_no_more_and_ends_every_search():
    table = Table(SEED)
    table._judged.young = np.zeros(4, np.uint64)
    for root in range(1, 10):
        kernels._judge(table._state, np.uint64(root))
    assert [kernels._is_judged(table._state, np.uint64(root)) for root in range(1, 10)] == [True] * 3 + [
        False
    ] * 6


def test_turning_forgets_only_the_older_set():
    counts = np.zeros(kernels.COUNTS, np.int64)
    judged = Judged(counts, np.uint64(SEED))
    judged.young[5], counts[kernels.JUDGED] = 77, 1
    judged.turn()
    assert (77 in judged.old, 77 in judged.young, counts[kernels.JUDGED]) == (True, False, 0)
    judged.turn()
    assert 77 not in judged.old


@given(st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_with_late_messages_a_crash_anywhere_loses_no_tree_and_without_one_the_cut_is_the_end(
    draw, trees, may_crash
):
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
