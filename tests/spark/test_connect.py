"""The word count through Spark Connect: a client without a JVM, a server that is killed, an exact account."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import prerequisites
from acktree.console.devbroker import ports
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
BIG, SMALL = 4_000, 1_000


@pytest.fixture
def tester(bootstrap: str, unique: str, tmp_path: Path) -> Iterator[StageTester]:
    if not all(find_spec(name) for name in ("grpc", "grpc_status", "google.rpc", "zstandard")):
        prerequisites.give_up("no Spark Connect to test with: install the extra 'connect'")
    made = StageTester(None, bootstrap, unique, tmp_path)
    made.send([f"{n} x" for n in range(BIG - 1)] + ["fatal"])
    made.send([f"-{n}" for n in range(SMALL)], partition=1)
    yield made
    made.consumer.close()


@contextlib.contextmanager
def process(tester: StageTester, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program of this folder in a process group of its own, until it ends or is not needed."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}
    with (tester.folder / "log").open("a") as out:
        running = subprocess.Popen(
            [sys.executable, *command], stdout=out, stderr=out, env=env, start_new_session=True
        )
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@contextlib.contextmanager
def server(tester: StageTester) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    (port,) = ports.free_ports(1)
    with process(tester, str(HERE / "connect_server.py"), str(port)) as running:
        deadline = time.monotonic() + DEADLINE_S
        while not ports.listens(port):
            assert running.poll() is None, (tester.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield running, f"sc://127.0.0.1:{port}"


def job(tester: StageTester, remote: str) -> tuple[str, ...]:
    place = str(tester.folder / "checkpoint")
    return str(HERE / "connect_job.py"), remote, tester.bootstrap, tester.name, place


def test_a_word_count_through_connect_is_exact_even_if_its_server_is_killed(tester: StageTester) -> None:
    """It dies once one task is committed, another one is half way, and Spark has logged neither."""
    crash = {"CRASH_WHO": "driver", "CRASH_POINT": "another task is committed"}
    crash |= {"CRASH_BOOTSTRAP": tester.bootstrap, "CRASH_TOPOLOGY": tester.name}
    with server(tester) as (killed, remote):
        flag = tester.folder / "flag"
        more = {"CRASH_FLAG": str(flag), "CRASH_DRIVER": str(killed.pid)}
        with process(tester, *job(tester, remote), "crashing", **crash, **more):
            assert killed.wait(DEADLINE_S) == -signal.SIGKILL, (tester.folder / "log").read_text()
        assert flag.exists()
    with server(tester) as (_, remote), process(tester, *job(tester, remote)) as client:
        deadline = time.monotonic() + DEADLINE_S
        while client.poll() is None:
            assert time.monotonic() < deadline, (tester.folder / "log").read_text()
            tester.read()
            tester.answer()
        assert client.returncode == 0, (tester.folder / "log").read_text()
    tester.read()
    found = Counter(value for _, value, _ in tester.tuples)
    expected = (
        Counter([b"fatal"]) + Counter(f"{n}".encode() for n in range(BIG - 1)) + Counter({b"x": BIG - 1})
    )
    assert found == expected
    assert (len(tester.inits), tester.twice, tester.failed) == (BIG + SMALL, set(), {})
    assert tester.committed() == [BIG, SMALL]
