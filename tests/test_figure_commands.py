"""The commands behind the figures of the docs: each runs, in its smallest form, and prints its figures."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from deadlines import stretched
from test_docs_run import HOUSE, PAGES

WAIT_S = stretched(900)
NAMED = re.compile(r"`((?:python benchmarks/|acktree demo)[^`]*)`")
SIZES = {"--records", "--rounds", "--seconds", "--bad", "--partitions", "--kinds", "--tasks", "--pipeline"}
SIZES |= {"--orders", "--work-ms", "--workers"}
SMALLEST = (
    ("acktree demo", "--lines 2000", "words whose count differs"),
    (
        "python benchmarks/acker_rates.py",
        "--pending 10000 --acks 100000 --memory-roots 100000 --partitions 1,2",
        "2 partition(s), 10 a record",
    ),
    ("python benchmarks/failover.py", "--rounds 1", "restarted by name"),
    ("python benchmarks/spark_rates.py", "--records 2000 --rounds 1", "tracked"),
    (
        "python benchmarks/spark_rates.py --rival",
        "--records 2000 --rounds 1 --pipeline pass-through",
        "with Python",
    ),
    ("python benchmarks/spark_rates.py --small", "--rounds 1", "triggers of 100 records"),
    ("python benchmarks/spark_rates.py --start", "--rounds 1", "start 1"),
    ("python benchmarks/worker_rates.py", "--records 2000 --rounds 1", "batch"),
    ("python benchmarks/worker_rates.py --latency", "--seconds 1 --rate 200 --rounds 1", "exactly once"),
    ("python benchmarks/bad_deploy.py", "--bad 2 --rate 200", "all done, s"),
    ("python benchmarks/brokers.py", "4.3.0", "Kafka 4.3.0"),
    ("python benchmarks/native.py batches", "--rounds 1 --records 2000", "without "),
    ("python benchmarks/native.py columns", "--rounds 1 --records 2000", "without "),
    ("python benchmarks/native.py daemon", "--rounds 1 --records 2000 --tasks 2", "without "),
    ("python benchmarks/native.py home", "--rounds 1 --records 2000", "without "),
    ("python benchmarks/native.py prefetch", "--rounds 1 --pending 10000", "without "),
    ("python benchmarks/overload.py", "--cases half --seconds 24", "drained s"),
    ("python benchmarks/peer_rates.py", "--lines 2000 --rounds 1", "faststream"),
    (
        "python benchmarks/peer_rates.py --latency",
        "--seconds 1 --rate 200 --rounds 1",
        "acktree-batch",
    ),
    ("python benchmarks/poison.py", "--seconds 3", "retry=False"),
    ("python benchmarks/sizing.py", "--orders 20 --work-ms 0 --seconds 2", "orders in flight"),
    (
        "python benchmarks/spout_commits.py",
        "--records 200 --partitions 2 --commits 2",
        "commit, ms",
    ),
    ("python benchmarks/stopped_bolt.py", "--seconds 45 --records 20", "both bolts"),
    ("python benchmarks/topology_tester.py", "", "of virtual time"),
    ("python benchmarks/watching.py", "--acks 100000 --hours 0.01 --watch 2", "ui: its slowest request"),
    ("python benchmarks/watching.py --reporting", "", "acker, 64 partitions, 2,000,000 open roots"),
)


def kind(command: str) -> str:
    """Return a command without the options that only say how much, and without versions of Kafka."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word in SIZES:
            next(words)
        elif not word[0].isdigit():
            kept.append(word)
    return " ".join(kept)


def test_every_command_of_a_figure_has_a_smallest_form():
    named = {kind(" ".join(found.split())) for page in PAGES for found in NAMED.findall(page.read_text())}
    assert len(named) > 10
    assert named <= {command for command, _, _ in SMALLEST}


@pytest.mark.bench
@pytest.mark.timeout(WAIT_S)
@pytest.mark.parametrize(("command", "smallest", "figure"), SMALLEST, ids=lambda value: value.split(" --")[0])
def test_a_command_of_a_figure_runs_and_prints_it(command: str, smallest: str, figure: str, tmp_path: Path):
    program, script, *options = shlex.split(command)
    begin = [HOUSE / script] if program == "python" else [Path(sys.executable).with_name(program), script]
    done = subprocess.run(
        [sys.executable, *begin, *options, *shlex.split(smallest)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert figure in done.stdout, done.stdout + done.stderr
