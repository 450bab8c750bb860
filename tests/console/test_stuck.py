"""What is stuck: the cause by name, host and record, and before its symptoms."""

import pytest

from acktree.console.view.cluster import GroupStatus
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.schemas.ids import generation_of, root_id
from acktree.schemas.stats import Report
from console.test_page import published, seen

NOW_MS = 1_700_000_000_000
ROOT = f"{root_id(0, generation_of(1, 0), 7):016x}"
STANDSTILL = {
    "standstill_s": 170.5,
    "stuck_after_s": 300.0,
    "executing": "words/0/12",
    "executing_root": ROOT,
}
HELD = {"held_s.lines.0": 180.0}


def report(role, component, instance, age_s=0.0, **values):
    return Report(role, component, instance, int(NOW_MS - 1000 * age_s), values)


def stuck(*reports, snapshot=None, after_s=90.0):
    found = Reports()
    for each in reports:
        found.add_record(each.encode(), each.time_ms)
    return make_status(snapshot or seen(published()), found, after_s=after_s).stuck


SPOUT = report("spout", "lines", "lines-0", **HELD)
COUNT = report("bolt", "count", "count@host-7:4711-ab12", **STANDSTILL)


def test_a_worker_that_stands_still_is_named_with_its_record_before_the_frontier_that_it_holds():
    first, *others = stuck(SPOUT, COUNT)
    assert (first.kind, first.where) == ("stuck-worker", "count@host-7:4711-ab12")
    assert first.text == (
        "bolt count executes words/0/12 of source record lines/0/7, for 170 s; "
        f"look: acktree trace --topology t --root {ROOT}"
    )
    assert [each.kind for each in others] == ["held-frontier"]


def test_a_bolt_that_nobody_serves_comes_before_the_frontier_that_it_holds():
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
    ("standstill", "after_s", "is_stuck"),
    [
        ({"standstill_s": 89.0}, 90.0, False),
        ({"standstill_s": 91.0}, 90.0, True),
        ({"standstill_s": 61.0, "stuck_after_s": 60.0}, 90.0, True),
        ({"standstill_s": "<b>"}, 90.0, False),
    ],
    ids=["short", "as long as a stuck record", "by its own limit", "invalid"],
)
def test_a_standstill_is_stuck_from_a_limit_on(standstill, after_s, is_stuck):
    found = stuck(report("bolt", "count", "count@a:1", **standstill), after_s=after_s)
    assert ("stuck-worker" in {each.kind for each in found}) == is_stuck


def test_a_standstill_outside_execute_names_the_method():
    spout = report("spout", "lines", "lines@a:1", standstill_s=500.0, calling="next_tuple")
    acker = report("acker", "acker", "a:2", standstill_s=400.0, executing_root="$(reboot)")
    first, second, *_ = stuck(spout, acker)
    assert first.text == "spout lines stands still in next_tuple, for 500 s"
    assert second.text == "acker acker stands still outside of user code, for 400 s"


def test_a_report_of_a_worker_that_goes_on_ends_its_standstill():
    old, new = report("bolt", "count", "count@a:1", 4.0, **STANDSTILL), report("bolt", "count", "count@a:1")
    assert "stuck-worker" not in {each.kind for each in stuck(old, new)}
