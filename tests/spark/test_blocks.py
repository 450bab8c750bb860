"""Blocks: where they are cut, and a model of single records beside everything pure of a spout."""

import json

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from acktree.schemas.codec import Absent, Cause, Failure, Result, Span
from acktree.schemas.ids import generation_of, origin_of, root_id, run_at_least
from acktree.spark.batch import Batch, Range
from acktree.spark.blocks import Stretch, block_firsts
from acktree.spark.done_set import MAX_METADATA_CHARS, decode_metadata, encode_metadata
from acktree.spark.group_offsets import Committed
from acktree.spark.ledger import MAX_TOLD_STRETCHES, PartitionLedger
from acktree.spark.live_replay import LiveReplay
from acktree.spark.result_cut import ResultCut
from acktree.spark.retries import Replay, RetryPolicy, Verdict
from acktree.spark.spout_figures import Crowds
from acktree.spark.takeover import Takeover
from acktree.spark.task_ledger import SourcePartition, TaskLedger

POLICY = RetryPolicy(initial_s=1, most_s=60, max_attempts=3)
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
    assert led.held_ranges(9) == [(10, 20)]
    assert ack(led, 0, 30) == 15
    assert (led.frontier, led.pending) == (20, 10)


def test_a_block_that_a_batch_has_cut_short_ends_there() -> None:
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


def test_a_failed_block_is_replayed_whole_but_for_what_is_done_of_it() -> None:
    led = ledger(20)
    led.finish(13, 15)
    assert led.failed(FIRST, 10, 0.0, counts=True) is Verdict.RETRY
    (replay,) = led.take_due(5, RUN, 9)
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
    assert led.failed(FIRST, 0, 0.0, counts=True) is Verdict.IGNORED
    assert ack(led, 0, generation=generation_of(2, 0)) == 9


def test_blocks_are_forgotten_below_the_frontier_and_where_they_are_many_once_they_are_told() -> None:
    led = ledger(7, 15)
    ack(led, 7, 10)
    led.forget_blocks(15)
    assert len(led.blocks.stretches) == 2
    ack(led, 0)
    led.forget_blocks(15)
    assert not led.blocks.stretches
    led = ledger(*range(1, 2_000, 11))
    assert len(led.blocks.stretches) > MAX_TOLD_STRETCHES
    led.finish(1, 900)
    led.forget_blocks(12)
    assert led.blocks.stretches[:2] == [Stretch(0, 1, 10, RUN), Stretch(12, 23, 10, RUN)]
    led.forget_blocks(900)
    assert led.blocks.stretches[1].end > 900


def test_aligned_batches_are_one_stretch() -> None:
    assert ledger(10, 50, 120).blocks.stretches == [Stretch(0, 120, 10, RUN)]


def test_a_command_takes_part_of_a_block_and_both_end() -> None:
    led = ledger(30)
    led.obey(LiveReplay.of(0, 0, 2, [Span(10, 14)], 30, 10))
    assert led.emit_again(100, 9, 0.0) == [(10, 14)]
    assert ack(led, 10) == 6
    assert ack(led, 10, generation=generation_of(2, 0)) == 4


def test_a_block_whose_first_records_a_command_took_gets_a_root_of_its_own() -> None:
    led = ledger(20)
    led.obey(LiveReplay.of(0, 0, 2, [Span(10, 14)], 20, 10))
    led.emit_again(100, 9, 0.0)
    led.failed(FIRST, 10, 0.0, counts=True)
    led.failed(generation_of(2, 0), 10, 0.0, counts=True)
    assert led.take_due(5, 2, 9) == [
        Replay(14, generation_of(2, 1), 1),
        Replay(10, generation_of(2, 1), 1),
    ]
    assert ack(led, 14, generation=generation_of(2, 1)) == 6
    assert ack(led, 10, generation=generation_of(2, 1)) == 4


