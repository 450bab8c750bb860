"""A spout's driver that dies between two of its calls: the next one goes on."""

from collections.abc import Callable

import pytest

from acktree.core import world
from acktree.spark.runtime.spark_version import ReadAllAvailable
from acktree.spark.source import AcktreeStreamReader
from acktree.wire.control_records import Cause
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated

NO_TRACKING = [{"ackers": 0}, {"options": {"complete": "batch"}}]


def test_a_replay_that_failed_before_its_driver_died_is_replayed_by_the_next_one(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=2)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[1:], failed=[(*emitted[0], Cause.FAILED)])
    t.until(lambda: t.count("failed") == 1)
    t.now_s += 2
    (replay,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*replay, Cause.FAILED)])
    t.until(lambda: t.count("failed") == 2)
    assert t.next_batch() is None, "in its back-off; Spark names the batch of the first replay once more"
    t.driver.commit_and_report()
    t.start()
    t.until(lambda: True)
    t.now_s += 5
    (again,) = t.emitted(t.next_batch())
    assert again[0] == 0
    t.send_result(acked=[again])
    t.until(lambda: t.committed() == 2)


@pytest.mark.parametrize("untracked", NO_TRACKING)
def test_without_tracking_a_batch_is_committed_before_the_next_one_is_planned(
    spout: Callable[..., SpoutTester], untracked: dict[str, object]
) -> None:
    t = spout(records=10, **untracked)
    assert len(t.emitted(t.next_batch(limit=5))) == 5
    assert len(t.emitted(t.next_batch(limit=5))) == 5
    t.start()
    assert t.next_batch() is None
    t.until(lambda: t.committed() == 10)


@pytest.mark.parametrize("untracked", NO_TRACKING)
def test_without_tracking_overdue_replays_are_done_with_their_batch(
    spout: Callable[..., SpoutTester], untracked: dict[str, object]
) -> None:
    """They are of batches that a version with ackers left in flight."""
    t = spout(records=10, **untracked)
    t.driver.tasks[0].slots[0].emit(5, 9, t.now_s)
    t.driver.commit_and_report()
    t.start()
    t.until(lambda: t.next_batch() is None)
    t.now_s += t.driver.topology.control_retention_s + 1
    replays = t.emitted(t.next_batch())
    assert [offset for offset, _ in replays] == [0, 1, 2, 3, 4]
    assert t.next_batch() is None
    t.until(lambda: t.committed() == 10)


def test_records_written_after_a_truncation_are_in_flight_for_the_next_driver(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10, options={"failOnDataLoss": "false", "allowSkip": "true"})
    t.next_batch()
    t.operator_commits(12)  # as if two records behind the end had been done and truncated
    t.until(lambda: t.driver.tasks[0].slots[0].next_offset == 12)
    assert t.next_batch() is None
    t.send(2)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [10, 11]
    t.start()
    assert (t.committed(), t.driver.tasks[0].pending) == (10, 2)
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 12)


def test_a_command_applied_before_a_first_batch_that_crashed_does_not_count_as_done(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=30, max_pending=30)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 30)
    t.driver.close()
    t.command((0, 20))
    killed = AcktreeStreamReader(t.options())
    start = killed.initialOffset()
    deadline = world.monotonic_s() + DEADLINE_S
    while (end := killed.latestOffset(start, ReadAllAvailable())) == start:
        assert world.monotonic_s() < deadline
    reader = AcktreeStreamReader(t.options())
    reader.initialOffset()
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert [slot.command is not None for slot in t.states().slots.values()] == [True]
    reader.stop()
