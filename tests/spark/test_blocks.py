"""Blocks: where they are cut, and a model of single records beside everything pure of a spout."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.logged_batch import MAX_REPLAYS, Range
from acktree.producers.ledger.partitions.blocks import MAX_BLOCK_RANGES, BlockRange
from acktree.producers.ledger.partitions.done_set import runs
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import FailureOutcome, Replay
from acktree.producers.ledger.slot_states import ledger_of, state_of
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.wire.control_records import NEVER, Cause, Failure, Result, Span
from acktree.wire.ids import generation_of, root_id
from spark.spout_model import LOG_END, POLICY, SpoutModel

RUN = 1
FIRST = generation_of(RUN, 0)


def ledger(*ends: int, size: int = 10, frontier: int = 0) -> PartitionLedger:
    """Return a ledger that has emitted up to each of the ends in turn."""
    made = PartitionLedger(frontier, frontier, RUN, POLICY)
    for end in ends:
        made.emit(end, 100, 0.0, size)
    return made


def ack(led: PartitionLedger, *firsts: int, generation: int = FIRST) -> int:
    return led.acked(np.full(len(firsts), generation), np.array(firsts))


def due(led: PartitionLedger, run: int = RUN) -> list[Replay]:
    return led.retries.emit_due(5, run, 100)


def test_an_ack_finishes_the_whole_block_and_no_other() -> None:
    led = ledger(35)
    assert ack(led, 10) == 10
    assert runs(led.done, led.frontier, 9) == [(10, 20)]
    assert ack(led, 0, 30) == 15
    assert (led.frontier, led.pending) == (20, 10)


@pytest.mark.parametrize("generation", [generation_of(RUN, 1), generation_of(2, 0), generation_of(2, 1)])
def test_the_ack_of_one_record_finishes_no_block_that_begins_with_it(generation: int) -> None:
    """Another driver may have emitted 10 alone."""
    led = ledger(30)
    assert ack(led, 10, generation=generation) == 1
    assert ack(led, 10) == 9


def test_a_block_cut_short_by_a_batch_ends_there() -> None:
    led = ledger(7, 15, 22)
    assert [ack(led, first) for first in (0, 7, 10, 15, 20)] == [7, 3, 5, 5, 2]
    assert led.frontier == 22


def test_a_rewind_into_the_middle_of_a_block_starts_with_a_short_one() -> None:
    led = ledger(40)
    ack(led, 0, 10, 20)
    led.rewind(17)
    assert led.emit(40, 100, 0.0, 10) == [(17, 40)]
    assert ack(led, 10, 20, 30) == 0
    assert [ack(led, first, generation=generation_of(2, 0)) for first in (17, 20, 30)] == [3, 10, 10]


def test_unfinished_records_of_a_failed_block_are_replayed_under_their_own_roots() -> None:
    led = ledger(20)
    led.finish(13, 15)
    failed = [10, 11, 12, *range(15, 20)]
    assert led.failed(FIRST, 10, 0.0, counts=True) == [(each, FailureOutcome.RETRY) for each in failed]
    assert due(led) == [Replay(each, generation_of(RUN, 1), 0) for each in failed]
    assert ack(led, 10, generation=generation_of(RUN, 1)) == 1
    assert led.failed(generation_of(RUN, 1), 11, 5.0, counts=True) == [(11, FailureOutcome.RETRY)]
    assert due(led, 9) == []


def test_a_block_that_is_acked_after_it_has_failed_is_done() -> None:
    led = ledger(20)
    led.failed(FIRST, 10, 0.0, counts=True)
    assert len(led.retries.emit_due(5, RUN, 4)) == 4
    assert ack(led, 10) == 10
    assert due(led) == []


def test_a_block_that_fails_twice_is_replayed_once() -> None:
    led = ledger(10)
    led.failed(FIRST, 0, 0.0, counts=True)
    assert led.failed(FIRST, 0, 0.0, counts=True) == []
    assert len(due(led)) == 10
    assert led.failed(FIRST, 0, 0.0, counts=True) == []
    assert due(led) == []


def test_a_block_failure_does_not_count_as_an_attempt_even_after_a_restart() -> None:
    """Which record it was nobody knows: with one attempt each of them still has it, alone."""
    led, policy = ledger(10), RetryPolicy(1, 60, max_attempts=1)
    led.policy = policy
    led.failed(FIRST, 0, 0.0, counts=True)
    replay = due(led)[3]
    restarted = ledger_of(state_of(led, 5.0), policy, 5.0)
    assert restarted.failed(replay.generation, 3, 9.0, counts=True) == [(3, FailureOutcome.EXHAUSTED)]
    assert [each.attempts for each in restarted.retries.attempts.values()].count(0) == 9


def test_a_reset_forward_into_a_block_leaves_the_rest_of_it_in_flight() -> None:
    led = ledger(20)
    led.rewind(14)
    assert ack(led, 10) == 6
    assert led.frontier == 20


def test_an_older_emission_in_other_blocks_finishes_its_first_record_alone() -> None:
    """The checkpoint was lost: what was emitted as 0-7 and 7-10 is one block in the new run."""
    led = PartitionLedger(0, 0, RUN, POLICY)
    led.begin_run()
    led.emit(10, 100, 0.0, 10)
    assert ack(led, 0, generation=FIRST) == 1
    assert ack(led, 0, generation=generation_of(2, 0)) == 9


@pytest.mark.parametrize("size", [1, 10])
def test_a_rejected_root_of_an_unknown_emission_rejects_no_record(size: int) -> None:
    """It may have been the root of a block, whose end was in a checkpoint that was lost."""
    led = PartitionLedger(0, 0, RUN, POLICY)
    led.begin_run()
    led.emit(10, 100, 0.0, size)
    assert led.failed(FIRST, 0, 0.0, counts=True, is_rejected=True) == [(0, FailureOutcome.RETRY)]
    (replay,) = led.retries.emit_due(0.0, 2, 9)
    assert led.failed(replay.generation, 0, 0.0, counts=True, is_rejected=True) == [
        (0, FailureOutcome.REJECTED)
    ]


def test_blocks_are_removed_once_they_are_done() -> None:
    led = ledger(7, 15)
    ack(led, 7, 10)
    led.discard_blocks()
    assert led.blocks.ranges == [BlockRange(0, 7, 10, RUN)]
    ack(led, 0)
    led.discard_blocks()
    assert not led.blocks.ranges


def test_aligned_batches_are_one_block_range_and_so_are_records_alone() -> None:
    assert ledger(10, 50, 120).blocks.ranges == [BlockRange(0, 120, 10, RUN)]
    led = ledger(size=1)
    led.done.add_range(5, 8)
    led.emit(7, 100, 0.0, 1)
    led.emit(20, 100, 0.0, 1)
    assert led.blocks.ranges == [BlockRange(0, 20, 1, RUN)]


def test_a_command_replays_part_of_a_block_record_by_record_and_both_finish() -> None:
    led = ledger(30)
    led.apply(LiveReplay.of(0, 0, 2, [Span(10, 14)], 30))
    assert led.emit_again(100, 9, 0.0) == [(10, 14)]
    assert ack(led, 10) == 6
    assert ack(led, 10, generation=generation_of(2, 0)) == 1
    assert ack(led, 11, 12, 13, generation=generation_of(2, 0)) == 3
    led.end_command()
    assert led.command is None


def test_records_of_a_failed_block_that_a_command_has_taken_are_left_to_it() -> None:
    led = ledger(20)
    led.apply(LiveReplay.of(0, 0, 2, [Span(10, 14)], 20))
    led.emit_again(100, 9, 0.0)
    led.failed(FIRST, 10, 0.0, counts=True)
    assert [replay.offset for replay in due(led, 2)] == [14, 15, 16, 17, 18, 19]
    led.failed(generation_of(2, 0), 10, 5.0, counts=True)
    assert led.retries.emit_due(9.0, 2, 9) == [Replay(10, generation_of(2, 1), 1)]
    assert ack(led, 14, generation=generation_of(2, 1)) == 1
    assert ack(led, 10, generation=generation_of(2, 1)) == 1


def test_a_duplicate_result_of_a_command_that_has_ended_finishes_its_record_alone() -> None:
    led = ledger(20)
    led.apply(LiveReplay.of(0, 0, 2, [Span(10, 14)], 20))
    led.emit_again(100, 9, 0.0)
    ack(led, 10, 11, 12, 13, generation=generation_of(2, 0))
    led.end_command()
    assert ack(led, 10, generation=generation_of(2, 0)) == 0
    assert led.failed(generation_of(2, 0), 10, 0.0, counts=True) == []
    assert ack(led, 10) == 6


def test_a_command_has_no_more_in_flight_than_it_may() -> None:
    led = ledger(100)
    ack(led, *range(0, 100, 10))
    led.apply(LiveReplay.of(0, 0, 2, [Span(5, 40)], 100))
    assert led.emit_again(20, 9, 0.0) == [(5, 25)]
    assert led.emit_again(20, 9, 0.0) == []
    ack(led, 5, 10, generation=generation_of(2, 0))
    assert led.emit_again(20, 9, 0.0) == [(25, 27)]


@pytest.mark.parametrize("limit", [0, 1, 12])
def test_overdue_records_of_blocks_are_each_replayed_once(limit: int) -> None:
    led = ledger(25)
    ack(led, 10)
    overdue = [*range(10), *range(20, 25)]
    assert led.fail_overdue(1.0, 100.0, limit) == limit
    assert [replay.offset for replay in led.retries.emit_due(100.0, RUN, 99)] == overdue[:limit]
    assert led.fail_overdue(1.0, 100.0, 99) == len(overdue) - limit


def test_if_all_records_of_a_full_spout_time_out_each_is_replayed_once() -> None:
    made, records = task(500), 100_000
    made.emit({0: records, 1: 0}, records, 0.0)
    firsts = range(0, records, 500)
    failures = [Failure(root_id(0, FIRST, first), Cause.TIMED_OUT, "", "") for first in firsts]
    effect = made.apply(Result(0, failed=failures), 0.0, 0.0)
    assert (effect.failed, made.counters["timed_out"]) == (records, records)
    emitted: list[int] = []
    while due := made.replay_due(100.0, MAX_REPLAYS):
        emitted += [offset for group in due for offset in group.offsets]
    assert emitted == [*range(records)], "the lowest offsets first"
    (attempts,) = state_of(made.slots[0], 100.0).attempts
    assert (attempts.counted, attempts.emissions, attempts.due_ms) == (0, 1, 0)
    assert len(attempts.offsets) < 100, "one run of offsets"


def task(block: int) -> TaskLedger:
    slots = {slot: PartitionLedger(0, 0, RUN, POLICY, block) for slot in range(2)}
    sources = {slot: SourceSlot(slot, "t", slot, "id") for slot in slots}
    return TaskLedger(0, sources, slots, 30.0)


def spans(ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [(each.slot, each.start, each.end) for each in ranges if each.start < each.end]


def test_a_block_is_cut_short_by_the_end_of_the_log_and_not_by_what_is_pending() -> None:
    made = task(10)
    assert spans(made.emit({0: 7, 1: 80}, 34, 0.0)) == [(0, 0, 7), (1, 0, 20)]
    assert spans(made.emit({0: 7, 1: 80}, 9, 0.0)) == []
    assert spans(made.emit({0: 9, 1: 80}, 12, 0.0)) == [(0, 7, 9), (1, 20, 30)]


def test_a_block_is_no_larger_than_a_trigger_may_read() -> None:
    made = task(10)
    (fresh,) = [each for each in made.emit({0: 0, 1: 80}, 4, 0.0, 4) if each.start < each.end]
    assert (fresh.start, fresh.end, fresh.block) == (0, 4, 4)


def test_a_slot_with_too_many_ranges_of_blocks_in_flight_emits_records_alone() -> None:
    made = task(10)
    led, sizes = made.slots[0], []
    for end in range(1, 2000, 3):
        sizes += [each.block for each in made.emit({0: end, 1: 0}, 100, 0.0) if each.slot == 0]
    blocks = sizes.index(1)
    assert sizes == [10] * blocks + [1] * (len(sizes) - blocks)
    assert (led.next_offset, len(led.blocks.ranges)) == (1999, MAX_BLOCK_RANGES + 1)
    assert ack(led, 1998) == 1
    led.finish(3, 900)
    led.discard_blocks()
    made.emit({0: 2000, 1: 0}, 100, 0.0)
    made.emit({0: 2020, 1: 0}, 100, 0.0)
    assert ack(led, 2000) == 10


def test_blocks_of_holes_among_done_offsets_stay_within_the_limit_of_ranges() -> None:
    made = task(10)
    made.slots[0].done.update(range(0, 5000, 2))
    for _ in range(30):
        made.emit({0: 5000, 1: 0}, 5000, 0.0)
    assert made.slots[0].next_offset == 5000
    assert len(made.slots[0].blocks.ranges) == MAX_BLOCK_RANGES + 1


class SpoutMachine(RuleBasedStateMachine):
    """The model of a spout, in any order of all that can happen to it."""

    model_of = SpoutModel

    def __init__(self) -> None:
        super().__init__()
        self.model = self.model_of()

    @rule(more=st.integers(0, 15), limit=st.integers(0, 40), seconds=st.sampled_from([0.0, 1.0, 100.0]))
    def batch(self, more: int, limit: int, seconds: float) -> None:
        self.model.batch(more, limit, seconds)

    @precondition(lambda self: self.model.open_roots())
    @rule(data=st.data(), is_good=st.booleans())
    def finished_by_the_acker(self, data: st.DataObject, is_good: bool) -> None:
        self.model.finish(data.draw(st.sampled_from(self.model.open_roots())), is_good)

    @precondition(lambda self: self.model.open_roots())
    @rule(data=st.data(), retry_after_ms=st.sampled_from([NEVER, 0, 500_000]))
    def failed_by_a_bolt_that_says_when(self, data: st.DataObject, retry_after_ms: int) -> None:
        self.model.says_when(data.draw(st.sampled_from(self.model.open_roots())), retry_after_ms)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data())
    def reported_twice(self, data: st.DataObject) -> None:
        self.model.send_again(data.draw(st.integers(0, len(self.model.log) - 1)))

    @rule()
    def read(self) -> None:
        self.model.read()

    @rule()
    def commit(self) -> None:
        self.model.commit()

    @rule(keeps=st.booleans(), unlogged=st.booleans(), block=st.sampled_from([1, 3, 5, 8]))
    def restart(self, keeps: bool, unlogged: bool, block: int) -> None:
        self.model.restart(keeps, unlogged, block)

    @rule(offset=st.integers(0, LOG_END))
    def rewind(self, offset: int) -> None:
        self.model.rewind(offset)

    @rule(first=st.integers(0, LOG_END - 1), length=st.integers(1, 12))
    def command(self, first: int, length: int) -> None:
        self.model.command(first, length)

    @rule(block=st.sampled_from([1, 3, 5, 8]))
    def another_block_size_is_published(self, block: int) -> None:
        self.model.led.block = block

    @invariant()
    def what_the_ledger_calls_done_is_done(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        self.model.end()


TestSpoutMachine = SpoutMachine.TestCase
TestSpoutMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_restarted_driver_continues_with_the_blocks_of_a_command() -> None:
    model = SpoutModel()
    model.batch(15, 40, 0.0)
    for root in model.open_roots():
        model.finish(root, True)
    model.read()
    model.command(0, 10)
    model.batch(0, 0, 0.0)
    model.restart(keeps=True, unlogged=False, block=1)
    model.end()


def test_after_a_lost_checkpoint_no_older_ack_finishes_a_command() -> None:
    model = SpoutModel()
    model.batch(1, 1, 0.0)
    model.command(0, 1)
    model.restart(keeps=False, unlogged=False, block=1)
    model.batch(0, 1, 0.0)
    model.finish((FIRST, 0), True)
    model.read()
    model.check()
    model.end()
