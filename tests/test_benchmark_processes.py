"""Benchmarks end what they started, whatever ends them; seen from the real processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import pytest

from deadlines import stretched

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
WAIT_S = stretched(240)
LATENCY = (["worker_rates.py", "--latency", "--seconds", "600"], "acker run", "bolt run")
RATES = (["worker_rates.py", "--records", "200000", "--rounds", "100", "--kinds", "plain"], "--child")
SPARK = (["spark_rates.py", "--small", "--rounds", "100"], "acker run", "org.apache.spark")


class Started(NamedTuple):
    """A benchmark, and those that it has started, by the descriptors that stand for them."""

    bench: subprocess.Popen[bytes]
    children: dict[int, str]


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of all that descend from a process, by pid."""
    lines: dict[int, str] = {}
    of: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = re.search(r"^PPid:\s+(\d+)", status.read_text(), re.MULTILINE)
            line = status.with_name("cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        assert parent is not None
        child = int(status.parent.name)
        of.setdefault(int(parent[1]), []).append(child)
        lines[child] = line.replace(b"\0", b" ").decode()
    found, waiting = {}, [pid]
    while waiting:
        for child in of.get(waiting.pop(), []):
            found[child] = lines[child]
            waiting.append(child)
    return found


@pytest.fixture
def started(bootstrap: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """A benchmark whose children run."""
    arguments, *wanted = request.param
    log = tmp_path / "log"
    with log.open("wb") as out:
        script, *options = arguments
        command = [sys.executable, BENCHMARKS / script, *options, "-b", bootstrap]
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    deadline_s, children = time.monotonic() + WAIT_S, {}
    while not all(any(name in line for line in children.values()) for name in wanted):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, children
        time.sleep(0.3)
        children = descendants(process.pid)
    watched = {os.pidfd_open(pid): line for pid, line in children.items()}
    yield Started(process, watched)
    for child in watched:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("started", "how"),
    [
        pytest.param(LATENCY, signal.SIGTERM, id="latency-SIGTERM"),
        pytest.param(LATENCY, signal.SIGINT, id="latency-SIGINT"),
        pytest.param(LATENCY, signal.SIGKILL, id="latency-SIGKILL"),
        pytest.param(SPARK, signal.SIGTERM, id="spark-SIGTERM", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
    indirect=["started"],
)
def test_no_child_process_outlives_its_benchmark(started: Started, how: signal.Signals):
    started.bench.send_signal(how)
    assert started.bench.wait(WAIT_S) != 0
    await_end(started.children)


@pytest.mark.parametrize("started", [RATES], indirect=True, ids=["rates"])
def test_a_measured_process_ends_with_its_benchmark(started: Started):
    for child in started.children:
        signal.pidfd_send_signal(child, signal.SIGSTOP)  # so it is never done
    started.bench.send_signal(signal.SIGTERM)
    assert started.bench.wait(WAIT_S) != 0
    await_end(started.children)


def await_end(children: dict[int, str]) -> None:
    """Wait until each of these processes has ended."""
    deadline_s = time.monotonic() + WAIT_S
    for child, line in children.items():
        left_s = max(0.0, deadline_s - time.monotonic())
        assert wait([child], left_s), f"still running: {line}"
