"""In which order what failed is emitted again, and how a batch's limits are shared out: pure ledgers."""

import pytest

from acktree.core.reports.breaker import Breaker, BreakerPolicy
from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.logged_batch import Replays
from acktree.producers.ledger.new_records import emit_new
from acktree.producers.ledger.partitions.blocks import MAX_BLOCK_RANGES, BlockRange
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import REPLAY_GAP, SEEK_COST
from acktree.producers.ledger.probes import plan_probe
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.wire.control_records import BACK_OFF, Cause, Failure, Result
from acktree.wire.ids import generation_of, root_id

RUN = 1
FIRST = generation_of(RUN, 0)
MAX_S = 60.0


def task_of(*slots: int, number: int = 0, records: int = 0, initial_s: float = 1.0) -> TaskLedger:
    policy = RetryPolicy(initial_s, MAX_S, 10)
    ledgers = {slot: PartitionLedger(0, 0, RUN, policy) for slot in slots}
    sources = {slot: SourceSlot(slot, "t", slot, "id") for slot in slots}
    task = TaskLedger(number, sources, ledgers, 30.0)
    task.emit(dict.fromkeys(slots, records), records * len(slots), 0.0)
    return task


def fail(
    task: TaskLedger,
    slot: int,
    *firsts: int,
    now_s: float,
    generation: int = FIRST,
    retry_after_ms: int = BACK_OFF,
) -> None:
    failures = [
        Failure(root_id(slot, generation, first), Cause.FAILED, "b", "no", retry_after_ms) for first in firsts
    ]
    task.apply(Result(0, failed=failures), now_s, 0.0)


def offsets(replays: list[Replays]) -> list[int]:
    return [offset for group in replays for offset in group.offsets]


def test_the_lowest_due_offsets_are_emitted_first_whenever_they_failed():
    task = task_of(0, records=6)
    fail(task, 0, 4, 5, now_s=0.0)
    fail(task, 0, 0, 1, now_s=0.5)
    assert offsets(task.replay_due(9.0, 3)) == [0, 1, 4]
    assert offsets(task.replay_due(9.0, 3)) == [5]


def test_records_far_apart_fill_a_batch_sooner_because_each_costs_a_seek():
    """A task reads them in one transaction, which ends after some minutes."""
    task, step = task_of(0, records=1_000_000), REPLAY_GAP + 1
    fail(task, 0, *range(0, 1_000_000, step), *range(5_000), now_s=0.0)
    near = offsets(task.replay_due(9.0, 5_000))
    assert near == list(range(5_000))
    far = offsets(task.replay_due(9.0, 5_000))
    assert len(far) == 1 + 5_000 / SEEK_COST
    assert far == list(range(5 * step, (5 + len(far)) * step, step))


def test_records_that_fail_again_immediately_keep_no_others_waiting():
    task = task_of(0, records=6, initial_s=0.0)
    fail(task, 0, *range(6), now_s=0.0)
    emitted = []
    for attempt in range(1, 4):
        due = offsets(task.replay_due(float(attempt), 2))
        fail(task, 0, *due, now_s=float(attempt), generation=generation_of(RUN, 1))
        emitted += due
    assert emitted == [0, 1, 2, 3, 4, 5]


def open_with_probes(probes: int) -> tuple[TaskLedger, float]:
    """Return a task of twenty records that have failed, whose breaker has sent probes since, all in vain."""
    task = task_of(0, records=20)
    task.breaker = Breaker(BreakerPolicy(max_consecutive=20, probe_max_s=MAX_S))
    fail(task, 0, *range(20), now_s=0.0)
    assert task.breaker.is_open
    now_s = 0.0
    for _ in range(probes):
        now_s += 1_000.0
        task.breaker.probes_sent = 0  # those of replays
        _, replays = plan_probe([task], task.breaker, {0: 20}, 100, None, now_s)
        fail(task, 0, *offsets(replays), now_s=now_s, generation=replays[0].generation)
    return task, now_s


def test_each_probe_of_failed_records_is_another_record():
    task, now_s = open_with_probes(3)
    _, replays = plan_probe([task], task.breaker, {0: 20}, 100, None, now_s + 1_000.0)
    assert offsets(replays) == [3]


def test_after_a_breaker_closes_records_at_the_frontier_come_first_even_if_probed():
    task, now_s = open_with_probes(3)
    task.breaker.close(now_s)
    assert sorted(offsets(task.replay_due(now_s, 8))) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert offsets(task.replay_due(now_s, 3)) == [8, 9, 10]


def test_a_delay_requested_by_a_bolt_does_not_end_when_a_breaker_closes():
    task = task_of(0, records=3)
    task.breaker = Breaker(BreakerPolicy(max_consecutive=3))
    fail(task, 0, 0, now_s=0.0, retry_after_ms=30_000)
    fail(task, 0, 1, 2, now_s=0.0)
    assert task.breaker.is_open
    task.breaker.close(0.1)
    assert offsets(task.replay_due(0.1, 9)) == [1, 2]
    assert offsets(task.replay_due(29.9, 9)) == []
    assert offsets(task.replay_due(30.0, 9)) == [0]


