"""What is pending of a source partition, by its commit and the reports; what nobody reports is not known."""

import pytest

from acktree.console.view.cluster import CommittedOffset
from acktree.console.view.reports import Process, Reports
from acktree.console.view.source_view import (
    EMITTED,
    IN_FLIGHT,
    WAITING,
    oldest_pending,
    open_roots,
    slot_view,
    trace_command,
)
from acktree.console.view.status import make_status, source_views
from acktree.core.reports.stats import Report, decode_report
from acktree.core.topology.registry import Slot
from acktree.wire.ids import generation_of, root_id
from console.test_page import published, seen

SLOT = Slot(slot=3, spout="lines", topic="lines", topic_id="id", partition=0)
NOW_MS = 1_700_000_000_000


def root(offset, run=1, attempt=0, slot=3):
    return root_id(slot, generation_of(run, attempt), offset)


def process(role, time_ms=NOW_MS, instance="a", **values):
    return Process(decode_report(Report(role, "lines", instance, time_ms, values).encode()))


def spout(time_ms=NOW_MS, **figures):
    """Return a process of the spout that reports of the partition."""
    return process("spout", time_ms, **{f"{name}.lines.0": value for name, value in figures.items()})


def acker(ages, time_ms=NOW_MS, instance="a"):
    return process("acker", time_ms, instance, **{f"root_age_s.{one:016x}": age for one, age in ages.items()})


def view(*processes, frontier=10, slot=SLOT):
    commit = None if frontier is None else CommittedOffset(frontier, "")
    roots = open_roots(each for each in processes if each.latest.role == "acker")
    spouts = [each for each in processes if each.latest.role == "spout"]
    return slot_view(slot, commit, roots.get(slot.slot, {}), spouts)


def test_the_spout_reports_pending_records_and_all_other_emitted_ones_are_done():
    made = view(spout(frontier=10, next=20, pending=8, held_s=5.0))
    assert (made.frontier, made.next_offset, made.held_s) == (10, 20, 5.0)
    assert (made.pending, made.done_above) == (8, 2)


def test_without_a_report_it_is_unknown_whether_anything_is_pending():
    made = view(frontier=10)
    assert (made.next_offset, made.pending, made.done_above) == (None, None, None)
    assert (made.held_s, made.held_by, made.records()) == (None, None, [])


def test_the_number_of_pending_records_is_unknown_where_only_it_is_not_reported():
    made = view(spout(frontier=10, next=20, held_s=5.0))
    assert (made.pending, made.done_above) == (None, None)
    assert (made.held_by.offset, made.held_s) == (10, 5.0)


@pytest.mark.parametrize(
    ("frontier", "pending", "done_above"),
    [(9, 6, 4), (10, 6, 4), (13, 6, 1), (16, 4, 0), (20, 0, 0), (25, 0, 0)],
)
def test_a_report_older_than_the_commit_shows_no_more_pending_than_emitted_records(
    frontier, pending, done_above
):
    made = view(spout(frontier=10, next=20, pending=6), frontier=frontier)
    assert (made.pending, made.done_above) == (pending, done_above)


@pytest.mark.parametrize("pending", [-1, -1000, 11, 1000])
def test_an_impossible_number_of_pending_records_is_kept_within_bounds(pending):
    made = view(spout(frontier=10, next=20, pending=pending))
    assert (made.pending, made.done_above) == ((10, 0) if pending > 0 else (0, 10))


def test_the_record_at_the_frontier_has_the_age_of_its_first_emission():
    held = view(spout(frontier=10, next=20, held_s=75.0)).held_by
    assert (held.offset, held.state, held.age_s, held.at_least_s) == (10, IN_FLIGHT, 75.0, None)
    assert (held.first_emission_ms, held.attempts, held.root) == (NOW_MS - 75_000, 1, None)


def test_an_age_that_is_a_lower_bound_is_shown_as_one():
    held = view(spout(frontier=10, next=20, held_s=75.0, held_longer=1)).held_by
    assert (held.age_s, held.at_least_s, held.first_emission_ms) == (None, 75.0, None)


def test_a_record_that_waits_for_its_replay_says_so_and_how_often_it_was_emitted():
    held = view(spout(frontier=10, next=20, held_s=75.0, emissions=19, waiting=1)).held_by
    assert (held.state, held.attempts) == (WAITING, 19)


def test_a_report_older_than_the_commit_says_nothing_about_the_frontiers_record():
    made = view(spout(frontier=8, next=20, pending=12, held_s=75.0, waiting=1))
    assert (made.held_s, made.pending) == (None, 10)
    assert (made.held_by.offset, made.held_by.state, made.held_by.known_age_s) == (10, EMITTED, None)


def test_a_report_that_is_ahead_of_the_commit_counts():
    made = view(spout(frontier=12, next=20, pending=8, held_s=3.0))
    assert (made.frontier, made.pending, made.held_by.offset, made.held_s) == (10, 8, 12, 3.0)
    assert view(spout(frontier=12, next=20, held_s=3.0), frontier=None).held_by.offset == 12


def test_where_everything_is_done_no_record_holds_the_frontier():
    made = view(spout(frontier=20, next=20, pending=0, held_s=0.0), frontier=20)
    assert (made.pending, made.held_by, made.held_s) == (0, None, None)


def test_if_two_drivers_report_a_partition_the_one_further_ahead_counts():
    old, new = spout(NOW_MS + 9_000, frontier=10, next=20), spout(NOW_MS, frontier=11, next=30)
    assert [view(*each).next_offset for each in ((old, new), (new, old))] == [30, 30]


