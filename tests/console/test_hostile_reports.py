"""No report on T.stats, whatever it holds, keeps an operator from seeing the topology."""

import json

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from acktree.console.commands.watching.describe import in_text
from acktree.console.page.routes import status_page
from acktree.console.page.serving.frame import Frame, PageSettings
from acktree.console.page.serving.status_metrics import StatusCollector
from acktree.console.page.serving.watcher import PageState
from acktree.console.view.documents import to_json
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from acktree.wire.ids import generation_of, root_id
from console.test_page import published, seen

NOW_MS = 1_700_000_000_000
ROOT = f"root_age_s.{root_id(0, generation_of(1, 0), 7):016x}"
NUMBERS = {
    "spout": (
        *("next.lines.0", "frontier.lines.0", "pending.lines.0", "held_s.lines.0"),
        *("emissions.lines.0", "waiting.lines.0"),
        *("reason.lines.0", "next_s.lines.0", "idle_s.lines.0"),
        *("pending", "emitted", "completed", "held_back", "breaker_open", "breaker_since_ms"),
    ),
    "bolt": ("in_hand", "executed", "busy_s", "process_s", "stalled_s", "stuck_after_s"),
    "acker": ("partitions", "lag", "cut_lag", "orphans", "folded", "table_bytes", ROOT),
}
FACTS = ("task", "pid", "started_ms", "last_error_ms")
HOSTILE = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "below all": float("-inf"),
    "many digits": 10**400,
    "below zero": -(10**400),
    "large": 10**15 - 1,
    "a lone surrogate": "\ud800",
    "null": None,
    "true": True,
    "a list": [[1]],
}

FRAME = Frame(PageSettings("127.0.0.1:1", "t", {}))


def look(*reports):
    """Make everything that shows a status from reports, as bytes; return the status."""
    found, topology = Reports(), published()
    for each in reports:
        found.add_record(each, NOW_MS)
    status = make_status(seen(topology), found)
    json.dumps(to_json(status), ensure_ascii=False, allow_nan=False).encode()
    in_text(status).encode()
    state = PageState(status, topology, None, 1.0)
    values = {"window": "10m", "windows": status_page.WINDOWS_S, **status_page.status_values(state)}
    FRAME.render("status.html", here="status", twin="/status.json", live=True, **values)
    registry = CollectorRegistry()
    registry.register(StatusCollector({"t": lambda: state}))
    generate_latest(registry)
    return found, status


def report(role, values, /, **more):
    component = {"spout": "lines", "bolt": "count", "acker": "acker"}[role]
    fields = {"role": role, "component": component, "instance": "a:1", "time_ms": NOW_MS, "values": values}
    return json.dumps({**fields, **more}).encode()


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("role", NUMBERS)
def test_a_figure_that_cannot_be_shown_hides_nothing(role, hostile):
    good = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3} if role == "spout" else {}
    for name in (*NUMBERS[role], *FACTS, "host", "last_error", "breaker_why", "executing", "calling"):
        found, status = look(report(role, {"breaker_open": 1, **good, name: hostile}))
        assert (found.accepted, found.invalid_reports) == (1, 0), name
        assert len(status.processes) == 1


@pytest.mark.parametrize("name", ["role", "component", "instance"])
def test_a_report_of_a_process_whose_name_cannot_be_shown_is_invalid(name):
    found, _ = look(report("acker", {}, **{name: "\ud800"}))
    assert (found.accepted, found.invalid_reports) == (0, 1)


@pytest.mark.parametrize("time_ms", [True, 10**400, -(10**30), 1.7e12, "now", None])
def test_a_report_with_a_malformed_time_is_invalid(time_ms):
    found, _ = look(report("bolt", {}, time_ms=time_ms))
    assert (found.accepted, found.invalid_reports) == (0, 1)


def test_a_figure_whose_name_cannot_be_shown_is_left_out():
    good = {"frontier.lines.0": 5, "next.lines.0": 8, "pending.lines.0": 3}
    found, status = look(report("spout", {"next.\ud800.0": 7, **good}))
    assert found.accepted == 1
    assert status.partitions[0].pending == 3