def test_a_command_waits_for_room_for_a_whole_block_and_takes_a_larger_one_when_idle() -> None:
    led = ledger(100)
    ack(led, *range(0, 100, 10))
    led.obey(LiveReplay.of(0, 0, 2, [Span(5, 40)], 100, 10))
    assert led.emit_again(20, 9, 0.0) == [(5, 20)]
    assert led.emit_again(20, 9, 0.0) == []
    ack(led, 5, 10, generation=generation_of(2, 0))
    assert led.emit_again(7, 9, 0.0) == [(20, 30)]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_overdue_blocks_come_again_once_each(most: int) -> None:
    led = ledger(25)
    ack(led, 10)
    assert led.fail_overdue(1.0, 100.0, most) == min(most, 2)
    assert [replay.offset for replay in led.take_due(100.0, RUN, 9)] == [0, 20][:most]
    assert led.fail_overdue(1.0, 100.0, 9) == 2 - min(most, 2)


def task(block: int) -> TaskLedger:
    slots = {slot: PartitionLedger(0, 0, RUN, POLICY, block) for slot in range(2)}
    sources = {slot: SourcePartition(slot, "t", slot, "id") for slot in slots}
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


def test_a_slot_with_too_many_stretches_in_flight_waits_and_is_said_to_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, crowds = task(10), Crowds()
    for end in range(1, 2000, 3):
        made.emit({0: end, 1: 0}, 100, 0.0)
        crowds.say([made])
    waiting = made.slots[0].next_offset
    assert waiting < 1000
    assert [line.action for line in caplog.records] == ["crowded"]
    assert "t/0 emits nothing new until some of its records are done" in caplog.text
    waits = made.figures(0.0)["crowded"]
    assert waits == sum(end > waiting for end in range(1, 2000, 3))
    made.emit({0: waiting, 1: 0}, 100, 0.0)
    assert made.counters["crowded"] == waits, "with nothing to emit nothing waits"
    made.slots[0].finish(3, waiting)
    made.slots[0].forget_blocks(waiting)
    assert spans(made.emit({0: 2000, 1: 0}, 100_000, 0.0))
    assert not made.crowded


LOG_END = 120
ABSENT = frozenset(offset for offset in range(LOG_END) if offset % 7 == 3 or 40 <= offset < 52)
"""Offsets that hold no record: reading past them proves it."""