@pytest.mark.parametrize("many", [0, 1])
def test_a_slot_with_many_failures_keeps_no_other_slot_waiting(many: int):
    task = task_of(0, 1, records=100)
    fail(task, many, *range(100), now_s=0.0)
    fail(task, 1 - many, 7, now_s=0.0)
    replays = task.replay_due(9.0, 10)
    assert {group.slot: len(group.offsets) for group in replays} == {many: 9, 1 - many: 1}


@pytest.mark.parametrize("long", [0, 1])
@pytest.mark.parametrize("limit", [1, 7, 50])
def test_a_task_with_a_long_log_keeps_no_other_task_waiting(long: int, limit: int):
    tasks = [task_of(0, number=0), task_of(1, number=1)]
    ends = {long: 10_000, 1 - long: 20}
    for turn in range(2_000):
        batch = emit_new(tasks, ends, 100_000, limit, float(turn))
        assert sum(range_.end - range_.start for range_ in batch) <= limit
        ends[long] += limit
        if tasks[1 - long].slots[1 - long].next_offset == 20:
            break
    assert tasks[1 - long].slots[1 - long].next_offset == 20
    assert tasks[long].slots[long].next_offset > 0


def test_a_task_without_room_leaves_its_quota_to_the_others():
    tasks = [task_of(0, number=0, records=10), task_of(1, number=1)]
    emit_new(tasks, {0: 10_000, 1: 30}, 10, 20, 0.0)
    assert [task.pending for task in tasks] == [10, 10]


def probe(
    tasks: list[TaskLedger], breaker: Breaker, ends: dict[int, int], now_s: float
) -> list[tuple[int, int]]:
    """Let the next probe be emitted, and fail; return it as (slot, first offset)."""
    ranges, replays = plan_probe(tasks, breaker, ends, 100_000, None, now_s)
    fresh = [(each.slot, each.start, FIRST) for each in ranges if each.start < each.end]
    again = [(each.slot, first, each.generation) for each in replays for first in each.offsets]
    for slot, first, generation in fresh + again:
        task = next(task for task in tasks if slot in task.slots)
        fail(task, slot, first, now_s=now_s, generation=generation)
    return [(slot, first) for slot, first, _ in fresh + again]


def open_breaker(*tasks: TaskLedger) -> Breaker:
    breaker = Breaker(BreakerPolicy(max_consecutive=1, probe_max_s=MAX_S))
    for task in tasks:
        task.breaker = breaker
    breaker.failed(0.0, "b", "no")
    return breaker


@pytest.mark.parametrize("slots", [[(0, 1)], [(0,), (1,)]])
def test_probes_go_to_every_slot_with_failures(slots: list[tuple[int, ...]]):
    """The few that have failed in one of them may be poison, and fail for ever."""
    tasks = [task_of(*each, number=number, records=100) for number, each in enumerate(slots)]
    for task in tasks:
        for slot in task.slots:
            fail(task, slot, *range(2 + 50 * slot), now_s=0.0)
    breaker = open_breaker(*tasks)
    probed = [each for turn in range(1, 9) for each in probe(tasks, breaker, {}, 1_000.0 * turn)]
    assert {slot for slot, _ in probed} == {0, 1}


def test_probes_go_to_every_slot_with_new_records():
    task = task_of(0, 1, records=0)
    breaker = open_breaker(task)
    probed = [each for turn in range(1, 9) for each in probe([task], breaker, {0: 9, 1: 9}, 1_000.0 * turn)]
    assert {slot for slot, first in probed if first == 1} == {0, 1}


def test_a_slot_with_too_many_ranges_of_blocks_in_flight_is_probed_by_records_alone():
    task = task_of(0, records=0)
    ledger = task.slots[0]
    ledger.block = 2
    for end in range(1, 2 * MAX_BLOCK_RANGES, 2):
        ledger.blocks.ranges.append(BlockRange(end, end + 2, 2, RUN))
    ledger.next_offset = behind = 2 * MAX_BLOCK_RANGES + 1
    breaker = open_breaker(task)
    probed = [probe([task], breaker, {0: behind + 100}, 1_000.0 * turn) for turn in range(1, 5)]
    assert probed == [[(0, behind)], [(0, behind + 1)], [(0, behind)], [(0, behind + 2)]]


def test_a_probe_is_a_failed_record_if_no_new_one_has_room():
    """What is in flight waits for a bolt that is away; a new probe would have to wait for it."""
    task = task_of(0, records=2)
    fail(task, 0, 0, now_s=1.0)
    task.slots[0].limit.bound(1)
    breaker = open_breaker(task)
    breaker.probes_sent = 1  # the next one is new
    assert probe([task], breaker, {0: 20}, 1_000.0) == [(0, 0)]
