"""The fold on the literature's worked examples, one behaviour each; no Kafka, no clock."""

import numpy as np
import pytest

from acker.tester import SEED, Tester, because, entries
from acktree.acker.folding.reasons import MAX_TEXT, UNKNOWN_REASON, Reason
from acktree.acker.folding.table import Table
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import BACK_OFF, NEVER, Ack, AckInit

A, B, C = 0x1111_0000_0000_0001, 0x2222_0000_0000_0002, 2**64 - 1


@pytest.fixture
def tester():
    return Tester()


def test_a_tuple_to_two_bolts_and_both_to_a_third_folds_to_zero(tester):
    tester.init(A, 1, 2).ack(A, 1, 3).ack(A, 2, 4).ack(A, 3)
    assert tester.acked == []
    assert tester.entry(A).value == 4
    tester.ack(A, 4)
    assert tester.acked == [(0, A)]
    assert tester.entry(A) is None


def test_a_chain_is_acked_by_its_last_link(tester):
    tester.init(A, 10).ack(A, 10, 11).ack(A, 11, 12)
    assert not tester.acked
    assert tester.ack(A, 12).acked == [(0, A)]


def test_a_diamond_is_acked_when_the_join_acked_both_its_inputs(tester):
    tester.init(A, 1).ack(A, 1, 2, 3).ack(A, 2, 4).ack(A, 3, 5).ack(A, 4)
    assert not tester.acked
    assert tester.ack(A, 5).acked == [(0, A)]


def test_a_tuple_emitted_twice_anchored_to_the_same_tuple_counts_twice(tester):
    tester.init(A, 1).ack(A, 1, 2, 3).ack(A, 2)
    assert not tester.acked
    assert tester.ack(A, 3).acked == [(0, A)]


def test_a_join_anchored_to_two_roots_belongs_to_both_trees(tester):
    tester.init(A, 1).init(B, 2)
    tester.ack_record(acks=[(A, 1 ^ 7), (B, 2 ^ 8)])
    assert not tester.acked
    tester.ack_record(acks=[(A, 7), (B, 8)])
    assert tester.acked == [(0, A), (0, B)]


def test_the_edge_of_a_child_is_split_between_the_acks_of_its_inputs(tester):
    other, child = 0x5555, 0xABCD
    tester.init(A, 1, 2).ack(A, 1 ^ other).ack(A, 2 ^ child ^ other)
    assert not tester.acked
    assert tester.ack(A, child).acked == [(0, A)]


def test_an_init_of_value_zero_is_acked_immediately(tester):
    assert tester.init(A).acked == [(0, A)]
    assert len(tester.partition.table) == 0


def test_acks_before_their_init_wait_for_it(tester):
    tester.ack(A, 1)
    assert tester.partition.table.orphans == 1
    assert tester.init(A, 1, task=5).acked == [(5, A)]
    assert len(tester.partition.table) == 0


def test_an_orphan_whose_acks_cancel_is_not_acked_without_its_init(tester):
    tester.ack(A, 1).ack(A, 1)
    assert not tester.acked
    assert tester.entry(A).value == 0


def test_a_second_init_cannot_complete_a_tree(tester):
    tester.init(A, 1, 2).ack(A, 1, 2)
    assert tester.acked == [(0, A)]
    tester = Tester().init(A, 1, 2).init(A, 1, 2)
    assert not tester.acked
    assert tester.partition.table.duplicated_inits == 1
    assert tester.ack(A, 1).ack(A, 2).acked == [(0, A)]


def test_a_second_init_in_the_same_record_is_also_ignored(tester):
    tester.init_record([(A, 3), (A, 3)])
    assert not tester.acked
    assert tester.partition.table.duplicated_inits == 1


def test_the_first_init_sets_the_spout_task(tester):
    tester.init(A, 1, task=7).init(A, 1, task=9)
    assert tester.ack(A, 1).acked == [(7, A)]


def test_every_spout_task_gets_its_own_results(tester):
    tester.init(A, 1, task=0).init(B, 1, task=65_535).ack_record(acks=[(B, 1), (A, 1)])
    assert tester.acked == [(65_535, B), (0, A)]


def test_a_fail_is_reported_with_its_task_and_reason(tester):
    tester.init(A, 1, task=2).fail(A, "no such word", task="count-1")
    assert tester.failed == [(2, A, because("no such word", "count-1"))]
    assert len(tester.partition.table) == 0


def test_a_fail_before_its_init_is_remembered_with_its_reason(tester):
    tester.fail(A, "early").ack(A, 1)
    assert not tester.failed
    tester.init(A, 1, task=4)
    assert tester.failed == [(4, A, because("early"))]
    assert not tester.acked
    assert len(tester.partition.table) == 0


def test_the_first_of_two_early_fails_gives_the_reason(tester):
    tester.fail(A, "first").fail(A, "second").init(A, 1)
    assert tester.failed == [(0, A, because("first"))]


@pytest.mark.parametrize("retry_after_ms", [NEVER, 0, 5000])
def test_a_fail_that_says_when_to_retry_is_reported_with_it_once(tester, retry_after_ms):
    tester.init(A, 1, task=2).fail_with_retry(A, retry_after_ms, "poison", "count-1")
    assert tester.failed == [(2, A, Reason("count-1", "poison", retry_after_ms))]
    assert tester.partition.table.late == 0