class SpoutMachine(RuleBasedStateMachine):
    """A spout task and all it makes durable, with a model that knows which records each root stands for.

    Verdicts stand in a log and are read later; a restart knows the commit, the last batch and that log alone.
    """

    metadata_chars = MAX_METADATA_CHARS
    absent = ABSENT

    def __init__(self) -> None:
        super().__init__()
        self.run, self.floor, self.now_s, self.block, self.end = 1, 1, 0.0, 5, 0
        self.roots: dict[tuple[int, int], frozenset[int]] = {}
        self.judged: set[tuple[int, int]] = set()
        self.done: set[int] = set()
        self.floors = [1] * LOG_END
        self.log: list[Result | Absent] = []
        self.logged: Batch | None = None
        self.order: tuple[int, int, list[Span]] | None = None
        self.cut = ResultCut(0)
        self.committed: Committed | None = None
        self.position = 0
        self._open(PartitionLedger(0, 0, 1, POLICY, 5))
        self.commit()

    def _open(self, led: PartitionLedger) -> None:
        self.led = led
        source = SourcePartition(0, "t", 0, "id")
        self.task = TaskLedger(0, self.run, {0: source}, {0: led}, 30.0)

    def _plan(self, most: int, seconds: float) -> Batch:
        self.now_s += seconds
        self.known = set(range(self.led.frontier)) | set(self.led.done)
        replays = self.task.replay_due(self.now_s, 1_000)
        again = self.task.emit_again(20, self.now_s)
        fresh = self.task.emit({0: self.end}, most, self.now_s)
        parts = (tuple(fresh), tuple(replays), tuple(again), tuple(self.task.progress()))
        batch = Batch(1, *parts, tuple(self.task.attempts(1_000)), tuple(self.task.blocks()))
        again_from_json = Batch.from_json(json.loads(json.dumps(batch.to_json())))
        assert again_from_json == batch
        return batch

    def _read_batch(self, batch: Batch) -> None:
        """Do what the batch's tasks do: make roots, tell what is absent."""
        emitted: dict[tuple[int, int], set[int]] = {}
        for each in (*batch.ranges, *batch.again):
            offsets = np.arange(each.start, each.end)
            firsts = block_firsts(offsets, each.start, each.block).tolist()
            for first, offset in zip(firsts, offsets.tolist(), strict=True):
                emitted.setdefault((generation_of(each.run, 0), first), set()).add(offset)
        for group in batch.replays:
            for index, first in enumerate(group.offsets):
                pieces = group.spans[index] if group.spans else (Span(first, first + 1),)
                mine = {offset for start, end in pieces for offset in range(start, end)}
                assert not mine & self.known, "only what is not done is replayed"
                emitted.setdefault((group.generation, first), set()).update(mine)
        absent = sorted({offset for mine in emitted.values() for offset in mine} & self.absent)
        if absent:
            self.log.append(Absent(0, [Span(offset, offset + 1) for offset in absent]))
            self.done.update(absent)
        for root, mine in emitted.items():
            if held := frozenset(mine - self.absent):
                assert not held & self.known, "done and emitted"
                assert root not in self.roots, "a root id that was used before"
                self.roots[root] = held

    @rule(more=st.integers(0, 15), most=st.integers(0, 40), seconds=st.sampled_from([0.0, 1.0, 100.0]))
    def batch(self, more: int, most: int, seconds: float) -> None:
        self.end = min(LOG_END, self.end + more)
        if self.logged is not None:
            self.cut.written([(0, first) for group in self.logged.replays for first in group.offsets])
        self.read()
        batch = self._plan(most, seconds)
        if batch.records:
            self.logged = batch
            self._read_batch(batch)

    def _open_roots(self) -> list[tuple[int, int]]:
        return sorted(root for root in self.roots if root not in self.judged)

    @precondition(lambda self: self._open_roots())
    @rule(data=st.data(), is_good=st.booleans())
    def judged_by_the_acker(self, data: st.DataObject, is_good: bool) -> None:
        self._judge(data.draw(st.sampled_from(self._open_roots())), is_good)

    def _judge(self, root: tuple[int, int], is_good: bool) -> None:
        self.judged.add(root)
        told = root_id(0, *root)
        if is_good:
            self.log.append(Result(0, np.array([told], np.uint64)))
            run = root[0] >> 4
            self.done.update(o for o in self.roots[root] if run_at_least(run, self.floors[o]))
        else:
            self.log.append(Result(0, np.array([], np.uint64), [Failure(told, Cause.FAILED, "b", "no")]))

    @rule()
    def read(self) -> None:
        for place in range(self.cut.next_offset, len(self.log)):
            record = self.log[place]
            if isinstance(record, Absent):
                effect = self.task.take_absent(record)
            else:
                effect = self.task.take(record, self.now_s, 0.0)
            for letter in effect.letters:
                origin = origin_of(record.failed[0].root)
                assert letter.offset in self.roots[origin.generation, origin.offset] - self.done
                self.done.add(letter.offset)
                self.task.bury(letter)
            self.cut.note(place, effect.highest, effect.opened)

    def _encode(self, frontier: int, done: BitMap64) -> tuple[str, int]:
        return encode_metadata(1, "id", frontier, done, self.metadata_chars)

    @rule()
    def commit(self) -> None:
        self.led.end_command()
        if self.led.command is None:
            self.order = None
        text, reach = self._encode(self.led.frontier, self.led.done)
        ours = decode_metadata(text, self.led.frontier)
        self.committed = Committed(self.led.frontier, ours)
        self.position = self.cut.cut({0: reach}, {0: self.led.frontier}, self.task.is_open)
        self.led.forget_blocks(reach)

    @rule(keeps=st.booleans(), unlogged=st.booleans(), block=st.sampled_from([1, 3, 5, 8]))
    def restart(self, keeps: bool, unlogged: bool, block: int) -> None:
        """A driver that was killed is started again, with its checkpoint or without."""
        if unlogged:
            self._plan(10, 0.0)
        self.run += 1
        self.block = block
        self.logged = self.logged if keeps else None
        commands = {}
        if self.order is not None:
            floor, end, asked = self.order
            commands = {0: LiveReplay.of(0, 0, floor, asked, end)}
        takeover = Takeover({0: self.committed}, {}, {0: self.floor}, commands, self.logged)
        self.cut = ResultCut(self.position)
        self._open(takeover.slot(0, self.run, POLICY, self.now_s, block))
        self.order = self.order if self.led.command else None

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        self.read()
        offset = data.draw(st.integers(0, self.led.next_offset))
        if offset < self.led.frontier:
            self.run += 1
            self.floor = self.task.run = self.run
            self.order = None
            self.done = set(range(offset))
            self.floors[offset:] = [self.run] * (LOG_END - offset)
        self.done |= set(range(offset))
        self.led.rewind(offset, self.run)
        self.commit()

    @rule(first=st.integers(0, LOG_END - 1), length=st.integers(1, 12))
    def command(self, first: int, length: int) -> None:
        self.read()
        asked, end = [Span(first, first + length), Span(first + 20, first + 25)], self.led.next_offset
        live = LiveReplay.of(0, 0, self.run + 1, asked, end, self.led.block)
        if self.led.command is not None or not live.offsets:
            return
        if self._encode(*self.led.opened(live))[1] < self._encode(self.led.frontier, self.led.done)[1]:
            return
        self.run += 1
        self.task.run = self.run
        self.led.obey(live)
        self.order = (self.run, end, asked)
        self.done -= set(live.offsets)
        for offset in live.offsets:
            self.floors[offset] = self.run
        self.commit()

    @rule(block=st.sampled_from([1, 3, 5, 8]))
    def another_block_size_is_published(self, block: int) -> None:
        self.led.block = block

    @invariant()
    def what_the_ledger_calls_done_is_done(self) -> None:
        assert set(range(self.led.frontier)) | set(self.led.done) <= self.done

    def teardown(self) -> None:
        """Everything ends once each emission without a verdict is acked: nothing waits for ever."""
        for _ in range(60):
            self.batch(0, 200, 1_000.0)
            for root in self._open_roots():
                self._judge(root, True)
            self.read()
            self.commit()
        assert (self.led.pending, self.led.frontier) == (0, self.led.next_offset)
        assert self.position == len(self.log)


