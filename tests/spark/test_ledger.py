"""The ledger of one partition: tests named by the order of the results, and one model for all orders."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.done_set import runs
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import FailureOutcome, Replay
from acktree.producers.ledger.slot_figures import held_s
from acktree.wire.ids import generation_of
from acktree.wire.state_records import SEVERAL_TASKS

POLICY = RetryPolicy(initial_s=1, max_s=60, max_attempts=3)
FIRST = generation_of(1, 0)


def ledger(emitted: int = 10, frontier: int = 0) -> PartitionLedger:
    made = PartitionLedger(frontier, frontier, 1, POLICY)
    made.emit(frontier + emitted, 100, 0.0)
    return made


def ack(led: PartitionLedger, *offsets: int, generation: int = FIRST) -> int:
    return led.acked(np.full(len(offsets), generation), np.array(offsets))


def test_acks_in_order_move_the_frontier() -> None:
    led = ledger()
    for offset in range(10):
        ack(led, offset)
        assert led.frontier == offset + 1
    assert led.pending == 0


def test_acks_in_reverse_order_move_the_frontier_at_the_last() -> None:
    led = ledger()
    for offset in range(9, 0, -1):
        ack(led, offset)
        assert led.frontier == 0
    assert led.pending == 1
    ack(led, 0)
    assert (led.frontier, len(led.done)) == (10, 0)


def test_one_hole_holds_the_frontier_and_nothing_else() -> None:
    led = ledger()
    ack(led, 0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert (led.frontier, led.pending) == (3, 1)
    assert runs(led.done, led.frontier, 5) == [(4, 10)]


def test_a_second_ack_and_an_ack_below_the_frontier_change_nothing() -> None:
    led = ledger()
    assert ack(led, 0, 5) == 2
    assert ack(led, 0, 5) == 0
    assert (led.frontier, led.pending) == (1, 8)


def test_an_ack_of_an_offset_never_emitted_is_ignored() -> None:
    led = ledger()
    assert ack(led, 10, 11) == 0
    assert led.emit(12, 100, 0.0) == [(10, 12)]


def test_an_ack_of_any_generation_counts() -> None:
    led = ledger()
    led.failed(FIRST, 4, 0.0, counts=True)
    led.retries.emit_due(10, run=1, limit=10)
    assert ack(led, 4, generation=FIRST) == 1
    assert not led.is_open(FIRST, 4)


def test_a_failure_is_due_after_its_back_off_under_a_new_generation() -> None:
    led = ledger()
    assert led.failed(FIRST, 4, 100.0, counts=True) == [(4, FailureOutcome.RETRY)]
    assert led.retries.emit_due(100.9, run=1, limit=10) == []
    assert led.retries.emit_due(101.0, run=1, limit=10) == [Replay(4, generation_of(1, 1), 1)]
    assert led.retries.emit_due(999.0, run=1, limit=10) == []


def test_only_the_failed_offset_is_replayed() -> None:
    led = ledger()
    led.failed(FIRST, 4, 0.0, counts=True)
    ack(led, *(offset for offset in range(10) if offset != 4))
    assert [replay.offset for replay in led.retries.emit_due(10, 1, 10)] == [4]
    assert led.emit(10, 100, 0.0) == []


def test_a_failure_of_a_done_offset_an_old_generation_or_twice_is_ignored() -> None:
    led = ledger()
    ack(led, 3)
    assert led.failed(FIRST, 3, 0.0, counts=True) == []
    led.failed(FIRST, 4, 0.0, counts=True)
    assert led.failed(FIRST, 4, 0.0, counts=True) == []
    led.retries.emit_due(10, 1, 10)
    assert led.failed(FIRST, 4, 0.0, counts=True) == []


def test_each_failed_attempt_counts_once_until_none_is_left() -> None:
    led = ledger()
    generation, now_s, outcomes = FIRST, 0.0, []
    for _ in range(3):
        outcomes += led.failed(generation, 4, now_s, counts=True)
        now_s += 100
        if replays := led.retries.emit_due(now_s, 1, 10):
            generation = replays[0].generation
    assert [outcome for _, outcome in outcomes] == [
        FailureOutcome.RETRY,
        FailureOutcome.RETRY,
        FailureOutcome.EXHAUSTED,
    ]


def test_the_sixteenth_replay_counts_despite_its_generation_of_a_first_emission() -> None:
    led = ledger()
    led.policy = RetryPolicy(initial_s=1, max_s=60, max_attempts=20)
    generation, now_s, run, counted = FIRST, 0.0, 1, 0
    while led.failed(generation, 4, now_s, counts=True) == [(4, FailureOutcome.RETRY)]:
        counted += 1
        now_s += 100
        run += led.retries.is_run_used_up(run)
        (replay,) = led.retries.emit_due(now_s, run, 10)
        generation = replay.generation
    assert counted == 19


def test_failures_that_do_not_count_are_always_replayed_under_distinct_root_ids() -> None:
    led = ledger()
    generation, now_s, run = FIRST, 0.0, 1
    emissions = {generation}
    for number in range(1, 80):
        assert led.failed(generation, 4, now_s, counts=False) == [(4, FailureOutcome.RETRY)]
        now_s += 100
        run += led.retries.is_run_used_up(run)
        (replay,) = led.retries.emit_due(now_s, run, 10)
        generation = replay.generation
        emissions.add(generation)
        assert len(emissions) == number + 1
    assert run == 5, "a run has room for sixteen emissions of a record"


def test_a_failure_that_does_not_count_backs_off_longer_each_time_up_to_the_limit() -> None:
    led = ledger()
    generation, now_s, waited_s = FIRST, 0.0, []
    for _ in range(8):
        led.failed(generation, 4, now_s, counts=False)
        failed_s = now_s
        while not (replays := led.retries.emit_due(now_s, 1, 10)):
            now_s += 1
        generation = replays[0].generation
        waited_s.append(now_s - failed_s)
    assert waited_s == [1, 2, 4, 8, 16, 32, 60, 60]
    led.failed(generation, 4, now_s, counts=True)
    assert led.retries.emit_due(now_s + 1, 1, 10), "the first failure that counts waits as the first"


def test_attempts_of_an_earlier_run_are_read_from_the_generation() -> None:
    led = ledger()
    assert led.failed(generation_of(1, 2), 4, 0.0, counts=True) == [(4, FailureOutcome.EXHAUSTED)]


def test_the_back_off_doubles_up_to_its_limit() -> None:
    policy = RetryPolicy(1, 60, 10)
    assert [policy.delay_s(n, 0.0) for n in (1, 2, 3, 6, 7, 500)] == [1, 2, 4, 32, 60, 60]
    assert 60 < policy.delay_s(9, 0.5) < 66


def test_offsets_committed_as_done_are_not_emitted_again() -> None:
    led = PartitionLedger(5, 5, 1, POLICY)
    led.done.add_range(7, 9)
    assert led.emit(20, 100, 0.0) == [(5, 7), (9, 20)]
    assert led.pending == 13


def test_emission_stops_at_the_limit_of_ranges() -> None:
    led = PartitionLedger(0, 0, 1, POLICY)
    led.done.update(range(1, 100, 2))
    assert led.emit(100, 3, 0.0) == [(0, 1), (2, 3), (4, 5)]
    assert led.emit(100, 1, 0.0) == [(6, 7)]


def test_a_rewind_backwards_emits_again_and_old_acks_do_not_finish_it() -> None:
    led = ledger()
    ack(led, *range(8))
    led.rewind(2)
    assert led.emit(10, 100, 0.0) == [(2, 10)]
    assert ack(led, *range(10)) == 0
    assert led.failed(FIRST, 9, 0.0, counts=True) == []
    assert ack(led, *range(2, 10), generation=generation_of(2, 0)) == 8


def test_a_reset_forward_skips() -> None:
    led = ledger()
    led.rewind(15)
    assert (led.frontier, led.pending) == (15, 0)
    assert led.emit(20, 100, 0.0) == [(15, 20)]


def test_a_reset_forward_inside_what_is_in_flight_keeps_the_rest_in_flight() -> None:
    led = ledger()
    led.rewind(4)
    assert (led.frontier, led.pending) == (4, 6)
    assert ack(led, *range(4, 10)) == 6


def test_an_emission_without_a_result_is_replayed_once_its_control_records_expired() -> None:
    led = ledger(4)
    led.emit(6, 100, 50.0)
    ack(led, 0, 2)
    assert led.fail_overdue(0.0, 100.0, 10) == 0
    assert led.fail_overdue(1.0, 100.0, 10) == 2
    assert [(r.offset, r.generation) for r in led.retries.emit_due(100.0, 1, 10)] == [
        (1, generation_of(1, 1)),
        (3, generation_of(1, 1)),
    ]
    assert led.fail_overdue(51.0, 101.0, 10) == 2
    assert [r.offset for r in led.retries.emit_due(101.0, 1, 10)] == [4, 5]
    assert led.fail_overdue(101.0, 200.0, 10) == 2
    assert [r.generation for r in led.retries.emit_due(200.0, 1, 10)] == [generation_of(1, 2)] * 2


@given(st.permutations(list(range(12))), st.integers(1, 5))
def test_any_order_and_grouping_of_acks_gives_the_same_ledger(order: list[int], size: int) -> None:
    led = ledger(12)
    for at in range(0, 12, size):
        ack(led, *order[at : at + size], *order[:at])
    assert (led.frontier, led.pending, len(led.done)) == (12, 0, 0)


class LedgerMachine(RuleBasedStateMachine):
    """A set-based model beside the ledger: emissions, results of any generation, retries, rewinds."""

    def __init__(self) -> None:
        super().__init__()
        self.led = PartitionLedger(0, 0, 1, RetryPolicy(1, 4, 1_000_000))
        self.run, self.now_s, self.end = 1, 0.0, 0
        self.emitted: dict[int, list[int]] = {}
        self.done: set[int] = set()

    @rule(count=st.integers(1, 8))
    def emit(self, count: int) -> None:
        self.end += count
        for start, end in self.led.emit(self.end, 1_000, 0.0):
            for offset in range(start, end):
                assert offset not in self.done
                self.emitted.setdefault(offset, []).append(generation_of(self.run, 0))

    @precondition(lambda self: self.emitted)
    @rule(data=st.data())
    def acked(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.emitted)))
        generation = data.draw(st.sampled_from(self.emitted[offset]))
        self.led.acked(np.array([generation]), np.array([offset]))
        if generation >> 4 >= self.led.floor:
            self.done.add(offset)

    @precondition(lambda self: self.emitted)
    @rule(data=st.data(), counts=st.booleans())
    def failed(self, data: st.DataObject, counts: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.emitted)))
        generation = data.draw(st.sampled_from(self.emitted[offset]))
        for _, outcome in self.led.failed(generation, offset, self.now_s, counts=counts):
            assert outcome is FailureOutcome.RETRY
            assert offset not in self.done
            assert generation == self.emitted[offset][-1]

    @rule(seconds=st.integers(0, 5))
    def replay(self, seconds: int) -> None:
        self.now_s += seconds
        for replay in self.led.retries.emit_due(self.now_s, self.run, 100):
            assert replay.offset not in self.done
            self.emitted[replay.offset].append(replay.generation)

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        if offset >= self.led.frontier:
            return
        self.run += 1
        self.led.rewind(offset)
        self.end = max(self.end, offset)
        self.done = {done for done in self.done if done < offset}
        self.emitted = {o: g for o, g in self.emitted.items() if o < offset}

    @invariant()
    def the_frontier_is_the_smallest_offset_not_done(self) -> None:
        expected = next(o for o in range(self.led.next_offset + 1) if o not in self.done)
        assert self.led.frontier == expected

    @invariant()
    def a_set_bit_is_done_and_pending_is_what_is_left(self) -> None:
        assert set(self.led.done) <= self.done
        assert self.led.pending == self.led.next_offset - len(
            [o for o in self.done if o < self.led.next_offset]
        )


TestLedgerMachine = LedgerMachine.TestCase


@pytest.mark.parametrize("attempt", [1, 17])
def test_a_replay_of_a_written_batch_is_the_newest_emission_after_a_restart(attempt: int) -> None:
    led = PartitionLedger(0, 10, 1, RetryPolicy(1, 60, 30))
    led.restore_replay(Replay(4, generation_of(1, attempt), attempt), 0.0)
    assert led.failed(FIRST, 4, 0.0, counts=True) == []
    assert led.failed(generation_of(1, attempt), 4, 0.0, counts=True) == [(4, FailureOutcome.RETRY)]
    assert led.retries.emit_due(100, 2, 10) == [Replay(4, generation_of(2, attempt + 1), attempt + 1)]


def test_the_age_of_the_frontier_counts_from_the_emission_of_its_record():
    ledger = PartitionLedger(0, 0, 1, RetryPolicy(1, 60, 10))
    assert held_s(ledger, 5.0) == 0.0
    ledger.emit(10, 5, 10.0)
    ledger.emit(20, 5, 12.0)
    assert held_s(ledger, 15.0) == 5.0
    ledger.finish(0, 10)
    assert held_s(ledger, 15.0) == 3.0
    ledger.finish(10, 20)
    assert held_s(ledger, 15.0) == 0.0


def test_results_are_on_several_topics_until_all_is_done_that_was_in_flight_at_a_change_of_task() -> None:
    led = ledger(4)
    led.deal_to(0)
    led.emit(6, 100, 0.0)
    led.deal_to(0)
    assert led.result_task == SEVERAL_TASKS, "who emitted the first four is not known"
    ack(led, 0, 1, 2, 3)
    assert led.result_task == 0
    led.deal_to(1)
    led.emit(9, 100, 0.0)
    ack(led, 4)
    assert led.result_task == SEVERAL_TASKS
    ack(led, 5)
    assert led.result_task == 1


@pytest.mark.parametrize("again", [PartitionLedger.renew, lambda led: led.rewind(0)])
def test_what_is_emitted_again_has_its_results_on_one_topic(again: Callable[[PartitionLedger], None]) -> None:
    led = ledger(4)
    ack(led, 0)
    led.deal_to(0)
    led.deal_to(1)
    again(led)
    led.emit(5, 100, 0.0)
    assert (led.result_task, led.run, led.floor) == (1, 2, 2)
