"""Which bolt limits a spout: one line for the operator in place of every frontier that its queue holds."""

from acktree.console.commands.watching.describe import in_text
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.core.reports.stats import Report
from console.test_page import published, seen

NOW_MS = 1_700_000_000_000
HELD = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3, "held_s.lines.0": 180.0}


def report(role, component, instance, age_s=0.0, **values):
    return Report(role, component, instance, int(NOW_MS - 1000 * age_s), values)


def limited(behind_s, bolt="count", at="words/0", instance="acker", since_commit_s=1.0):
    figures = {"limited_by.lines": bolt, "limited_at.lines": at, "behind_s.lines": behind_s}
    figures["since_commit_s.lines"] = since_commit_s
    return report("acker", "acker", instance, **figures)


def status(*reports, snapshot=None):
    found, snapshot = Reports(), snapshot or seen(published())
    for each in (report("spout", "lines", "lines-0", **HELD), *reports):
        found.add_record(each.encode(), each.time_ms)
    return make_status(snapshot, found, after_s=90.0)


def test_a_frontier_held_by_a_bolts_queue_is_one_line_about_the_bolt_and_not_a_stall():
    found = status(limited(120.0))
    assert [each.kind for each in found.stuck if each.kind == "held-frontier"] == []
    (limit,) = found.limits
    assert (limit.spout, limit.bolt, limit.behind_s) == ("lines", "count", 120.0)
    assert f"spout lines: {limit.text}" in in_text(found)
    assert limit.text.startswith("limited by bolt count (")
    assert "120 s behind" in limit.text


def test_the_line_has_the_bolts_rate_and_the_queue_in_the_partition_that_holds_it():
    snapshot = seen(published())
    snapshot.starts["words", 1], snapshot.ends["words", 1] = 0, 2  # beside 8 that wait in words/0
    executed = [report("bolt", "count", "count@a", age_s, executed=n) for age_s, n in ((2.0, 0), (0.0, 396))]
    (limit,) = status(limited(31.2), *executed, snapshot=snapshot).limits
    assert limit.text == "limited by bolt count (198/s, 31 s behind, words/0 holds 80 %)"


def test_the_line_says_that_no_process_runs_the_bolt():
    snapshot = seen(published())
    snapshot.groups = {}
    found = status(limited(31.2), snapshot=snapshot)
    assert found.limits[0].text == "limited by bolt count (no process runs it, 31 s behind)"
    assert {each.where for each in found.stuck if each.kind == "no-bolt"} == {"count"}
    assert "stalled-bolt" not in {each.kind for each in found.stuck}


def test_a_frontier_held_for_longer_than_the_queue_explains_is_stuck():
    assert "held-frontier" in {each.kind for each in status(limited(89.0)).stuck}


def test_a_stalled_bolt_is_stuck_and_the_frontiers_it_holds_are_not_listed():
    alive = report("bolt", "count", "count@a")
    (found,) = status(limited(300.0, since_commit_s=91.0), alive).stuck
    assert (found.kind, found.where) == ("stalled-bolt", "count")
    assert found.text == "it has committed nothing of words/0 for 91 s, and tuples wait there"
    assert status(limited(300.0, since_commit_s=89.0), alive).stuck == ()


def test_the_acker_that_sees_the_bolt_furthest_behind_counts():
    found = status(limited(3.0, instance="a"), limited(5.0, instance="b"), limited(4.0, instance="c"))
    assert [limit.behind_s for limit in found.limits] == [5.0]


def test_a_report_of_an_unknown_bolt_or_without_a_number_sets_no_limit():
    assert status(limited(120.0, bolt="<b>")).limits == ()
    assert status(limited("long")).limits == ()


def test_a_bolt_about_which_nothing_is_known_is_named():
    (limit,) = status(limited(9.0, at="")).limits
    assert "the acker cannot read its position" in limit.text


def test_a_full_spout_without_old_trees_is_limited_by_the_longest_queue():
    executed = [report("bolt", "count", "count@a", age_s, executed=n) for age_s, n in ((2.0, 0), (0.0, 4))]
    full = report("spout", "lines", "lines-0", **HELD, pending=3, pending_limit=3)
    (limit,) = status(full, *executed).limits
    assert limit.text == "limited by bolt count (2/s, 4 s behind)"
    assert status(report("spout", "lines", "lines-0", **HELD, pending_limit=100), *executed).limits == ()
    assert status(full).limits == (), "how fast the bolt is nobody knows"


def test_a_slow_bolt_is_not_named_in_place_of_one_that_does_nothing():
    executed = [report("bolt", "count", "count@a", age_s, executed=n) for age_s, n in ((2.0, 0), (0.0, 4))]
    full = report("spout", "lines", "lines-0", **HELD, pending=3, pending_limit=3)
    snapshot = seen(published())
    snapshot.starts["out", 0], snapshot.ends["out", 0] = 0, 100
    assert status(full, *executed, snapshot=snapshot).limits == ()
