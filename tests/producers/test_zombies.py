"""A worker that was suspended and resumes after its partitions went to another: it changes nothing."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deadlines import ANSWER_S
from producers.cluster import Forward, Sink, WorkerCluster, until

TOTAL = 20_000
MORE = 1_000
BOLT = """
import os
from acktree.producers import BasicBolt

class Pass(BasicBolt):
    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def execute(self, tup, emit):
        emit(tup.value)
        os.write(self.file, b".")
"""


def start_process(cluster: WorkerCluster, folder: Path, transaction_timeout_ms: int) -> subprocess.Popen[str]:
    (folder / "zombie_bolt.py").write_text(BOLT)
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", "zombie_bolt:Pass"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    command += ["-X", "session.timeout.ms=6000", "-X", f"transaction.timeout.ms={transaction_timeout_ms}"]
    environment = {**os.environ, "SEEN": str(folder / "seen")}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "transaction_timeout_ms",
    [pytest.param(3_000, marks=pytest.mark.slow), 60_000],
    ids=["timed out", "still open"],
)
def test_a_zombie_is_fenced_and_each_output_is_written_once(
    cluster: WorkerCluster, tmp_path: Path, transaction_timeout_ms: int
):
    """In one case the broker aborts its transaction; in the other only the group generation fences it."""
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(TOTAL))
    seen = tmp_path / "seen"
    zombie = start_process(cluster, tmp_path, transaction_timeout_ms)
    until(lambda: seen.exists() and seen.stat().st_size > 500)
    zombie.send_signal(signal.SIGSTOP)
    assert seen.stat().st_size < TOTAL
    cluster.start(Forward(), "first")
    second = cluster.start(Sink(), "second")
    if transaction_timeout_ms < 60_000:
        until(lambda: second.acked >= TOTAL, "the broker aborted the zombie's transaction")
    else:
        until(lambda: cluster.committed("first") == cluster.ends(), "the other worker took over")
    zombie.send_signal(signal.SIGCONT)
    until(lambda: second.acked >= TOTAL, "everything done")
    cluster.emit(range(TOTAL, TOTAL + MORE))
    until(lambda: second.acked >= TOTAL + MORE, "the group works on")
    if zombie.poll() is None:
        zombie.send_signal(signal.SIGTERM)
    _, stderr = zombie.communicate(timeout=ANSWER_S)
    cluster.close()
    assert zombie.returncode == 0, stderr
    assert "read again" in stderr or "reads them again" in stderr
    assert not cluster.open_roots()
    written = Counter(int(record.value()) for record in cluster.read(cluster.topic("b")))
    assert written == Counter(range(TOTAL + MORE))
