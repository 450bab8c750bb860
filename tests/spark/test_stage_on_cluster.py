"""A standalone master and two workers as processes, a job from spark-submit, an executor killed."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from acktree.console.devbroker import ports
from acktree.spark import app
from acktree.wire.ids import origin_of
from deadlines import stretched
from spark.tester import StageTester

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
BIN = Path(pyspark.__file__).parent / "bin"
BIG, SMALL = 12_000, 3_000
DEADLINE_S = stretched(480)
JVM = {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SETTINGS = (
    "spark.cores.max=2",
    "spark.executor.memory=512m",
    "spark.driver.host=127.0.0.1",
    "spark.ui.enabled=false",
    "spark.scheduler.minRegisteredResourcesRatio=1.0",
    f"spark.scheduler.maxRegisteredResourcesWaitingTime={DEADLINE_S:.0f}s",
)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers of one core."""
    port, *pages = ports.free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1", "--webui-port"]
    commands = [["master.Master", *place, str(pages[0]), "--port", str(port)]]
    for page in pages[1:]:
        size = ["--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / f"worker-{page}")]
        commands.append(["worker.Worker", *place, str(page), *size, url])
    environment = {**os.environ, **JVM, "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as running, (tmp_path / "cluster.log").open("w") as log:
        for name, *arguments in commands:
            command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            running.callback(process.wait)
            running.callback(process.kill)
        yield url


@pytest.mark.parametrize(
    ("job", "point"),
    [
        ("narrow", "another task is committed, some is written"),
        ("doubled", "some is written"),
    ],
)
def test_counts_are_exact_after_an_executor_of_a_cluster_is_killed(
    master: str, bootstrap: str, unique: str, tmp_path: Path, job: str, point: str
) -> None:
    """It is the executor's JVM that is killed, by kill -9; the master starts another one.

    The task that dies holds the one core of its executor until the other executor's task has ended. Of a plan
    that is not narrow all roots of the batch fail, and come again. Nobody answers until all have failed, as a
    tree that is whole could be acked before.
    """
    tester = StageTester(None, bootstrap, unique, tmp_path)
    tester.send([f"{n}" for n in range(BIG - 1)] + ["fatal"])
    tester.send([f"{n}" for n in range(SMALL)], partition=1)
    chosen = {"WHO": "executor", "POINT": point, "FLAG": str(tmp_path / "flag")}
    chosen |= {"BOOTSTRAP": bootstrap, "TOPOLOGY": unique}
    environment = {**os.environ, **{f"CRASH_{key}": value for key, value in chosen.items()}}
    environment |= {"PYSPARK_PYTHON": sys.executable, **JVM}
    command = [str(BIN / "spark-submit"), "--master", master]
    for setting in SETTINGS:
        command += ["--conf", setting]
    command += ["--py-files", str(HERE / "crashing_jobs.py")]
    command += [str(HERE / "run_acktree.py"), "spark", "run", f"crashing_jobs:{job}"]
    command += ["--topology", unique, "--spout", "in", "-b", bootstrap, "--trigger", app.AVAILABLE_NOW]
    log = tmp_path / "submit.log"
    with log.open("w") as out:
        submitted = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while submitted.poll() is None:
                assert time.monotonic() < deadline, log.read_text()[-3_000:]
                tester.read()
                if job == "narrow" or len(tester.failed) == BIG + SMALL:
                    tester.answer()
                assert job != "narrow" or len(tester.tuples) <= BIG + SMALL, (
                    "the killed task's rows were seen"
                )
        finally:
            submitted.kill()
            submitted.wait()
    tester.read()
    assert submitted.returncode == 0, log.read_text()[-3_000:]
    assert (tmp_path / "flag").exists()
    assert {each.name for each in tmp_path.glob("worker-*/app-*/*")} == {"0", "1", "2"}
    if job == "narrow":
        assert len(tester.tuples) == BIG + SMALL
        emissions = Counter((origin_of(root).attempt, root in tester.failed) for root in tester.answered)
        assert emissions == {(0, False): BIG + SMALL}
        assert not tester.twice
    else:
        tester.check_replayed(BIG + SMALL)
    assert tester.committed() == [BIG, SMALL]
    tester.consumer.close()
