"""The processes of a topology by their reports: of every role, of versions old and new, and silent ones."""

from acktree.console.commands.watching.describe import in_text
from acktree.console.view.processes import SILENT_SHOWN_S, make_processes, needed_processes
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.core.reports.stats import Report
from console.test_page import published, seen

NOW_MS = 1_700_000_000_000
NEW = {"host": "a", "pid": 7, "started_ms": NOW_MS - 3_600_000}


def reports_of(*reports):
    found = Reports()
    for each in reports:
        found.add_record(each.encode(), each.time_ms)
    return found


def test_processes_are_listed_by_role_and_component_with_what_they_report():
    failure = {"last_error": "ValueError: no\x1b[31m city", "last_error_ms": NOW_MS - 1000}
    rows = make_processes(
        reports_of(
            Report("acker", "acker", "a:9", NOW_MS, {**NEW, "partitions": 2}),
            Report("bolt", "count", "count@a:7", NOW_MS - 2000, {**NEW, **failure}),
            Report("spout", "lines", "lines-0", NOW_MS, {**NEW, "task": 0, "next.a.0": 5, "next.a.1": 6}),
        ),
        NOW_MS,
    )
    assert [(row.role, row.component, row.task, row.partitions) for row in rows] == [
        ("spout", "lines", 0, 2),
        ("bolt", "count", None, None),
        ("acker", "acker", None, 2),
    ]
    count = rows[1]
    assert (count.host, count.pid, count.started_ms) == ("a", 7, NEW["started_ms"])
    assert (count.last_error, count.last_error_ms) == ("ValueError: no [31m city", NOW_MS - 1000)
    assert (count.reported_ms, count.reported_s, count.is_silent) == (NOW_MS - 2000, 2.0, False)


def test_a_process_of_an_older_version_is_listed_without_what_it_does_not_report():
    (row,) = make_processes(reports_of(Report("bolt", "count", "count@a:7", NOW_MS, {"lag": 3})), NOW_MS)
    assert (row.instance, row.host, row.pid, row.started_ms, row.last_error) == ("count@a:7", *[None] * 4)


def test_a_silent_process_stays_listed_for_a_while_with_its_last_failure():
    last = Report("bolt", "count", "count@a:7", NOW_MS, {"last_error": "ValueError", "last_error_ms": NOW_MS})
    found = reports_of(last)
    (row,) = make_processes(found, NOW_MS + 60_000)
    assert (row.is_silent, row.last_error) == (True, "ValueError")
    assert make_processes(found, NOW_MS + int(1000 * SILENT_SHOWN_S) + 1) == ()


def test_a_component_needs_its_processes_whether_or_not_any_has_run():
    status = make_status(seen(published()), reports_of(Report("bolt", "count", "count@a:7", NOW_MS, {})))
    missing = {each.component: each.missing for each in needed_processes(status)}
    assert missing == {"lines": 1, "count": 0, "sum": 1, "acker": 1}


def test_describe_shows_processes_and_their_last_error_as_text():
    failure = {"last_error": "ValueError: no city", "last_error_ms": NOW_MS - 1000}
    found = reports_of(Report("bolt", "count", "count@a:7", NOW_MS, {**NEW, **failure}))
    text = in_text(make_status(seen(published()), found))
    assert "LAST_ERROR" in text
    (line,) = [line for line in text.splitlines() if line.startswith("bolt  ")]
    assert line.endswith("ValueError: no city")
