"""A driver that takes over reads the results that are there before it emits anything again."""

from collections.abc import Callable

import pytest

from acktree.core import world
from acktree.producers.spouts.driver import result_topics
from acktree.wire.control_records import Cause
from spark.spouts import DEADLINE_S, SpoutTester

pytestmark = pytest.mark.simulated


def test_nothing_is_replayed_before_all_results_that_may_finish_it_are_read(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acker that was cut off has failed a tree that the next one has finished."""
    t = spout(records=1)
    (first,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*first, Cause.FAILED)], retry_after_ms=0)
    t.send_result(acked=[first])
    t.start()
    monkeypatch.setattr(result_topics, "MAX_RESULTS_PER_POLL", 1)  # one failure
    monkeypatch.setattr(result_topics, "MAX_READ_S", -DEADLINE_S - 1.0)
    t.serve(DEADLINE_S)
    assert t.count("failed") == 1
    assert not t.driver.has_caught_up
    assert t.driver.next_batch(t.driver.log_ends(), None) is None
    t.until(lambda: t.count("completed") == 1)
    assert t.next_batch() is None
    assert t.pending == 0


def test_replays_continue_even_if_ackers_write_results_faster_than_they_are_read(
    spout: Callable[..., SpoutTester],
) -> None:
    """A consumer says that it is at the end only after a wait without records."""
    t = spout(records=1, options={"kafka.fetch.wait.max.ms": "1000"})
    (first,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*first, Cause.FAILED)])
    t.start()
    deadline = world.monotonic_s() + DEADLINE_S
    while not t.count("failed"):
        assert world.monotonic_s() < deadline
        t.serve(0.1)
    assert t.driver.has_caught_up, "not only once a consumer has waited for more"
    t.now_s += 100
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [0]


@pytest.mark.promise("control topics are kept for less time than an outage lasts (`control_retention_s`)")
@pytest.mark.parametrize("has_failed", [False, pytest.param(True, marks=pytest.mark.real)])
def test_records_whose_results_were_removed_unread_are_emitted_again_immediately(
    spout: Callable[..., SpoutTester], has_failed: bool
) -> None:
    """The driver was stopped, or paused, for longer than results are kept: no other one will come."""
    t = spout(records=4)
    emitted = t.emitted(t.next_batch())
    t.send_result(failed=[(*emitted[0], Cause.FAILED)])
    t.until(lambda: t.count("failed") == 1)
    if has_failed:  # its replay is in flight then, in the last batch
        t.now_s += 2
        emitted[0] = t.emitted(t.next_batch())[0]
    t.driver.commit_and_report()
    t.send_result(acked=[emitted[1]])
    t.remove_results()
    t.send_result(acked=[emitted[2]])
    t.start()
    t.until(lambda: t.count("completed") == 1)
    again = t.emitted(t.next_batch())
    assert sorted(offset for offset, _ in again) == [0, 1, 3]
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 4)
    t.driver.commit_and_report()
    t.start()
    t.until(lambda: True)
    assert t.next_batch() is None


def test_a_start_emits_nothing_again_if_all_removed_results_had_been_read(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=4)
    emitted = t.emitted(t.next_batch())
    t.send_result(acked=emitted[:2])
    t.until(lambda: t.committed() == 2)
    t.driver.commit_and_report()
    t.remove_results()
    t.start()
    t.until(lambda: True)
    assert t.next_batch() is None
    assert t.pending == 2
