"""Reports on T.stats: invalid records are counted, totals continue over restarts, windows add up."""

import json

import pytest

from acktree.console.view.reports import MAX_PROCESSES, THIN_EACH, WINDOWS_S, Process, Reports
from acktree.core.reports.stats import Report

NOW_MS = 1_700_000_000_000


def make_report(time_ms=NOW_MS, *, role="bolt", component="count", instance="count@a:1", **values):
    return Report(role, component, instance, time_ms, values)


def reports_of(*reports):
    found = Reports()
    for report in reports:
        found.add_record(report.encode(), report.time_ms)
    return found


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"role":"bolt"}',
        b'{"role":1,"component":"c","instance":"i","time_ms":1,"values":{}}',
        b'{"role":"bolt","component":"c","instance":"i","time_ms":"x","values":{}}',
        b'{"role":"bolt","component":"c","instance":"i","time_ms":1,"values":[]}',
        b"[" * 100_000,
        make_report(NOW_MS + 10**15).encode(),
        make_report(0).encode(),
    ],
    ids=range(13),
)
def test_invalid_reports_are_counted_and_change_nothing(value):
    reports = reports_of(make_report(executed=3))
    reports.add_record(value, NOW_MS)
    assert (reports.accepted, reports.invalid_reports, len(reports.processes)) == (1, 1, 1)


def test_figures_that_are_not_numbers_are_ignored():
    text = json.dumps(
        {**json.loads(make_report().encode()), "values": {"executed": 5, "acked": "x", "failed": [1]}}
    )
    reports = Reports()
    for odd in (
        text,
        text.replace('"x"', "NaN"),
        text.replace('"x"', "1e999"),
        text.replace('"x"', "9" * 400),
    ):
        reports.add_record(odd.encode(), NOW_MS)
    counted, _ = reports.counted("bolt", "count", None, NOW_MS)
    assert counted == {"executed": 5.0}
    assert reports.invalid_reports == 0


def test_a_rate_is_a_count_divided_by_its_time():
    reports = reports_of(*(make_report(NOW_MS + 2_000 * n, executed=100 * n) for n in range(6)))
    assert reports.rates("bolt", "count", NOW_MS + 10_000)["executed"] == pytest.approx(50.0)


def test_totals_continue_when_a_process_restarts_under_its_name():
    reports = reports_of(
        *(make_report(NOW_MS + 2_000 * n, executed=value) for n, value in enumerate([0, 50, 100, 10, 30]))
    )
    counted, _ = reports.counted("bolt", "count", 600.0, NOW_MS + 8_000)
    assert counted["executed"] == 130.0


def test_a_window_counts_only_what_happened_in_it():
    minute_ms = 60_000
    reports = reports_of(*(make_report(NOW_MS + n * minute_ms, executed=n) for n in range(300)))
    now_ms = NOW_MS + 299 * minute_ms
    assert reports.counted("bolt", "count", WINDOWS_S["10m"], now_ms)[0]["executed"] == 10.0
    assert reports.counted("bolt", "count", WINDOWS_S["3h"], now_ms)[0]["executed"] == pytest.approx(
        180, abs=10
    )
    assert reports.counted("bolt", "count", WINDOWS_S["all"], now_ms)[0]["executed"] == 299.0


def test_processes_add_up_and_silent_ones_have_no_rate():
    reports = reports_of(
        make_report(NOW_MS, executed=0),
        make_report(NOW_MS, instance="count@b:2", executed=0),
        make_report(NOW_MS + 10_000, executed=100),
        make_report(NOW_MS + 10_000, instance="count@b:2", executed=300),
    )
    assert reports.rates("bolt", "count", NOW_MS + 10_000)["executed"] == pytest.approx(40.0)
    assert reports.rates("bolt", "count", NOW_MS + 60_000) is None
    assert len(reports.alive("bolt", "count", NOW_MS + 10_000)) == 2


def test_samples_get_sparser_with_age_and_processes_have_a_limit():
    reports = reports_of(*(make_report(NOW_MS + 2_000 * n, executed=n) for n in range(43_200)))
    (process,) = reports.processes.values()
    assert len(process.samples) < 800
    for number in range(MAX_PROCESSES + 5):
        report = make_report(NOW_MS + 86_400_000, instance=f"i{number}")
        reports.add_record(report.encode(), report.time_ms)
    assert len(reports.processes) == MAX_PROCESSES


@pytest.mark.parametrize("since_ms", [0, 1, 999])
def test_a_process_has_no_rate_before_two_reports_of_it_are_apart(since_ms):
    early = make_report(instance="count@a:0", executed=0)
    reports = reports_of(early, *[make_report(NOW_MS + 60_000 + more, executed=50) for more in (0, since_ms)])
    assert reports.rates("bolt", "count", NOW_MS + 61_000) is None


def test_a_rate_is_the_count_of_one_process_between_two_of_its_reports():
    reports = reports_of(
        make_report(executed=1_000_000),
        make_report(NOW_MS + 60_000, executed=1_000_600),
        make_report(NOW_MS + 60_000, instance="count@a:2", executed=77),
    )
    assert reports.rates("bolt", "count", NOW_MS + 60_000) == {"executed": 10.0}
    assert reports.rates("spout", "count", NOW_MS + 60_000) is None


def test_samples_are_bounded_and_thinned_only_occasionally(monkeypatch):
    thinned, thin = [], Process._thin
    monkeypatch.setattr(Process, "_thin", lambda process, now_ms: thinned.append(thin(process, now_ms)))
    reports = reports_of(*(make_report(NOW_MS + 2_000 * n, executed=n) for n in range(20_000)))
    (process,) = reports.processes.values()
    assert len(process.samples) < 1_000
    assert len(thinned) < 20_000 / THIN_EACH
