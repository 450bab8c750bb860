"""What a script learns of a topology by exit codes: 0 is said only if all that should report does."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from acktree.console.commands.watching import describe, pending
from acktree.console.main import main
from acktree.console.view.documents import PendingRecord
from acktree.console.view.reports import Reports
from acktree.console.view.status import make_status
from console.test_page import published, reported, seen

RECORD = PendingRecord("lines", "orders", 0, 0, 0, "in flight", 99.0, None, 1, 1, "f", 0, 1.0)
AT = ["--topology", "t", "-b", "127.0.0.1:1"]


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch):
    for module in (describe, pending):
        monkeypatch.setattr(module, "Cluster", lambda *_: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(module, "read_with_reports", lambda _: (seen(published()), Reports()))
        monkeypatch.setattr(module, "in_text", lambda _: "")


@pytest.mark.parametrize("unreported", [(), ("no acker",)])
@pytest.mark.parametrize("stuck", [(), ("x",)])
def test_describe(monkeypatch: pytest.MonkeyPatch, stuck: tuple[str, ...], unreported: tuple[str, ...]):
    status = SimpleNamespace(stuck=stuck, unreported=unreported)
    monkeypatch.setattr(describe, "make_status", lambda *_, **__: status)
    code = 1 if stuck else 3 if unreported else 0
    assert CliRunner().invoke(main, ["describe", *AT]).exit_code == code


@pytest.mark.parametrize("unreported", [(), ("no acker",)])
@pytest.mark.parametrize("age_s", [None, 89.0, 91.0])
def test_pending_list(monkeypatch: pytest.MonkeyPatch, age_s: float | None, unreported: tuple[str, ...]):
    status = replace(make_status(seen(published()), Reports()), unreported=unreported)
    monkeypatch.setattr(pending, "make_status", lambda *_: status)
    monkeypatch.setattr(pending, "oldest_pending", lambda *_: [replace(RECORD, age_s=age_s)])
    code = 1 if age_s == 91.0 else 3 if unreported else 0
    assert CliRunner().invoke(main, ["pending", "list", *AT]).exit_code == code
    done = CliRunner().invoke(main, ["pending", "list", *AT, "--format", "json"])
    assert (done.exit_code, json.loads(done.stdout)["unreported"]) == (code, [*unreported])


def test_pending_list_says_how_many_are_pending_and_how_to_see_what_one_waits_for():
    status = make_status(seen(published()), reported())
    said = list(pending.remarks(status, [RECORD]))
    assert said[0].startswith("1 of 3 pending records are listed: ")
    assert said[1:3] == [
        "bolt count is 8 records behind",
        "to see what the oldest one waits for: acktree trace --topology t orders 0 0",
    ]
    assert said[3].startswith("note: no acker has reported for ")
    nothing = make_status(seen(published()), Reports())
    assert next(pending.remarks(nothing, [])).startswith("0 of - pending records are listed: ")