def test_a_restarted_driver_goes_on_with_the_blocks_that_a_command_was_emitted_in() -> None:
    machine = SpoutMachine()
    machine.batch(15, 40, 0.0)
    for root in machine._open_roots():
        machine._judge(root, True)
    machine.read()
    machine.command(0, 10)
    machine.batch(0, 0, 0.0)
    machine.restart(keeps=True, unlogged=False, block=1)
    machine.teardown()


def test_a_lost_checkpoint_lets_no_older_ack_finish_what_a_command_asked_for() -> None:
    machine = SpoutMachine()
    machine.batch(1, 1, 0.0)
    machine.command(0, 1)
    machine.restart(keeps=False, unlogged=False, block=1)
    machine.batch(0, 1, 0.0)
    machine._judge((FIRST, 0), True)
    machine.read()
    machine.what_the_ledger_calls_done_is_done()
    machine.teardown()


TestSpoutMachine = SpoutMachine.TestCase
TestSpoutMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class ShortOfMetadata(SpoutMachine):
    """A commit reaches 72 offsets, or more where few runs are done: it may tell less than the one before."""

    metadata_chars = 30
    absent = frozenset()


TestShortOfMetadata = ShortOfMetadata.TestCase
TestShortOfMetadata.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_block_is_known_after_a_crash_though_its_verdict_was_told_and_is_told_no_longer() -> None:
    """Many holes make a commit tell less than the one before: verdicts that it told are read once more."""
    machine = ShortOfMetadata()
    machine.batch(91, 200, 0.0)
    machine.batch(3, 200, 0.0)
    machine._judge((FIRST, 91), True)
    machine.read()
    machine.commit()
    for first in range(5, 70, 10):
        machine._judge((FIRST, first), True)
    machine.batch(1, 200, 0.0)
    machine.commit()
    machine.restart(keeps=True, unlogged=False, block=5)
    machine.teardown()
