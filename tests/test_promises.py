"""Every promise of docs/guarantees.md has a test on a real broker that `make test` runs.

A test is marked ``@pytest.mark.promise("…")`` with what the page says: the first cell of a row, or the number
of a guarantee. So nobody has to judge which tests may move to the simulated Kafka, or to ``slow``.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "guarantees.md"
ROW = re.compile(r"^\| (?!-)([^|]+?) \|", re.MULTILINE)
WRITTEN_TO = "ACKTREE_TEST_PROMISES"
UNPROVEN = {
    "another program writes to the topology's `T.ack`, `T.ack-init` or `T.spout-*`": "nothing prevents it",
    "Kafka loses what it acknowledged": "nothing prevents it",
    "a bolt acks before its work is done": "nothing shows it",
    "a source partition reaches offset 2^40, about 10^12": "no broker gets there; see spark/test_batch.py",
}
"""Rows that state no behaviour of acktree's, or none that a real broker can show."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """As a plugin of another run: write which promises its tests prove."""
    proved: dict[str, list[str]] = defaultdict(list)
    for item in session.items:
        for marker in item.iter_markers("promise"):
            proved[marker.args[0]].append(item.nodeid)
    Path(os.environ[WRITTEN_TO]).write_text(json.dumps(proved))


def promises() -> list[str]:
    """Return the numbers of the guarantees, and the rows of both tables."""
    text = PAGE.read_text("utf-8")
    above, rows = "", []
    for title in ("## What breaks the guarantees", "## What a failure costs"):
        table = text.partition(title)[2].partition("\n- ")[0]
        for row in ROW.findall(table)[1:]:
            above = above if row.startswith("… ") else row
            rows.append(f"{above} {row}" if row.startswith("… ") else row)
    return re.findall(r"^(\d)\. ", text, re.MULTILINE) + [row for row in rows if row not in UNPROVEN]


def test_every_promise_has_a_test_on_a_real_broker(tmp_path: Path):
    files = [path for path in TESTS.rglob("test_*.py") if "mark.promise(" in path.read_text("utf-8")]
    found = tmp_path / "promises.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "test_promises"]
    done = subprocess.run(
        [*command, "-m", "promise and broker and not slow", *map(str, files)],
        env={**os.environ, WRITTEN_TO: str(found), "PYTHONPATH": str(TESTS)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    proved = json.loads(found.read_text())
    assert len(promises()) > 25
    assert [promise for promise in promises() if promise not in proved] == []
    assert [promise for promise in proved if promise not in promises()] == []
