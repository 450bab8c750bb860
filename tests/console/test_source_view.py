"""Where a spout's records stand, from its commit, the results since, and the open roots."""

import numpy as np
from pyroaring import BitMap64

from acktree.console.view.cluster import CommittedOffset
from acktree.console.view.first_emissions import Emissions
from acktree.console.view.open_roots import OPEN
from acktree.console.view.source_view import (
    EMITTED,
    IN_FLIGHT,
    OVERDUE,
    WAITING,
    SlotView,
    add_open,
    add_results,
)
from acktree.schemas.control_records import Absent, Cause, Failure, Result, Span
from acktree.schemas.ids import generation_of, root_id
from acktree.schemas.registry import Slot
from acktree.spark.ledger.done_set import encode_metadata

SLOT = Slot(slot=3, spout="lines", topic="lines", topic_id="id", partition=0)
NOW_MS = 1_000_000


def view(frontier=10, done=()):
    text = encode_metadata(1, "id", frontier, BitMap64(done)).text
    return SlotView.of_commit(SLOT, CommittedOffset(frontier, text))


def root(offset, run=1, attempt=0):
    return root_id(3, generation_of(run, attempt), offset)


def open_roots(*rows):
    return np.array([(r, 1, init_ms, reset_ms, 0) for r, init_ms, reset_ms in rows], OPEN)


def acked(*roots):
    return NOW_MS, Result(0, np.array(roots, np.uint64))


def failed(one, failed_ms=NOW_MS, cause=Cause.FAILED, reason="no"):
    return failed_ms, Result(0, failed=[Failure(one, cause, "t", reason)])


def standing(seen, *results, table=None, floors=None):
    if table is not None:
        add_open({3: seen}, table)
    add_results({3: seen}, results, floors or {})
    seen.normalize()
    return seen


def test_the_commit_says_which_records_are_done():
    seen = standing(view(10, [10, 11, 14]))
    assert (seen.frontier, sorted(seen.done), seen.pending) == (12, [14], 2)
    assert list(seen.offsets()) == [12, 13]


def test_a_pending_record_inside_a_block_is_shown_with_the_blocks_root():
    seen = view(10)
    seen.block, seen.next_offset = 10, 40
    standing(seen, failed(root(20)), table=open_roots((root(10), NOW_MS - 5_000, 0)))
    at = {offset: seen.pending_record(offset, NOW_MS, 30) for offset in (10, 19, 20, 29, 30)}
    assert [at[offset].state for offset in at] == [IN_FLIGHT, IN_FLIGHT, WAITING, WAITING, EMITTED]
    assert (at[19].offset, at[19].root, at[19].at_least_s) == (19, f"{root(10):016x}", 5.0)
    assert (at[29].root, at[29].reason) == (f"{root(20):016x}", "no")


def test_a_record_that_was_replayed_is_shown_with_its_own_root_and_no_record_behind_it_is():
    seen = view(20)
    seen.block, seen.next_offset = 10, 40
    table = open_roots((root(22, attempt=1), NOW_MS - 5_000, 0), (root(30), NOW_MS, 0))
    standing(seen, failed(root(20), NOW_MS - 9_000), table=table)
    at = {offset: seen.pending_record(offset, NOW_MS, 30) for offset in (20, 22, 23, 31)}
    assert [at[offset].state for offset in at] == [WAITING, IN_FLIGHT, WAITING, IN_FLIGHT]
    roots = [root(20), root(22, attempt=1), root(20), root(30)]
    assert [at[offset].root for offset in at] == [f"{each:016x}" for each in roots]


def test_an_operators_commit_gives_the_position_of_the_group():
    seen = standing(SlotView.of_commit(SLOT, CommittedOffset(7, "")))
    assert (seen.frontier, seen.pending) == (7, 0)


def test_without_a_commit_only_open_roots_are_known():
    seen = standing(SlotView.of_commit(SLOT, None), table=open_roots((root(5), 1, 0)))
    assert (seen.frontier, seen.pending, list(seen.offsets())) == (None, 1, [5])


def test_results_not_yet_committed_count():
    seen = standing(view(10), acked(root(10), root(12)), table=open_roots((root(11), 1, 0)))
    assert (seen.frontier, sorted(seen.done), seen.pending) == (11, [12], 1)


def test_results_below_the_frontier_are_not_counted_twice():
    seen = standing(view(10), acked(root(4), root(12)))
    assert sorted(seen.done) == [12]


def test_proven_gaps_are_done():
    seen = standing(view(10), (NOW_MS, Absent(3, 1, [Span(10, 15)])))
    assert (seen.frontier, seen.pending) == (15, 0)


