"""What a report says of its process: its last failure as one short line, for readers old and new."""

from acktree.core.reports.last_error import ERROR_CHARS, LastError, facts_of, one_line
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stall_reports import RoleReports
from acktree.core.reports.stats import decode_report


def test_every_report_of_a_process_has_its_last_failure_until_the_next_one():
    reports = RoleReports("bolt", "counts", "counts-0", Liveness())
    assert "last_error" not in reports.of_loop({"lag": 1}).values
    reports.last_error.failed("ValueError: first")
    reports.last_error.failed("ValueError: second")
    for report in (reports.of_loop({"lag": 2}), reports.of_stall(), reports.of_loop({"lag": 3})):
        facts = facts_of(decode_report(report.encode()).values)
        assert facts.last_error == "ValueError: second"
        assert facts.last_error_ms >= facts.started_ms > 0
        assert (facts.host, facts.pid) == (LastError().figures()["host"], LastError().figures()["pid"])


def test_a_failure_is_one_short_line_without_control_characters():
    error = LastError()
    error.failed("bad\x1b[31m \x00line\r\n\twith \u202e" + "x" * 10_000)
    text = error.figures()["last_error"]
    assert len(text) == ERROR_CHARS
    assert text.startswith("bad [31m line with x")
    assert text.endswith("x…")
    assert text.isprintable()


def test_a_report_without_these_figures_or_with_odd_ones_is_accepted():
    assert set(facts_of({"executed": 3})) == {None}
    odd = {"host": 7, "pid": "x", "started_ms": -1, "last_error": ["a"], "last_error_ms": True}
    assert set(facts_of(odd)) == {None}
    assert facts_of({"last_error": "a\nb", "started_ms": 1e30}).last_error == one_line("a b")
