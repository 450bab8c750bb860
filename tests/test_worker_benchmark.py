"""The worker's benchmark measures what it says, on few records."""

import subprocess
import sys
from pathlib import Path

import pytest

from deadlines import stretched
from harness import Cluster
from worker_latency import measure_latency

SCRIPT = str(Path(__file__).parents[1] / "benchmarks" / "worker_rates.py")
WAIT_S = stretched(240)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def figures(bootstrap: str, kinds: str) -> dict[str, list[float]]:
    """Return the row of each kind."""
    done = run("-b", bootstrap, "--records", "500", "--rounds", "1", "--kinds", kinds)
    assert done.returncode == 0, done.stderr
    machine, header, *rows = done.stdout.splitlines()
    assert "cores" in machine
    assert header.startswith("500 records")
    return {kind: [float(cell.replace(",", "")) for cell in cells] for kind, *cells in map(str.split, rows)}


@pytest.mark.slow
def test_every_kind_runs_and_is_measured(bootstrap: str):
    found = figures(bootstrap, "plain,columns,async")
    assert list(found) == ["plain", "columns", "async"]
    assert all(figure > 0 for row in found.values() for figure in row)


def test_a_run_prints_cpu_seconds_and_a_rate(bootstrap: str):
    ((kind, row),) = figures(bootstrap, "plain").items()
    cpu_s, least_s, greatest_s, per_s = row
    assert kind == "plain"
    assert 0 < least_s <= cpu_s <= greatest_s
    assert per_s > 0


def test_an_unknown_kind_is_answered_with_the_existing_ones():
    done = run("--kinds", "plain,none")
    assert done.returncode == 2
    assert "none: choose from plain-defaults, plain, basic" in done.stderr


@pytest.mark.slow
def test_each_record_of_the_latency_run_is_acked_after_it_was_due(bootstrap: str):
    result = measure_latency(Cluster(bootstrap), rate_per_s=200, seconds=0.5, warm_up_s=0.1)
    assert (result.records, result.failed) == (100, 0)
    assert 0 < result.p50_ms <= result.p99_ms <= result.max_ms