def test_the_roots_of_the_ackers_are_listed_beside_what_holds_the_frontier():
    pending = {root(10, attempt=3): 4.0, root(15, attempt=1): 9.0}
    made = view(spout(frontier=10, next=20, held_s=75.0), acker(pending))
    first, second = oldest_pending([made], 5)
    assert (first.offset, first.age_s, first.root_age_s, first.attempt, first.attempts) == (
        10,
        75.0,
        4.0,
        3,
        4,
    )
    assert (second.offset, second.age_s, second.at_least_s, second.attempts) == (15, None, 9.0, 2)
    assert (second.state, second.root) == (IN_FLIGHT, f"{root(15, attempt=1):016x}")
    assert [each.offset for each in oldest_pending([made], 1)] == [10]
    assert [each.offset for each in oldest_pending([made], 5, older_than_s=10.0)] == [10]


def test_a_record_committed_as_done_is_not_pending_in_any_report():
    """An acker that died is believed for as long as its last report counts."""
    made = view(spout(frontier=10, next=20), acker({root(4): 50.0, root(9): 40.0, root(13): 30.0}))
    assert list(made.roots) == [13]


def test_a_root_reported_by_two_ackers_is_listed_once_from_the_newer_report():
    old, new = acker({root(15): 50.0}, NOW_MS - 9_000, "dead"), acker({root(15): 1.0}, NOW_MS, "new")
    for ackers in ((old, new), (new, old)):
        made = view(spout(frontier=10, next=20), *ackers)
        assert made.roots == {15: (root(15), 1.0)}


def test_the_newest_emission_of_a_record_is_that_of_the_younger_root():
    made = view(acker({root(15): 50.0, root(15, attempt=1): 20.0}))
    assert made.roots == {15: (root(15, attempt=1), 20.0)}


@pytest.mark.parametrize(
    "name", ["root_age_s.", "root_age_s.xyz", f"root_age_s.{'f' * 17}", "root_age_s.<b>", "root_age"]
)
@pytest.mark.parametrize("age_s", [1.0, "old", float("inf"), float("nan"), 10**400, True])
def test_figures_that_are_not_ages_of_roots_are_ignored(name, age_s):
    assert open_roots([process("acker", **{name: age_s})]) == {}


@pytest.mark.parametrize("value", ["many", None, True, float("nan"), 10**400])
def test_a_report_with_a_value_that_is_not_a_number_reports_nothing(value):
    made = view(spout(frontier=10, next=value, pending=value, held_s=value))
    assert (made.pending, made.held_s) == (None, None)


def test_the_messages_of_a_python_spout_are_those_of_its_task():
    slot = Slot(slot=3, spout="lines", topic="", topic_id="", partition=1)
    mine = process("spout", task=1, pending=2, **{"held_s..1": 30.0})
    made = view(process("spout", task=0, pending=9), mine, acker({root(7): 3.0}), frontier=None, slot=slot)
    assert (made.pending, made.held_s, made.held_by) == (2, 30.0, None)
    (record,) = made.records()
    assert (record.offset, record.at_least_s) == (7, 3.0)
    assert trace_command("t", record) == f"acktree trace --topology t --root {root(7):016x}"


def test_the_command_of_a_record_of_a_topic_names_its_coordinates():
    held = view(spout(frontier=10, next=20, held_s=75.0)).held_by
    assert trace_command("t", held) == "acktree trace --topology t lines 0 10"


def reports_of(*processes):
    found = Reports()
    for each in processes:
        found.add_record(each.encode(), each.time_ms)
    return found


def lines_report(age_s=0.0):
    values = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3, "held_s.lines.0": 4.0}
    return Report("spout", "lines", "lines-0", int(NOW_MS - 1000 * age_s), values)


def acker_report(age_s=0.0, partitions=1):
    return Report("acker", "acker", "a:1", int(NOW_MS - 1000 * age_s), {"partitions": partitions})


NO_ROOTS = "which roots are pending is not known"
NO_SPOUT = "its pending records are not known"


@pytest.mark.parametrize(
    ("reports", "unreported"),
    [
        ([lines_report(), acker_report()], []),
        ([lines_report()], [f"no acker has reported for 20 s or longer: {NO_ROOTS}"]),
        ([lines_report(), acker_report(45.0)], [f"no acker has reported for 45 s: {NO_ROOTS}"]),
        (
            [lines_report(30.0), acker_report()],
            [f"no process of spout lines has reported for 30 s: {NO_SPOUT}"],
        ),
        (
            [lines_report(), acker_report(partitions=0)],
            [
                "ackers have reported 0 of 1 acker partitions: "
                "which roots the others have pending is not known"
            ],
        ),
    ],
    ids=[
        "all report",
        "no acker ever",
        "an acker that is silent",
        "a spout that is silent",
        "nobody's partition",
    ],
)
def test_missing_reports_are_listed_with_how_long_they_have_been_missing(reports, unreported):
    assert list(make_status(seen(published()), reports_of(*reports)).unreported) == unreported


def test_no_report_is_needed_where_every_record_is_done():
    snapshot = seen(published())
    snapshot.ends["lines", 0] = 5
    assert make_status(snapshot, Reports()).unreported == ()


@pytest.mark.parametrize(("cut_lag", "lines"), [(0, 0), (3, 2)])
def test_a_python_spout_has_nothing_pending_where_no_record_is_above_the_cut(cut_lag, lines):
    snapshot = seen(published(topic=""))
    snapshot.cut_lag = cut_lag
    assert len(make_status(snapshot, Reports()).unreported) == lines


def test_a_partition_without_a_process_of_its_spout_has_no_known_record():
    views = source_views(seen(published()), reports_of(acker_report()))
    assert oldest_pending(views, 9) == []
