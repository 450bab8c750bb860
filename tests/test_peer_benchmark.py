"""The benchmark beside peers measures what it says, on few lines, and leaves out what pip cannot install."""

import subprocess
import sys
from pathlib import Path

import pytest

import peer_contenders
import peer_rates
from deadlines import stretched
from harness import Cluster
from peer_latency import measure_latency

SCRIPT = str(Path(__file__).parents[1] / "benchmarks" / "peer_rates.py")
WAIT_S = stretched(240)


def test_a_run_prints_cpu_seconds_and_ratios(bootstrap: str):
    options = "--lines", "20000", "--rounds", "1", "--kinds", "plain"
    done = subprocess.run(
        [sys.executable, SCRIPT, "-b", bootstrap, *options],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kind, cpu_s, least_s, greatest_s, per_s, of_plain, of_acktree = done.stdout.splitlines()[-1].split()
    assert (kind, of_plain, of_acktree) == ("plain", "1.00", "-")
    assert 0 < float(least_s) <= float(cpu_s) <= float(greatest_s)
    assert float(per_s.replace(",", "")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "acktree-batch"])
def test_a_line_is_read_after_it_was_appended(bootstrap: str, kind: str):
    kafka = Cluster(bootstrap)
    with peer_contenders.running(kafka, kind, Path(sys.executable)) as contender:
        read_p50, read_p99, append_p50, append_p99 = measure_latency(
            kafka, contender, rate_per_s=100, seconds=1, warm_up_s=1
        )
    assert 0 <= append_p50 <= append_p99
    assert 0 < read_p50 <= read_p99
    assert append_p50 <= read_p50


def test_a_peer_that_cannot_be_installed_is_left_out_with_the_reason(monkeypatch, tmp_path: Path, capsys):
    nowhere = str(tmp_path / "none.whl")
    monkeypatch.setitem(peer_contenders.PEERS, "quix", ("quix_app.py", (nowhere,)))
    with peer_rates.pythons(("plain", "quix")) as installed:
        assert list(installed) == ["plain"]
    assert "quix could not be installed, and is left out: ERROR" in capsys.readouterr().out
