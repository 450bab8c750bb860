"""The reports of one process, by its loop and in its place."""

from acktree.core.reports.last_error import LastError
from acktree.core.reports.liveness import Executing, Liveness
from acktree.core.reports.stall_reports import RoleReports


def test_a_later_stall_names_nothing_of_an_earlier_one():
    progress = Liveness(executing=lambda: executing)
    reports = RoleReports("spout", "clicks", "clicks-0", progress, {"task": 0})
    executing: Executing | None = Executing("t", 0, 7, root=None)
    progress.calling = "next_tuple"
    assert reports.of_stall().values["executing"] == "t/0/7"
    executing, progress.calling = None, ""
    later = reports.of_stall().values
    assert later.keys() - LastError().figures() == {"task", "stalled_s", "stuck_after_s"}


def test_the_newest_report_is_the_loops_or_the_one_in_its_place():
    reports = RoleReports("bolt", "counts", "counts-0", Liveness())
    assert reports.newest == ()
    loops = reports.of_loop({"lag": 3, "acked": 5})
    assert reports.newest == (loops,)
    instead = reports.of_stall(lambda values: {"acked": int(values["acked"]) + 1})
    assert reports.newest == (instead,)
    assert "lag" not in instead.values
    assert instead.values["acked"] == 6
