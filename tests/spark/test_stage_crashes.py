"""kill -9 in the middle of a batch: what is written once, what twice, and that no tree waits for its timeout.

There is no acker here that could time a tree out: a run ends only if every record was acked or replayed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from acktree.spark import app
from acktree.spark.shared.batch_commits import BatchName, commit_of_batch
from acktree.spark.source import FORMAT
from acktree.spark.stage import Stage, Transform
from acktree.wire.ids import origin_of
from producers.cluster import until
from spark import crashing_jobs
from spark.commit_history import times_committed
from spark.tester import DEADLINE_S, StageTester

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
BIG, SMALL = 4_000, 1_000
"""Records of the two partitions: the big one is several Arrow batches, its last record is fatal."""


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[StageTester]:
    with StageTester.running(spark, bootstrap, unique, tmp_path) as made:
        made.send([f"{n}" for n in range(BIG - 1)] + ["fatal"])
        made.send([f"{n}" for n in range(SMALL)], partition=1)
        yield made


@pytest.fixture
def crash(tester: StageTester, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    def choose(who: str, point: str) -> None:
        chosen = {"WHO": who, "POINT": point, "FLAG": str(tester.folder / "flag")}
        chosen |= {"BOOTSTRAP": tester.bootstrap, "TOPOLOGY": tester.name}
        for key, value in chosen.items():
            monkeypatch.setenv(f"CRASH_{key}", value)

    return choose


@contextlib.contextmanager
def own_run(tester: StageTester, job: str, *more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a job in a process group of its own; yield its process and log."""
    command = [str(Path(sys.executable).with_name("acktree")), "spark", "run", f"spark.crashing_jobs:{job}"]
    command += ["--topology", tester.name, "--spout", "in", "-b", tester.bootstrap]
    command += ["--checkpoint", str(tester.folder / "checkpoint"), "--trigger", app.AVAILABLE_NOW]
    command += more
    log = tester.folder / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            yield process, log
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def killed_run(tester: StageTester, job: str, *more: str) -> None:
    """Run a job until it has killed itself."""
    with own_run(tester, job, *more) as (process, log):
        assert process.wait(DEADLINE_S) == -signal.SIGKILL, log.read_text()


def run_unlogged(tester: StageTester, transform: Transform) -> None:
    """Write one batch whole, and end before Spark logs that it is written."""
    stage = Stage(transform, tester.options(spout="in"))

    def write(batch: DataFrame, number: int) -> None:
        stage(batch, number)
        raise InterruptedError

    rows = tester.spark.readStream.format(FORMAT).options(**tester.options(spout="in")).load()
    writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tester.folder / "checkpoint")).start()
    with pytest.raises(Exception, match="InterruptedError"):
        query.awaitTermination(DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["some is written", "nothing is written", "another task is committed"])
def test_a_narrow_batch_whose_driver_was_killed_is_written_exactly_once(
    tester: StageTester, crash: Callable[[str, str], None], point: str
) -> None:
    crash("driver", point)
    killed_run(tester, "narrow")
    tester.start(crashing_jobs.narrow)
    tester.until_the_end()
    assert len(tester.tuples) == BIG + SMALL
    assert len(tester.inits) == BIG + SMALL
    assert tester.failed == {}
    assert tester.committed() == [BIG, SMALL]


