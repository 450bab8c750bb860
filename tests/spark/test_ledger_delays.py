"""A bolt says when a failed record is emitted again, or that it never is: what the ledger does."""

import math

import numpy as np
import pytest

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import Replay
from acktree.producers.ledger.task import Effect, SourceSlot, TaskLedger
from acktree.wire.control_records import BACK_OFF, NEVER, Cause, Failure, Result
from acktree.wire.ids import generation_of, root_id
from spark.spout_model import SpoutModel

RUN = 1
FIRST = generation_of(RUN, 0)
MAX_AFTER_S = 3600.0


class Spout:
    """One slot of a task whose records are all emitted."""

    def __init__(self, records: int, block: int = 1, max_attempts: int = 3) -> None:
        self.ledger = PartitionLedger(0, 0, RUN, RetryPolicy(1, 60, max_attempts, MAX_AFTER_S), block)
        self.task = TaskLedger(0, {0: SourceSlot(0, "t", 0, "id")}, {0: self.ledger}, 30.0)
        self.task.emit({0: records}, records, 0.0)

    def fail(
        self, first: int, retry_after_ms: int, generation: int = FIRST, now_s: float = 0.0, age_s: float = 0.0
    ) -> Effect:
        failure = Failure(root_id(0, generation, first), Cause.FAILED, "b", "no", retry_after_ms)
        return self.task.apply(Result(0, failed=[failure]), now_s, 0.0, age_s)

    def due(self, now_s: float, limit: int = 100) -> list[Replay]:
        return self.ledger.retries.emit_due(now_s, RUN, limit)


@pytest.mark.parametrize(
    ("retry_after_ms", "age_s", "due_s"),
    [(0, 0, 0), (500, 0, 0.5), (100_000, 0, 100), (100_000, 40, 60), (100_000, 200, 0), (10**10, 0, 3600)],
)
def test_a_delay_replaces_the_back_off(retry_after_ms: int, age_s: float, due_s: float) -> None:
    spout = Spout(3)
    spout.fail(1, retry_after_ms, now_s=50, age_s=age_s)
    if due_s:
        assert spout.due(math.nextafter(50 + due_s, 0)) == []
    assert spout.due(50 + due_s) == [Replay(1, generation_of(RUN, 1), 1)]


def test_a_delayed_attempt_counts() -> None:
    spout = Spout(1, max_attempts=2)
    assert spout.fail(0, 5000).exhausted == []
    (replay,) = spout.due(5.0)
    (exhausted,) = spout.fail(0, 5000, replay.generation, 10.0).exhausted
    assert (exhausted.attempts, exhausted.cause) == (2, Cause.FAILED)


def test_a_rejected_record_is_given_up_at_its_first_failure() -> None:
    spout = Spout(3)
    effect = spout.fail(1, NEVER)
    (exhausted,) = effect.exhausted
    assert (exhausted.offset, exhausted.attempts, exhausted.cause) == (1, 1, Cause.REJECTED)
    assert effect.failed == 1
    spout.task.finish_record(exhausted)
    assert (spout.task.counters["rejected"], spout.task.counters["dead_lettered"]) == (1, 1)
    assert (spout.ledger.pending, spout.due(1e6)) == (2, [])


@pytest.mark.parametrize("retry_after_ms", [NEVER, 0, 5000])
def test_the_same_failure_for_older_spouts_changes_nothing(retry_after_ms: int) -> None:
    spout = Spout(1, max_attempts=2)
    for exhausted in spout.fail(0, retry_after_ms).exhausted:
        spout.task.finish_record(exhausted)
    again = spout.fail(0, BACK_OFF)
    assert (again.failed, again.exhausted, spout.task.counters["failed"]) == (0, [], 1)
    spout.due(10.0)
    assert spout.fail(0, BACK_OFF).failed == 0


