"""Blocks: where they are cut, and a model of single records beside everything pure of a spout."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acktree.schemas.control_records import NEVER, Span
from acktree.schemas.ids import generation_of
from acktree.spark.driver.spout_figures import CrowdedSlots
from acktree.spark.ledger.blocks import BlockRange
from acktree.spark.ledger.done_set import runs
from acktree.spark.ledger.live_replay import LiveReplay
from acktree.spark.ledger.partition import PartitionLedger
from acktree.spark.ledger.retries import FailureOutcome, Replay
from acktree.spark.ledger.task import SourceSlot, TaskLedger
from acktree.spark.runtime.logged_batch import Range
from spark.spout_model import LOG_END, POLICY, SpoutModel

RUN = 1
FIRST = generation_of(RUN, 0)


def ledger(*ends: int, size: int = 10, frontier: int = 0) -> PartitionLedger:
    """Return a ledger that has emitted up to each of the ends in turn."""
    made = PartitionLedger(frontier, frontier, RUN, POLICY)
    for end in ends:
        made.emit(end, 100, 0.0, RUN, size)
    return made


def ack(led: PartitionLedger, *firsts: int, generation: int = FIRST) -> int:
    return led.acked(np.full(len(firsts), generation), np.array(firsts))


def test_an_ack_finishes_the_whole_block_and_no_other() -> None:
    led = ledger(35)
    assert ack(led, 10) == 10
    assert runs(led.done, led.frontier, 9) == [(10, 20)]
    assert ack(led, 0, 30) == 15
    assert (led.frontier, led.pending) == (20, 10)


def test_a_block_cut_short_by_a_batch_ends_there() -> None:
    led = ledger(7, 15, 22)
    assert [ack(led, first) for first in (0, 7, 10, 15, 20)] == [7, 3, 5, 5, 2]
    assert led.frontier == 22


def test_a_rewind_into_the_middle_of_a_block_starts_with_a_short_one() -> None:
    led = ledger(40)
    ack(led, 0, 10, 20)
    led.rewind(17, run=2)
    assert led.emit(40, 100, 0.0, 2, 10) == [(17, 40)]
    assert ack(led, 10, 20, 30) == 0
    assert [ack(led, first, generation=generation_of(2, 0)) for first in (17, 20, 30)] == [3, 10, 10]


def test_a_failed_block_is_replayed_except_for_its_done_records() -> None:
    led = ledger(20)
    led.finish(13, 15)
    assert led.failed(FIRST, 10, 0.0, counts=True) is FailureOutcome.RETRY
    (replay,) = led.emit_due(5, RUN, 9)
    assert replay == Replay(10, generation_of(RUN, 1), 1)
    assert list(led.left_of(replay.generation, 10)) == [10, 11, 12, *range(15, 20)]
    assert ack(led, 10, generation=replay.generation) == 8


def test_a_reset_forward_into_a_block_leaves_the_rest_of_it_in_flight() -> None:
    led = ledger(20)
    led.rewind(14, run=2)
    assert ack(led, 10) == 6
    assert led.frontier == 20


def test_an_older_emission_in_other_blocks_finishes_its_first_record_alone() -> None:
    """The checkpoint was lost: what was emitted as 0-7 and 7-10 is one block in the new run."""
    led = PartitionLedger(0, 0, RUN, POLICY)
    led.emit(10, 100, 0.0, 2, 10)
    assert ack(led, 0, generation=FIRST) == 1
    assert led.failed(FIRST, 0, 0.0, counts=True) is FailureOutcome.IGNORED
    assert ack(led, 0, generation=generation_of(2, 0)) == 9


def test_blocks_are_removed_once_they_are_done_and_committed() -> None:
    led = ledger(7, 15)
    ack(led, 7, 10)
    led.discard_blocks(10)
    assert led.blocks.ranges == [BlockRange(0, 7, 10, RUN), BlockRange(7, 15, 10, RUN)]
    led.discard_blocks(15)
    assert led.blocks.ranges == [BlockRange(0, 7, 10, RUN)]
    ack(led, 0)
    led.discard_blocks(15)
    assert not led.blocks.ranges


def test_aligned_batches_are_one_block_range() -> None:
    assert ledger(10, 50, 120).blocks.ranges == [BlockRange(0, 120, 10, RUN)]


def test_a_command_replays_part_of_a_block_and_both_finish() -> None:
    led = ledger(30)
    led.apply(LiveReplay.of(0, 0, 2, [Span(10, 14)], 30, 10))
    assert led.emit_again(100, 9, 0.0) == [(10, 14)]
    assert ack(led, 10) == 6
    assert ack(led, 10, generation=generation_of(2, 0)) == 4


def test_a_block_whose_first_records_a_command_replays_gets_a_new_root() -> None:
    led = ledger(20)
    led.apply(LiveReplay.of(0, 0, 2, [Span(10, 14)], 20, 10))
    led.emit_again(100, 9, 0.0)
    led.failed(FIRST, 10, 0.0, counts=True)
    led.failed(generation_of(2, 0), 10, 0.0, counts=True)
    assert led.emit_due(5, 2, 9) == [
        Replay(14, generation_of(2, 1), 1),
        Replay(10, generation_of(2, 1), 1),
    ]
    assert ack(led, 14, generation=generation_of(2, 1)) == 6
    assert ack(led, 10, generation=generation_of(2, 1)) == 4


def test_a_command_waits_for_room_for_a_whole_block_and_emits_a_larger_one_when_idle() -> None:
    led = ledger(100)
    ack(led, *range(0, 100, 10))
    led.apply(LiveReplay.of(0, 0, 2, [Span(5, 40)], 100, 10))
    assert led.emit_again(20, 9, 0.0) == [(5, 20)]
    assert led.emit_again(20, 9, 0.0) == []
    ack(led, 5, 10, generation=generation_of(2, 0))
    assert led.emit_again(7, 9, 0.0) == [(20, 30)]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_overdue_blocks_are_each_replayed_once(limit: int) -> None:
    led = ledger(25)
    ack(led, 10)
    assert led.fail_overdue(1.0, 100.0, limit) == min(limit, 2)
    assert [replay.offset for replay in led.emit_due(100.0, RUN, 9)] == [0, 20][:limit]
    assert led.fail_overdue(1.0, 100.0, 9) == 2 - min(limit, 2)


def task(block: int) -> TaskLedger:
    slots = {slot: PartitionLedger(0, 0, RUN, POLICY, block) for slot in range(2)}
    sources = {slot: SourceSlot(slot, "t", slot, "id") for slot in slots}
    return TaskLedger(0, RUN, sources, slots, 30.0)


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


def test_a_slot_with_too_many_block_ranges_in_flight_waits_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, crowds = task(10), CrowdedSlots()
    for end in range(1, 2000, 3):
        made.emit({0: end, 1: 0}, 100, 0.0)
        crowds.log_new([made])
    waiting = made.slots[0].next_offset
    assert waiting < 1000
    assert [line.action for line in caplog.records] == ["crowded"]
    assert "t/0 emits nothing new until some of its records are done" in caplog.text
    waits = made.figures(0.0)["crowded"]
    assert waits == sum(end > waiting for end in range(1, 2000, 3))
    made.emit({0: waiting, 1: 0}, 100, 0.0)
    assert made.counters["crowded"] == waits, "with nothing to emit nothing waits"
    made.slots[0].finish(3, waiting)
    made.slots[0].discard_blocks(waiting)
    assert spans(made.emit({0: 2000, 1: 0}, 100_000, 0.0))
    assert not made.crowded


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


class ModelShortOfMetadata(SpoutModel):
    """A commit reaches 72 offsets, or more where few runs are done."""

    metadata_chars = 69
    absent = frozenset()


class MachineShortOfMetadata(SpoutMachine):
    """Much of what is done does not fit into the metadata."""

    model_of = ModelShortOfMetadata


TestMachineShortOfMetadata = MachineShortOfMetadata.TestCase
TestMachineShortOfMetadata.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


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


def test_a_block_is_known_after_a_crash_though_the_metadata_has_no_room_for_it() -> None:
    model = ModelShortOfMetadata()
    model.batch(91, 200, 0.0)
    model.batch(3, 200, 0.0)
    model.finish((FIRST, 91), True)
    model.read()
    model.commit()
    for first in range(5, 70, 10):
        model.finish((FIRST, first), True)
    model.batch(1, 200, 0.0)
    model.commit()
    model.restart(keeps=True, unlogged=False, block=5)
    model.end()