def test_emissions_below_the_floor_of_a_rewind_do_not_count():
    seen = standing(view(10), acked(root(10, run=1)), failed(root(11, run=1)), floors={3: 2})
    assert (seen.frontier, seen.failed) == (10, {})


def test_the_oldest_is_the_emission_with_the_first_init():
    table = open_roots((root(12), 500, 0), (root(13), 300, 0), (root(14), 400, 0))
    seen = standing(view(12), table=table)
    oldest = seen.oldest(NOW_MS, 3600, 2)
    assert [(p.offset, p.state) for p in oldest] == [(13, IN_FLIGHT), (14, IN_FLIGHT)]
    assert (oldest[0].age_s, oldest[0].at_least_s) == (None, (NOW_MS - 300) / 1000), "it may be a replay"
    assert oldest[0].root == f"{root(13):016x}"


def test_the_newest_emission_of_a_replayed_record_counts():
    table = open_roots((root(10, attempt=1), 900, 0), (root(10, attempt=0), 100, 0))
    (pending,) = standing(view(10), table=table).oldest(NOW_MS, 3600, 5)
    assert (pending.attempt, pending.latest_emission_ms) == (1, 900)


def test_a_failure_waits_for_its_replay_until_a_newer_init():
    table = open_roots((root(10), 100, 0))
    (pending,) = standing(view(10), failed(root(10), 200), table=table).oldest(NOW_MS, 3600, 5)
    assert (pending.state, pending.reason, pending.attempt) == (WAITING, "no", 0)
    table = open_roots((root(10, attempt=1), 300, 0), (root(10), 100, 0))
    (pending,) = standing(view(10), failed(root(10), 200), table=table).oldest(NOW_MS, 3600, 5)
    assert (pending.state, pending.attempt) == (IN_FLIGHT, 1)


def test_a_timeout_without_a_reason_gets_one():
    (pending,) = standing(view(10), failed(root(10), cause=Cause.TIMED_OUT, reason="")).oldest(NOW_MS, 1, 5)
    assert pending.reason == "timed out"


def test_an_emission_past_its_timeout_is_overdue_until_it_is_reset():
    old, young = (root(10), NOW_MS - 60_000, 0), (root(11), NOW_MS - 60_000, NOW_MS - 1_000)
    states = {
        p.offset: p.state for p in standing(view(10), table=open_roots(old, young)).oldest(NOW_MS, 30, 5)
    }
    assert states == {10: OVERDUE, 11: IN_FLIGHT}
    (first, *_) = standing(view(10), table=open_roots(old)).oldest(NOW_MS, 0, 5)
    assert first.state == IN_FLIGHT


def test_an_emission_that_is_not_in_the_fold_has_no_age():
    seen = view(10)
    seen.next_offset = 12
    found = standing(seen).oldest(NOW_MS, 30, 5)
    assert [(p.offset, p.state, p.age_s, p.at_least_s) for p in found] == [
        (10, EMITTED, None, None),
        (11, EMITTED, None, None),
    ]


def test_the_age_is_that_of_the_record_however_young_its_replay_is():
    seen = standing(view(10), table=open_roots((root(10, attempt=3), 900, 0), (root(11), 500, 0)))
    seen.add_emissions(10, Emissions(100, 900, 0, {root(10), root(10, attempt=3)}, is_first=True))
    first, second = seen.oldest(NOW_MS, 30, 5)
    assert (first.offset, first.age_s, first.at_least_s) == (10, (NOW_MS - 100) / 1000, None)
    assert (first.first_emission_ms, first.latest_emission_ms, first.attempts) == (100, 900, 4)
    assert (second.offset, second.age_s, second.first_emission_ms) == (11, None, None)


def test_between_two_emissions_a_record_keeps_its_age():
    seen = standing(view(10))
    seen.next_offset = 11
    seen.add_emissions(10, Emissions(100, 900, 0, {root(10)}, is_first=True))
    (pending,) = seen.oldest(NOW_MS, 30, 5)
    assert (pending.state, pending.age_s) == (EMITTED, (NOW_MS - 100) / 1000)


def test_what_the_spout_reports_of_the_frontier_is_a_lower_bound():
    seen = standing(view(10), table=open_roots((root(10, attempt=2), 900, 0)))
    seen.held_since_ms = 200
    (pending,) = seen.oldest(NOW_MS, 30, 5)
    assert (pending.age_s, pending.at_least_s) == (None, (NOW_MS - 200) / 1000)
