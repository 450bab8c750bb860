"""What is stuck: the cause by name, host and record, and before its symptoms."""

import pytest

from acktree.console.commands.watching.describe import in_text as describe_text
from acktree.console.commands.watching.pending import in_text as pending_text
from acktree.console.view.cluster import GroupStatus
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.core.reports.stats import Report
from acktree.wire.ids import generation_of, root_id
from console.test_page import published, seen

NOW_MS = 1_700_000_000_000
ROOT = f"{root_id(0, generation_of(1, 0), 7):016x}"
STANDSTILL = {
    "stalled_s": 170.5,
    "stuck_after_s": 300.0,
    "executing": "words/0/12",
    "executing_root": ROOT,
}
HELD = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3, "held_s.lines.0": 180.0}


def report(role, component, instance, age_s=0.0, **values):
    return Report(role, component, instance, int(NOW_MS - 1000 * age_s), values)


def stuck(*reports, snapshot=None, after_s=90.0):
    found = Reports()
    for each in reports:
        found.add_record(each.encode(), each.time_ms)
    return make_status(snapshot or seen(published()), found, after_s=after_s).stuck


SPOUT = report("spout", "lines", "lines-0", **HELD)
COUNT = report("bolt", "count", "count@host-7:4711-ab12", **STANDSTILL)


def test_a_stuck_worker_is_named_with_its_record_before_the_frontier_that_it_holds():
    first, *others = stuck(SPOUT, COUNT)
    assert (first.kind, first.where) == ("stuck-worker", "count@host-7:4711-ab12")
    assert first.text == (
        "bolt count has been executing words/0/12 of source record lines/0/7 for 170 s; "
        f"see: acktree trace --topology t --root {ROOT}"
    )
    assert [each.kind for each in others] == ["held-frontier"]


def test_a_bolt_without_workers_comes_before_the_frontier_that_it_holds():
    snapshot = seen(published())
    snapshot.groups = {}
    found = stuck(SPOUT, snapshot=snapshot)
    assert [(each.kind, each.where) for each in found] == [("no-bolt", "count"), ("held-frontier", "lines/0")]


def test_members_of_a_group_that_no_longer_report_are_named():
    """A call that blocks Python keeps every thread from reporting; librdkafka's heartbeats go on."""
    topology = published()
    snapshot = seen(topology)
    snapshot.groups = {topology.group_of("count"): GroupStatus("STABLE", ("acktree/10.0.0.7",))}
    first, *_ = stuck(SPOUT, snapshot=snapshot)
    assert (first.kind, first.where) == ("silent-bolt", "count")
    assert "acktree/10.0.0.7" in first.text


@pytest.mark.parametrize(
    ("stall", "after_s", "is_stuck"),
    [
        ({"stalled_s": 89.0}, 90.0, False),
        ({"stalled_s": 91.0}, 90.0, True),
        ({"stalled_s": 61.0, "stuck_after_s": 60.0}, 90.0, True),
        ({"stalled_s": "<b>"}, 90.0, False),
    ],
    ids=["short", "as long as a stuck record", "by its own limit", "invalid"],
)
def test_a_stall_counts_as_stuck_from_a_limit_on(stall, after_s, is_stuck):
    found = stuck(report("bolt", "count", "count@a:1", **stall), after_s=after_s)
    assert ("stuck-worker" in {each.kind for each in found}) == is_stuck


def test_a_stall_outside_execute_names_the_method():
    spout = report("spout", "lines", "lines@a:1", stalled_s=500.0, calling="next_tuple")
    acker = report("acker", "acker", "a:2", stalled_s=400.0, executing_root="$(reboot)")
    first, second, *_ = stuck(spout, acker)
    assert first.text == "spout lines has been stalled in next_tuple for 500 s"
    assert second.text == "acker acker has been stalled outside user code for 400 s"


def test_a_report_of_a_worker_that_continues_ends_its_stall():
    old, new = report("bolt", "count", "count@a:1", 4.0, **STANDSTILL), report("bolt", "count", "count@a:1")
    assert "stuck-worker" not in {each.kind for each in stuck(old, new)}


def test_a_frontier_that_is_held_is_named_with_what_its_record_waits_for():
    (found,) = [each for each in stuck(SPOUT) if each.kind == "held-frontier"]
    assert (found.where, found.text) == (
        "lines/0",
        "the frontier 5 has been held for 180 s; it is in flight; see: acktree trace --topology t lines 0 5",
    )


def test_a_starting_spout_is_not_missing_and_its_pending_records_are_unknown():
    starting, found = report("spout", "lines", "lines@host:7", starting=1), Reports()
    assert "no-spout" in {each.kind for each in stuck()}
    assert "no-spout" not in {each.kind for each in stuck(starting)}
    found.add_record(starting.encode(), NOW_MS)
    status = make_status(seen(published()), found)
    assert "spout lines is starting: its pending records are not known yet" in status.unreported
    assert "running, starting" in describe_text(status)
    assert [each.instance for each in status.processes] == ["lines@host:7"]
    found.add_record(SPOUT.encode(), NOW_MS)
    assert not make_status(seen(published()), found).spouts[0].is_starting


def test_a_process_that_has_started_is_not_listed_as_a_silent_one():
    old = report("spout", "lines", "lines@host:7", 30.0, starting=1)
    assert "no-spout" in {each.kind for each in stuck(old)}
    found = Reports()
    found.add_record(old.encode(), NOW_MS)
    assert make_status(seen(published()), found).processes == ()


RETRIED = {**HELD, "reason.lines.0": "KeyError: 'city'", "waiting.lines.0": 1, "next_s.lines.0": 31.4}


@pytest.mark.parametrize(
    ("figures", "is_held"),
    [
        ({"idle_s.lines.0": 0.0}, False),
        ({"idle_s.lines.0": 89.0}, False),
        ({"idle_s.lines.0": 91.0}, True),
        ({"idle_s.lines.0": "soon"}, True),
        ({}, True),
    ],
    ids=["it waits", "in flight", "nothing answers", "invalid", "not a task's failure"],
)
def test_a_record_that_a_task_has_failed_is_not_stuck_while_it_is_retried(figures, is_held):
    found = stuck(report("spout", "lines", "lines-0", **RETRIED | figures))
    assert ("held-frontier" in {each.kind for each in found}) == is_held


def test_the_failure_and_next_attempt_of_a_record_are_shown_with_its_state():
    found, figures = Reports(), {**RETRIED, "idle_s.lines.0": 0.0}
    found.add_record(report("spout", "lines", "lines-0", **figures).encode(), NOW_MS)
    status = make_status(seen(published()), found, after_s=90.0)
    shown = "waiting for replay, next attempt in 31 s: KeyError: 'city'"
    assert f"5 ({shown})" in describe_text(status)
    assert shown in pending_text(status.oldest)
    (record,) = status.oldest
    assert (record.reason, record.next_attempt_s, record.idle_s) == ("KeyError: 'city'", 31.4, 0.0)


def test_a_python_spout_is_stuck_by_the_age_of_its_oldest_message():
    topology = published(topic="")
    spout = report("spout", "lines", "lines@a:1", task=0, pending=1, **{"held_s..0": 180.0})
    (found,) = [each for each in stuck(spout, snapshot=seen(topology)) if each.kind == "held-frontier"]
    assert (found.where, found.text) == ("lines/0", "its oldest message has been pending for 180 s")