@pytest.mark.promise("a Spark executor or task")
def test_a_task_that_was_killed_in_a_narrow_batch_writes_exactly_once(
    tester: StageTester, crash: Callable[[str, str], None]
) -> None:
    crash("task", "some is written")
    tester.start(crashing_jobs.narrow)
    tester.until_the_end()
    assert Path(os.environ["CRASH_FLAG"]).exists()
    assert len(tester.tuples) == BIG + SMALL
    assert tester.failed == {}
    assert tester.committed() == [BIG, SMALL]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "point"),
    [
        ("task", "some is written"),
        ("driver", "another task is committed"),
    ],
)
def test_a_batch_of_a_plan_declared_narrow_is_written_exactly_once(
    tester: StageTester, crash: Callable[[str, str], None], who: str, point: str
) -> None:
    crash(who, point)
    if who == "driver":
        killed_run(tester, "narrow", "--option", "plan=narrow")
    options = tester.options(spout="in") | {"plan": "narrow"}
    folder = tester.folder / "checkpoint"
    tester.query = app.start(tester.spark, crashing_jobs.narrow, options, folder, app.AVAILABLE_NOW)
    tester.until_the_end()
    assert Path(os.environ["CRASH_FLAG"]).exists()
    assert (len(tester.tuples), len(tester.inits), tester.failed) == (BIG + SMALL, BIG + SMALL, {})
    assert tester.committed() == [BIG, SMALL]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["task", "driver"])
def test_an_interrupted_shuffled_batch_is_replayed_immediately(
    tester: StageTester, crash: Callable[[str, str], None], who: str
) -> None:
    crash(who, "some is written")
    if who == "driver":
        killed_run(tester, "doubled")
    tester.start(crashing_jobs.doubled)
    tester.until(lambda: len(tester.failed) == BIG + SMALL)  # an emission may be whole and acked before
    tester.until_the_end()
    tester.check_replayed(BIG + SMALL)
    assert tester.committed() == [BIG, SMALL]


@pytest.mark.slow
def test_a_batch_whose_stage_spark_has_rerun_is_replayed_immediately(
    tester: StageTester, crash: Callable[[str, str], None]
) -> None:
    """A task cannot read again what it has read: the stage's next attempt counts its tasks' from 0.

    In a JVM of its own: Spark's local mode does not recover from a lost shuffle, and ends ten minutes later.
    """
    crash("task and what it reads", "some is written")
    with own_run(tester, "shuffled") as (process, log):
        deadline = time.monotonic() + DEADLINE_S
        while process.poll() is None:
            assert time.monotonic() < deadline, (len(tester.inits), len(tester.tuples), len(tester.failed))
            tester.read()
            if len(tester.failed) == BIG + SMALL:
                tester.answer()
        assert process.returncode == 0, log.read_text()
    tester.read()
    assert len(tester.tuples) > 2 * (BIG + SMALL), "the task that was killed had written nothing"
    tester.check_replayed(BIG + SMALL)
    assert tester.committed() == [BIG, SMALL]


def test_an_interrupted_batch_replays_only_records_that_were_not_acked_before(
    spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path
) -> None:
    """The batch ends between its inits and Spark's log of it; run again it sends each root another init."""
    with StageTester.running(spark, bootstrap, unique, tmp_path) as tester:

        def twofold(rows: DataFrame) -> dict[str, DataFrame]:
            sent = rows.select("value", "anchors")
            return {f"{unique}.a": sent.union(sent)}

        tester.send([f"{n}" for n in range(40)])
        run_unlogged(tester, twofold)
        until(lambda: tester.read() or (len(tester.tuples) >= 80 and len(tester.inits) >= 40), "the batch")
        for root in tester.inits:
            tester.values[root] ^= origin_of(root).offset % 2  # of odd ones a tuple is not acked yet
        tester.answer()
        tester.start(twofold)
        tester.until_the_end()
        assert tester.twice == tester.failed.keys()
        emissions = Counter((origin_of(r).offset % 2, origin_of(r).attempt) for r in tester.answered)
        assert emissions == {(0, 0): 20, (1, 0): 20, (1, 1): 20}
        assert len(tester.tuples) == 80 + 40
        assert tester.committed() == [40, 0]
        query = json.loads((tester.folder / "checkpoint" / "metadata").read_text())["id"]
        record = commit_of_batch(BatchName(query, 0), f"{unique}.topology").metadata
        times = times_committed(bootstrap, f"{unique}.in.stage", record)
        assert times == 2, "committed again when it was found, before it expires"
