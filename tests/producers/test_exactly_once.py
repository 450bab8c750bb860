"""Exactly once on a real broker: what a killed worker did not commit never happened."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from acktree.producers import BasicBolt
from acktree.producers.exactly_once import ExactlyOnce
from producers.cluster import Cluster, until

BOLT = """
import os
from acktree.producers import BasicBolt

class Pass(BasicBolt):
    def prepare(self, context):
        self.file = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def execute(self, tuple, emit):
        os.write(self.file, b".")
        emit(tuple.value)
"""


class Pass(BasicBolt):
    def execute(self, tuple, emit):
        emit(tuple.value)


class Sink(BasicBolt):
    def execute(self, tuple, emit):
        pass


def test_a_worker_killed_with_9_leaves_no_residue_in_any_tree(cluster: Cluster, tmp_path: Path):
    (tmp_path / "pass_bolt.py").write_text(BOLT)
    seen = tmp_path / "seen"
    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    total = 60_000
    cluster.emit(range(total))
    command = [sys.executable, "-m", "acktree.console.main", "bolt", "run", "pass_bolt:Pass"]
    command += ["-b", cluster.bootstrap, "--topology", cluster.name, "--bolt", "first"]
    command += ["-X", "session.timeout.ms=6000"]
    environment = {**os.environ, "SEEN": str(seen)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: seen.exists() and seen.stat().st_size > 3_000)
    process.kill()
    process.wait()
    assert seen.stat().st_size < total
    cluster.start(Pass(), "first")
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked >= total, "everything done")
    cluster.close()
    assert not cluster.open_roots()
    written = Counter(int(record.value()) for record in cluster.read(cluster.topic("b")))
    assert written == Counter(range(total))


def test_an_aborted_transaction_is_read_again_and_stands_once(cluster: Cluster):
    class Flaky(ExactlyOnce):
        commit_interval_s = 0.2
        aborts = 0

        def settle(self, consumer, offsets):
            if offsets and self.aborts < 2:
                self.aborts += 1
                self._spoilt = True
            return super().settle(consumer, offsets)

    cluster.apply(exactly_once=True, first=(["a"], ["b"]))
    cluster.apply(second=(["b"], []))
    cluster.emit(range(1000))
    outlet = Flaky(cluster.bootstrap, {}, f"{cluster.name}.first")
    first = cluster.start(Pass(), "first", outlet=outlet)
    second = cluster.start(Sink(), "second")
    until(lambda: second.acked == 1000 or first.error)
    assert first.error is None, first.error
    cluster.close()
    assert outlet.aborts == 2
    assert first.executed > 1000
    assert not cluster.open_roots()
    assert len(cluster.read(cluster.topic("b"))) == 1000
    assert sum(cluster.committed("first").values()) >= 1000
