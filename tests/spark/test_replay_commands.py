"""Replay commands: exactly what was asked for is emitted again, once, whatever crashes."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from acktree.console.main import main
from acktree.wire.control_records import Cause
from spark.spouts import SpoutTester

pytestmark = pytest.mark.simulated


def done(spout: Callable[..., SpoutTester], records: int = 10) -> SpoutTester:
    """Return a spout whose records are all done."""
    t = spout(records=records)
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == records)
    return t


def obeyed(t: SpoutTester, commands: int = 1) -> None:
    t.until(lambda: t.count("commands") == commands)


def test_a_done_range_is_emitted_again_and_old_acks_do_not_finish_it(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    first = t.emitted(t.next_batch())
    t.send_result(acked=first)
    t.until(lambda: t.committed() == 10)
    t.command((3, 6))
    obeyed(t)
    t.until(lambda: t.committed() == 3)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [3, 4, 5]
    assert not {generation for _, generation in again} & {generation for _, generation in first}
    t.send_result(acked=first)
    t.send_result(acked=again[:1])
    t.until(lambda: t.committed() == 4)
    t.send_result(acked=again[1:])
    t.until(lambda: t.committed() == 10)


def test_only_the_requested_part_of_a_range_in_flight_is_emitted_again(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=10)
    first = t.emitted(t.next_batch())
    t.command((2, 4), (8, 100))
    obeyed(t)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [2, 3, 8, 9]
    t.send_result(acked=first)
    t.until(lambda: t.committed() == 2)
    assert t.pending == 4
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_a_command_sent_while_no_driver_ran_is_applied_once(spout: Callable[..., SpoutTester]) -> None:
    t = done(spout)
    t.driver.close()
    t.command((0, 2))
    t.start()
    obeyed(t)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [0, 1]
    t.start()
    assert t.next_batch() is None
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)
    t.start()
    t.until(lambda: t.driver.all_done({}))
    assert (t.next_batch(), t.count("commands")) == (None, 0)


def test_a_crash_before_the_batch_is_written_emits_it_again(spout: Callable[..., SpoutTester]) -> None:
    t = done(spout)
    t.command((4, 6))
    obeyed(t)
    t.start()
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [4, 5]
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_after_a_crash_a_command_continues_where_the_written_batch_ends(
    spout: Callable[..., SpoutTester],
) -> None:
    t = spout(records=30, max_pending=10)
    for done in (10, 20, 30):
        t.send_result(acked=t.emitted(t.next_batch()))
        t.until(lambda done=done: t.committed() == done)
    t.command((1, 9), (11, 20))
    obeyed(t)
    first = t.emitted(t.next_batch())
    assert [offset for offset, _ in first] == [*range(1, 9), 11, 12]
    t.send_result(acked=first[1:6])
    t.start()
    t.until(lambda: t.pending == 5)
    second = t.emitted(t.next_batch())
    assert [offset for offset, _ in second] == list(range(13, 18))
    t.start()
    t.send_result(acked=first + second)
    t.until(lambda: t.pending == 0)
    third = t.emitted(t.next_batch())
    assert [offset for offset, _ in third] == [18, 19]
    t.send_result(acked=third)
    t.until(lambda: t.committed() == 30)


def test_a_crash_before_the_commit_of_a_command_applies_it_once_more(
    spout: Callable[..., SpoutTester], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = done(spout)
    t.command((4, 6))
    with monkeypatch.context() as broken:
        broken.setattr(t.driver.commits, "commit", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            obeyed(t)
    t.start()
    obeyed(t)
    assert [offset for offset, _ in t.emitted(t.next_batch())] == [4, 5]


def test_after_a_lost_checkpoint_a_command_is_in_flight(
    spout: Callable[..., SpoutTester],
) -> None:
    t = done(spout)
    t.command((4, 7))
    obeyed(t)
    again = t.emitted(t.next_batch())
    t.send_result(acked=again[1:2])
    t.until(lambda: t.pending == 2)
    t.driver.commit_and_report()
    t.batch = None
    t.start()
    assert t.next_batch() is None
    assert t.pending == 2
    t.send_result(acked=[again[0], again[2]])
    t.until(lambda: t.committed() == 10)


def test_commands_for_one_partition_are_applied_in_order(spout: Callable[..., SpoutTester]) -> None:
    t = done(spout)
    t.command((2, 4))
    t.command((3, 5))
    obeyed(t)
    first = t.emitted(t.next_batch())
    assert [offset for offset, _ in first] == [2, 3]
    t.driver.commit_and_report()
    t.start()
    t.send_result(acked=first)
    obeyed(t)
    second = t.emitted(t.next_batch())
    assert [offset for offset, _ in second] == [3, 4]
    t.send_result(acked=second)
    t.until(lambda: t.committed() == 10)


def test_a_replayed_record_that_fails_has_all_its_attempts_again(spout: Callable[..., SpoutTester]) -> None:
    t = spout(records=1)
    (pair,) = t.emitted(t.next_batch())
    for attempt in (1, 2):
        t.send_result(failed=[(*pair, Cause.FAILED)])
        t.until(lambda attempt=attempt: t.count("failed") == attempt)
        t.now_s += 100
        (pair,) = t.emitted(t.next_batch())
    t.command((0, 1))
    obeyed(t)
    (again,) = t.emitted(t.next_batch())
    t.send_result(failed=[(*pair, Cause.FAILED), (*again, Cause.FAILED)])
    t.until(lambda: t.count("failed") == 3)
    assert t.count("dead_lettered") == 0
    t.now_s += 100
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 1)


def test_a_rewind_over_a_command_replaces_it(spout: Callable[..., SpoutTester]) -> None:
    t = done(spout)
    t.command((4, 6))
    obeyed(t)
    t.operator_commits(2)
    t.until(lambda: t.count("rewinds") == 1)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == list(range(2, 10))
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)


def test_results_still_count_two_hundred_runs_later(spout: Callable[..., SpoutTester]) -> None:
    """Each command and each rewind takes a run, and runs go round: floors are raised with them."""
    t = spout(records=3)
    for _ in range(200):
        t.driver.tasks[0].slots[0].begin_run()
    t.send_result(acked=t.emitted(t.next_batch()))
    t.until(lambda: t.committed() == 3)


@pytest.mark.real
def test_the_command_line_plans_first_and_replays_with_execute(spout: Callable[..., SpoutTester]) -> None:
    t = done(spout)
    asked = ("replay", f"{t.name}.source", 0, 3, 6, "-b", t.bootstrap)
    plan = CliRunner().invoke(main, [*map(str, asked), "--format", "json"])
    assert plan.exit_code == 0, plan.output
    plan_made = json.loads(plan.output)
    assert (plan_made["topology"], plan_made["executed"]) == (t.name, False)
    assert plan_made["commands"][0]["spans"] == [{"from": 3, "to": 6}]
    executed = CliRunner().invoke(main, [*map(str, asked), "--topology", t.name, "--execute"])
    assert executed.exit_code == 0, executed.output
    assert "replay 3 offset(s)" in executed.output
    obeyed(t)
    again = t.emitted(t.next_batch())
    assert [offset for offset, _ in again] == [3, 4, 5]
    t.send_result(acked=again)
    t.until(lambda: t.committed() == 10)
