"""Which results count for a task: of which runs, and when a timeout counts as an attempt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.emission_times import EmissionTimes
from acktree.producers.ledger.partitions.partition import OLDEST_FLOOR_RUNS, PartitionLedger
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.wire.codec import decode_absent, encode_absent
from acktree.wire.control_records import Absent, Cause, Failure, Result, Span
from acktree.wire.ids import MAX_RUN, generation_of, next_run, root_id

GENERATION = generation_of(run=1, attempt=0)


def attempts_after(message_timeout_s: float, acked_s: float | None, timed_out_s: float) -> int:
    slot = PartitionLedger(0, 0, floor=1, policy=RetryPolicy(1, 60, 10))
    task = TaskLedger(0, {0: SourceSlot(0, "in", 0, "id")}, {0: slot}, message_timeout_s)
    task.emit({0: 2}, 2, now_s=0)
    if acked_s is not None:
        task.apply(Result(0, np.array([root_id(0, GENERATION, 1)], np.uint64)), acked_s, 0)
    failure = Failure(root_id(0, GENERATION, 0), Cause.TIMED_OUT, "", "")
    task.apply(Result(0, failed=[failure]), timed_out_s, 0)
    return slot.retries.attempts[0].attempts


@pytest.mark.parametrize(
    ("message_timeout_s", "acked_s", "attempts"),
    [(30, 90, 1), (30, 60, 0), (30, None, 0), (0, 0, 1), (0, None, 0)],
)
def test_a_timeout_counts_if_something_was_acked_and_always_with_timeouts_disabled(
    message_timeout_s: float, acked_s: float | None, attempts: int
) -> None:
    assert attempts_after(message_timeout_s, acked_s, timed_out_s=100) == attempts


def test_the_time_that_records_are_pending_is_that_of_completed_ones():
    ledger = PartitionLedger(0, 0, 1, RetryPolicy(1, 60, 1))
    task = TaskLedger(0, {3: SourceSlot(3, "lines", 0, "id")}, {3: ledger}, 30.0)

    def result(acked: list[int], failed: list[int], now_s: float) -> None:
        roots = np.array([root_id(3, GENERATION, offset) for offset in acked], np.uint64)
        lost = [Failure(root_id(3, GENERATION, offset), Cause.FAILED, "b", "why") for offset in failed]
        for exhausted in task.apply(Result(0, roots, lost), now_s, 0).exhausted:
            task.finish_record(exhausted)

    task.emit({3: 4}, 2, 0.0)
    task.emit({3: 100}, 98, 1.0)
    assert task.figures(50.0)["pending_s"] == 0.0
    result([0, 3], [2], now_s=60.0)
    result([0, 3], [], now_s=70.0)
    figures = task.figures(70.0)
    assert (figures["completed"], figures["dead_lettered"], figures["pending_s"]) == (2, 1, 60.0 + 59.0)
    assert (figures["frontier.lines.0"], figures["next.lines.0"], figures["held_s.lines.0"]) == (1, 100, 70.0)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8),
    st.sets(st.integers(0, 60)),
    st.integers(0, 20),
    st.integers(0, 30),
)
def test_the_ages_of_offsets_are_those_of_their_first_emissions(
    emissions: list[tuple[int, int]], offsets: set[int], frontier: int, overdue_s: int
) -> None:
    times, emitted, end, now_s = EmissionTimes(), dict[int, float](), 0, 0.0
    for count, later_s in emissions:
        now_s += later_s
        emitted |= dict.fromkeys(range(end, end + count), now_s)
        end += count
        times.record(end, now_s)
    late = times.overdue_end(overdue_s)
    last_late_s = max([emitted[offset] for offset in range(late)], default=0.0)
    times.first(frontier)
    left = {offset for offset in offsets if offset >= frontier}
    total_s = sum(now_s - (last_late_s if o < late else emitted[o]) for o in left if o in emitted)
    assert sum(age_s * count for age_s, count in times.ages(BitMap64(left), now_s)) == total_s


def test_a_failed_record_at_the_frontier_is_reported_with_its_next_attempt():
    ledger = PartitionLedger(0, 0, 1, RetryPolicy(8, 60, 10))
    task = TaskLedger(0, {0: SourceSlot(0, "in", 0, "id")}, {0: ledger}, 30.0)
    task.emit({0: 2}, 2, now_s=0)

    def fail(attempt: int, cause: Cause, now_s: float) -> None:
        failure = Failure(root_id(0, generation_of(1, attempt), 0), cause, "b", "KeyError:\n'city'")
        task.apply(Result(0, failed=[failure]), now_s, 0)

    def reported(now_s: float) -> tuple[object, ...]:
        figures = task.figures(now_s)
        return tuple(figures.get(f"{name}.in.0") for name in ("reason", "next_s", "idle_s"))

    assert reported(10.0) == (None, None, None)
    fail(0, Cause.FAILED, 10.0)
    assert reported(12.0) == ("KeyError: 'city'", 6.0, 0.0)
    assert reported(20.0) == ("KeyError: 'city'", 0.0, 2.0)
    task.replay_due(21.0, 10)
    assert reported(24.0) == ("KeyError: 'city'", None, 3.0)
    fail(1, Cause.TIMED_OUT, 30.0)
    assert reported(31.0) == (None, None, None)


def test_gaps_before_a_truncation_finish_no_record_written_there_since() -> None:
    """The reader of an earlier run counted the end of the log as lost; the offsets were given out anew."""
    ledger = PartitionLedger(0, 0, 1, RetryPolicy(1.0, 60.0, 3))
    task = TaskLedger(0, {0: SourceSlot(0, "t", 0, "id")}, {0: ledger}, 30.0)
    task.emit({0: 10}, 100, 0.0)
    ledger.discard_from(0)
    task.emit({0: 10}, 100, 0.0)
    task.apply_absent(decode_absent(encode_absent(Absent(0, 1, [Span(4, 10)]))))
    assert (ledger.pending, task.counters["absent"]) == (10, 0)
    task.apply_absent(decode_absent(encode_absent(Absent(0, 2, [Span(4, 10)]))))
    assert (ledger.pending, task.counters["absent"]) == (4, 6)


def later(run: int, runs: int) -> int:
    for _ in range(runs):
        run = next_run(run)
    return run


@given(
    old=st.integers(1, MAX_RUN),
    until_rewind=st.integers(1, MAX_RUN - 1),
    since=st.integers(0, OLDEST_FLOOR_RUNS),
    block=st.sampled_from([1, 4]),
)
def test_after_a_rewind_no_result_of_the_254_runs_before_it_counts(
    old: int, until_rewind: int, since: int, block: int
) -> None:
    """But for those whose number is in use again since."""
    floor = later(old, until_rewind)
    ledger = PartitionLedger(0, 0, old, RetryPolicy(1, 60, 10), block)
    task = TaskLedger(0, {0: SourceSlot(0, "in", 0, "id")}, {0: ledger}, 30.0)
    task.emit({0: 8}, 8, 0.0)
    ledger.run = later(old, until_rewind - 1)
    ledger.discard_from(0)
    assert ledger.floor == floor
    task.emit({0: 8}, 8, 0.0)
    ledger.run = later(floor, since)
    acked = np.array([root_id(0, generation_of(old, 0), offset) for offset in range(0, 8, block)], np.uint64)
    failed = [Failure(int(root), Cause.FAILED, "", "") for root in acked]
    is_in_use_again = until_rewind + since >= MAX_RUN
    effect = task.apply(Result(0, acked), 1.0, 0.0)
    task.apply_absent(Absent(0, old, [Span(0, 8)]))
    assert (ledger.pending == 8) == (not is_in_use_again)
    if not is_in_use_again:
        effect = task.apply(Result(0, failed=failed), 1.0, 0.0)
        assert effect.failed == 0
    newest = np.array(
        [root_id(0, generation_of(floor, 0), offset) for offset in range(0, 8, block)], np.uint64
    )
    task.apply(Result(0, newest), 1.0, 0.0)
    assert ledger.pending == 0