def test_an_early_fail_that_says_when_to_retry_is_remembered_with_it(tester):
    tester.fail_with_retry(A, NEVER, "poison").ack(A, 1).init(A, 1, task=4)
    assert tester.failed == [(4, A, Reason("bolt-0", "poison", NEVER))]
    assert len(tester.partition.table) == 0


def test_the_first_of_several_fails_says_when_to_retry(tester):
    tester.init(A, 1).fail(A, "plain").fail_with_retry(A, NEVER)
    tester.init(B, 1).fail_with_retry(B, 500).fail_with_retry(B, NEVER).fail(B)
    tester.fail(C, "plain").fail_with_retry(C, NEVER).init(C, 1)
    assert [(root, reason.retry_after_ms) for _, root, reason in tester.failed] == [
        (A, BACK_OFF),
        (B, 500),
        (C, BACK_OFF),
    ]


def test_a_fail_after_early_acks_is_also_remembered(tester):
    tester.ack(A, 1).fail(A, "late").init(A, 1)
    assert tester.failed == [(0, A, because("late"))]


def test_a_fail_in_the_record_of_the_last_ack_wins(tester):
    tester.init(A, 1).ack_record(acks=[(A, 1)], fails=[(A, "wins")])
    assert not tester.acked
    assert [root for _, root, _ in tester.failed] == [A]


def test_a_fail_after_the_ack_comes_too_late(tester):
    tester.init(A, 1).ack(A, 1).fail(A)
    assert tester.acked == [(0, A)]
    assert not tester.failed


def test_a_fail_in_a_later_record_of_one_batch_does_not_beat_the_ack():
    tester = Tester(eager=False).init(A, 1).fold_all()
    tester.ack(A, 1).fail(A).fold_all()
    assert tester.acked == [(0, A)]
    assert not tester.failed


def test_a_failed_root_is_reported_once(tester):
    tester.init(A, 1).fail(A).fail(A)
    assert len(tester.failed) == 1


def test_a_long_failure_reason_is_truncated(tester):
    tester.init(A, 1).fail(A, "x" * 5000)
    assert tester.failed[0][2].text == "x" * MAX_TEXT


def test_reasons_that_are_not_ascii_are_kept(tester):
    tester.init(A, 1).fail(A, "größer als 日", task="zähler-1")
    assert tester.failed == [(0, A, because("größer als 日", "zähler-1"))]


def test_early_reasons_are_bounded_and_the_failure_itself_is_kept(monkeypatch):
    monkeypatch.setattr("acktree.acker.folding.reasons.MAX_REASONS", 2)
    tester = Tester().fail(A, "a").fail(B, "b").fail(C, "c").init(A, 1).init(C, 1)
    assert [(root, reason) for _, root, reason in tester.failed] == [(A, UNKNOWN_REASON), (C, because("c"))]


def test_a_rejected_record_does_not_stop_the_fold_of_later_ones():
    table, times, no_record = Table(SEED), np.zeros(3, np.int64), b"no record"
    inits = [encode_ack_init(AckInit(0, 1, entries([(root, 1)]))) for root in (A, B)]
    table.fold_inits(decode_init_batch([inits[0], no_record, inits[1]]), times, 0)
    assert table.pending == 2
    acks = [encode_ack(Ack("bolt-0", 1, entries([(root, 1)]))) for root in (A, B)]
    assert table.fold_acks(decode_ack_batch([acks[0], no_record, acks[1]]), times, 0).acked.tolist() == [A, B]


def test_late_fails_take_no_room_among_the_reasons_of_early_ones(monkeypatch):
    monkeypatch.setattr("acktree.acker.folding.reasons.MAX_REASONS", 1)
    tester = Tester().fail(A, "early").init(B, 1).ack(B, 1).fail(B, "late").init(A, 1)
    assert tester.failed == [(0, A, because("early"))]


def test_a_root_may_occur_several_times_in_one_record(tester):
    tester.init(A, 1, 2).ack_record(acks=[(A, 1), (A, 2)], resets=[A, A])
    assert tester.acked == [(0, A)]
    assert tester.partition.table.late == 2


def test_only_the_unacked_one_of_three_roots_stays_pending(tester):
    tester.init(A, 1).init(B, 2).init(C, 3).ack(A, 1).ack(C, 3)
    assert tester.acked == [(0, A), (0, C)]
    assert tester.entry(B).value == 2


def test_a_reset_of_an_unknown_root_makes_an_orphan_that_its_init_takes_over(tester):
    tester.reset(A)
    assert tester.partition.table.orphans == 1
    tester.init(A, 1)
    assert (tester.partition.table.pending, tester.partition.table.orphans) == (1, 0)
    assert tester.ack(A, 1).acked == [(0, A)]


def test_the_number_of_pending_roots_and_orphans_is_kept(tester):
    table = tester.init(A, 1).ack(B, 1).fail(C).partition.table
    assert (len(table), table.pending, table.orphans) == (3, 1, 2)
    tester.init(B, 2).fail(A)
    assert (len(table), table.pending, table.orphans) == (2, 1, 1)


def test_folded_counts_entries_of_all_kinds(tester):
    tester.init(A, 1).ack_record(acks=[(A, 2), (B, 3)], fails=[(C, "")], resets=[A])
    assert tester.partition.table.folded == 5


@pytest.mark.parametrize("root", [1, 2, 3, 2**32, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
def test_any_root_id_is_folded_alike(tester, root):
    assert tester.init(root, 1).ack(root, 1).acked == [(0, root)]
