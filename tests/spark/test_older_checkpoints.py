"""A driver begins with a checkpoint that is not the newest: a rolled back release, a restored volume.

The state says what is in flight. Of what was planned on it last nobody knows whether Spark had logged it:
that alone is emitted again.
"""

from collections.abc import Callable

import pytest

from acktree.wire.control_records import Cause
from acktree.wire.ids import generation_of
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated

RECORDS = 100
Root = tuple[int, int]
"""First offset and generation."""


def offsets(t: SpoutTester, roots: list[Root]) -> list[int]:
    """Return the records of roots of the batch planned last."""
    return sorted(offset for root in roots for offset in t.roots(t.batch)[root])


def run_by_hand(t: SpoutTester) -> list[Root]:
    """Run the application once without its checkpoint; return what it leaves in flight.

    Half of what it emits is done; the rest has failed and is emitted again.
    """
    newest, t.batch = t.batch, None
    t.driver.close()
    t.start()
    t.next_batch()
    roots = list(t.roots(t.batch))
    half = len(roots) // 2
    t.send_result(acked=roots[:half], failed=[(*root, Cause.FAILED) for root in roots[half:]])
    t.until(lambda: t.pending == RECORDS // 2)
    t.now_s += 100
    left = t.emitted(t.next_batch())
    t.next_batch()
    t.driver.close()
    t.batch = newest
    return left


@pytest.mark.real
@pytest.mark.promise("Spark's checkpoint … is not the newest one")
@pytest.mark.parametrize("block", [1, 10])
def test_after_a_manual_run_without_the_checkpoint_each_record_needs_its_own_ack(
    spout: Callable[..., SpoutTester], block: int, caplog: pytest.LogCaptureFixture
) -> None:
    t = spout(records=RECORDS, block=block)
    t.next_batch()
    left = run_by_hand(t)
    t.send_result(acked=left[:5], failed=[(*root, Cause.FAILED) for root in left[5:]])
    caplog.clear()
    t.start()
    assert [line.action for line in caplog.records if hasattr(line, "action")] == ["older_checkpoint"]
    t.until(lambda: t.committed() == 55)
    t.now_s += 100
    t.next_batch()
    again = list(t.roots(t.batch))
    assert offsets(t, again) == list(range(55, RECORDS))
    t.send_result(acked=again[1:])
    t.until(lambda: t.pending == len(t.roots(t.batch)[again[0]]))
    assert t.committed() == 55
    t.send_result(acked=again[:1])
    t.until(lambda: t.committed() == RECORDS)


@pytest.mark.parametrize("block", [1, 10])
def test_a_restored_checkpoint_of_the_same_driver_is_an_older_one(
    spout: Callable[..., SpoutTester], block: int
) -> None:
    t = spout(records=RECORDS, block=block)
    t.next_batch(limit=50)
    first = list(t.roots(t.batch))
    backup = t.batch
    t.next_batch()
    roots = list(t.roots(t.batch))
    t.send_result(failed=[(*root, Cause.FAILED) for root in roots])
    t.until(lambda: t.count("failed") == 50)
    t.now_s += 100
    left = t.emitted(t.next_batch())
    t.next_batch()
    t.driver.close()
    t.batch = backup
    t.send_result(failed=[(*root, Cause.FAILED) for root in left])
    t.start()
    t.until(lambda: t.count("failed") == 50)
    t.now_s += 100
    again = t.next_batch()
    assert offsets(t, list(t.roots(again))) == list(range(50, RECORDS))
    t.send_result(acked=[*first, *t.roots(again)])
    t.until(lambda: t.committed() == RECORDS)


def test_the_newest_checkpoint_is_trusted_after_a_crash(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=RECORDS)
    first = t.next_batch(limit=50)
    t.start()  # after a crash: no commit knows of that batch
    second = t.next_batch()
    assert offsets(t, list(t.roots(second))) == list(range(50, RECORDS))
    t.start()
    t.start()
    assert t.next_batch() is None
    t.send_result(acked=t.emitted(first) + t.emitted(second))
    t.until(lambda: t.committed() == RECORDS)


def test_a_checkpoint_is_an_older_one_if_another_driver_has_begun_with_one_before_it(
    spout: Callable[..., SpoutTester],
) -> None:
    """It has seen, and left behind, results of a batch that it did not know of."""
    t = spout(records=RECORDS)
    t.next_batch(limit=10)
    backup = t.batch
    t.driver.commit_and_report()
    unknown = t.emitted(t.next_batch(limit=10))
    newest = t.batch
    t.batch = backup
    t.start()
    t.send_result(failed=[(*root, Cause.FAILED) for root in unknown])
    t.until(lambda: t.result_position() == 1)
    t.batch = newest
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(10, RECORDS))
    assert {generation for _, generation in again} == {generation_of(t.driver.tasks[0].slots[0].run, 0)}
