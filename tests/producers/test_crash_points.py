"""Exactly once, killed at each point of a commit: what was committed remains, the rest has no effect."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from deadlines import ANSWER_S
from producers import killed_in_commit
from producers.cluster import Forward, Sink, WorkerCluster, until
from producers.killed_in_commit import POINTS


@pytest.fixture
def clusters(bootstrap: str, unique: str) -> Iterator[dict[str, WorkerCluster]]:
    """One topology per crash point, so that their timeouts run in parallel."""
    with ExitStack() as open_clusters:
        made = {}
        for number, point in enumerate(POINTS):
            made[point] = WorkerCluster(bootstrap, f"{unique}-{number}")
            open_clusters.callback(made[point].close)
        yield made


@pytest.mark.parametrize("total", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.promise("a worker, `exactly_once`")
def test_a_worker_killed_at_any_point_of_its_commit_leaves_no_residue(
    clusters: dict[str, WorkerCluster], total: int
):
    killed = {}
    for point, cluster in clusters.items():
        cluster.apply(exactly_once=True, first=(["a"], ["b"]))
        cluster.apply(second=(["b"], []))
        cluster.emit(range(total))
        command = [sys.executable, killed_in_commit.__file__, cluster.bootstrap, cluster.name, point]
        killed[point] = subprocess.Popen(command)
    for point, process in killed.items():
        assert process.wait(ANSWER_S) == -signal.SIGKILL, point
    for cluster in clusters.values():
        cluster.start(Forward(), "first")
        cluster.start(Sink(), "second")
    for point, cluster in clusters.items():
        second = cluster.running[-1]
        until(lambda second=second: second.acked >= total, f"all done, killed {point}")
        cluster.close()
        assert not cluster.open_roots(), point
        written = Counter(int(record.value()) for record in cluster.read(cluster.topic("b")))
        assert written == Counter(range(total)), point
