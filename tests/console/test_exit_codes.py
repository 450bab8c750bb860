"""What a script learns of a topology by exit codes: 0 is said only of what was read as a whole."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from acktree.console.commands import describe, pending
from acktree.console.main import main
from acktree.console.view.documents import PendingRecord

RECORD = PendingRecord("lines", "orders", 0, 0, 0, "in flight", 1.0, 1.0, 1, 1, 1, "f", 0)
AT = ["--topology", "t", "-b", "127.0.0.1:1"]


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch):
    for module in (describe, pending):
        monkeypatch.setattr(module, "Cluster", lambda *_: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(module, "read_reports", lambda *_: None)
        monkeypatch.setattr(module, "in_text", lambda _: "")


@pytest.mark.parametrize(
    ("stuck", "complete", "code"), [((), True, 0), (("x",), True, 1), ((), False, 3), (("x",), False, 1)]
)
def test_describe(monkeypatch: pytest.MonkeyPatch, stuck: tuple[str, ...], complete: bool, code: int):
    status = SimpleNamespace(stuck=stuck, complete=complete)
    monkeypatch.setattr(describe, "read_snapshot", lambda *_, **__: None)
    monkeypatch.setattr(describe, "make_status", lambda *_, **__: status)
    assert CliRunner().invoke(main, ["describe", *AT]).exit_code == code


@pytest.mark.parametrize(
    ("old", "complete", "code"), [(0, True, 0), (1, True, 1), (0, False, 3), (1, False, 1)]
)
def test_pending_list(monkeypatch: pytest.MonkeyPatch, old: int, complete: bool, code: int):
    snapshot = SimpleNamespace(views={}, notes=[], is_complete=complete, topology=None)
    monkeypatch.setattr(pending, "read_snapshot", lambda *_, **__: snapshot)
    monkeypatch.setattr(pending, "apply_reported_offsets", lambda *_: None)
    monkeypatch.setattr(pending, "oldest_pending", lambda *_: [RECORD] * old)
    monkeypatch.setattr(pending, "stuck_after_s", lambda *_: 1.0)
    monkeypatch.setattr(pending, "is_older", lambda *_: True)
    assert CliRunner().invoke(main, ["pending", "list", *AT]).exit_code == code
    done = CliRunner().invoke(main, ["pending", "list", *AT, "--format", "json"])
    assert (done.exit_code, json.loads(done.stdout)["complete"]) == (code, complete)
