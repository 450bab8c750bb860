"""The first batch of a query whose plan is declared: it reads nothing, and a start loses nothing by it."""

from collections.abc import Callable

import pytest

from acktree.schemas.control_records import Cause
from acktree.spark.ledger.logged_batch import PlannedBatch
from acktree.spark.source import AcktreeStreamReader
from acktree.spark.tasks.reading.read_task import ReadTask
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

RECORDS = 10


def test_each_start_plans_one_batch_without_records_and_never_two_in_a_row(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=RECORDS)
    t.driver.close()
    first = AcktreeStreamReader(t.options(plan="narrow"))
    begin = first.initialOffset()
    check = first.latestOffset(begin)
    batch = first.latestOffset(check)
    first.stop()
    assert [PlannedBatch.from_json(each).records for each in (begin, check, batch)] == [0, 0, RECORDS]
    tasks = [task for task in first.partitions(begin, check) if isinstance(task, ReadTask)]
    assert [(task.number, task.ranges) for task in tasks] == [(0, ()), (1, ())]
    again = AcktreeStreamReader(t.options(plan="narrow"))
    assert PlannedBatch.from_json(again.latestOffset(check)).records == RECORDS
    again.stop()


@pytest.mark.parametrize("block", [1, 4])
def test_a_start_behind_it_emits_nothing_twice_and_counts_attempts_on(
    spout: Callable[..., SpoutTester], block: int
) -> None:
    t = spout(records=8, block=block)
    (first, generation), records = list(t.roots(t.next_batch()).items())[-1]
    again = [(offset, generation + 1) for offset in records]
    t.send_result(failed=[(first, generation, Cause.FAILED)])
    t.until(lambda: t.count("failed") > 0)
    t.now_s += 60
    assert list(t.roots(t.next_batch())) == again
    t.driver.written(t.batch)
    before = t.driver.tasks[0]
    t.batch = t.driver.shape_check()
    t.start()
    assert t.driver.tasks[0].pending == before.pending == 8
    assert t.next_batch() is None
    assert t.driver.tasks[0].attempts(100) == before.attempts(100)
    t.send_result(acked=again)
    t.until(lambda: t.pending == 8 - block)