def test_the_records_of_a_rejected_block_are_emitted_again_immediately_each_alone() -> None:
    """It has five hundred records, of which the fourth is poison and the second is done."""
    spout = Spout(1_500, block=500)
    spout.ledger.finish(501, 502)
    spout.ledger.acked(np.array([FIRST, FIRST]), np.array([0, 1_000]))
    assert spout.fail(500, NEVER).exhausted == []
    replays = spout.due(0.0, limit=1_000)
    assert [each.offset for each in replays] == [500, *range(502, 1_000)]
    others = [each for each in replays if each.offset != 503]
    spout.ledger.acked(
        np.array([each.generation for each in others]), np.array([each.offset for each in others])
    )
    (exhausted,) = spout.fail(503, NEVER, generation_of(RUN, 1)).exhausted
    assert (exhausted.offset, exhausted.cause, exhausted.attempts) == (503, Cause.REJECTED, 1)
    spout.task.finish_record(exhausted)
    assert (spout.ledger.frontier, spout.ledger.pending) == (1_500, 0)
    assert spout.task.counters["dead_lettered"] == 1


def test_the_last_record_of_a_block_is_not_given_up_for_one_that_was_in_its_tree() -> None:
    """A command finished the poison, 10, while the tree of 10 and 11 was under way."""
    spout = Spout(20, block=10)
    spout.ledger.finish(12, 20)
    spout.ledger.finish(10, 11)
    assert spout.fail(10, NEVER).exhausted == []
    (alone,) = spout.due(0.0)
    (exhausted,) = spout.fail(11, NEVER, alone.generation).exhausted
    assert exhausted.offset == 11


def test_a_block_of_one_record_is_rejected_in_its_first_emission() -> None:
    spout = Spout(11, block=10)
    (exhausted,) = spout.fail(10, NEVER).exhausted
    assert exhausted.offset == 10


def test_a_delay_of_a_block_delays_each_of_its_records() -> None:
    spout = Spout(10, block=10)
    spout.fail(0, 5_000)
    assert spout.due(math.nextafter(5.0, 0)) == []
    assert len(spout.due(5.0)) == 10


def model(records: int = 10) -> SpoutModel:
    made = SpoutModel()
    made.absent = frozenset()
    made.batch(records, records, 0.0)
    return made


def test_records_of_a_rejected_block_are_not_emitted_twice_after_a_crash() -> None:
    made = model()
    made.says_when((FIRST, 5), NEVER)
    made.asked()
    made.batch(0, 0, 0.0)
    again = [root for root in made.open_roots() if root[0] > FIRST]
    assert [sorted(made.roots[root]) for root in again] == [[5], [6], [7], [8], [9]]
    made.restart(keeps=True, unlogged=False, block=5)
    made.asked()
    made.batch(0, 0, 1_000.0)
    assert [root for root in made.open_roots() if root[0] > FIRST] == again
    made.says_when(again[0], NEVER)
    made.asked()
    assert made.dead_letters == [5]
    made.end()


def test_a_rejected_block_is_split_again_by_a_driver_whose_batch_was_not_logged() -> None:
    made = model()
    made.says_when((FIRST, 5), NEVER)
    made.asked()
    made.commit()
    made.restart(keeps=True, unlogged=True, block=5)
    made.asked()
    made.batch(0, 0, 0.0)
    emitted = [sorted(made.roots[root]) for root in made.open_roots() if root[0] > FIRST]
    assert emitted == [[5], [6], [7], [8], [9]]
    made.end()
    assert made.dead_letters == []


def test_a_delay_continues_after_a_crash() -> None:
    made = model()
    made.says_when((FIRST, 0), 500_000)
    made.asked()
    made.now_s += 100.0
    made.commit()
    made.restart(keeps=True, unlogged=False, block=5)
    made.asked()
    made.batch(0, 0, 399.0)
    assert max(root for root in made.roots if root[1] == 0) == (FIRST, 0)
    made.batch(0, 0, 1.0)
    assert max(root for root in made.roots if root[1] == 0) > (FIRST, 0)
    made.end()
