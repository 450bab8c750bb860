"""One Spark for all tests of this folder, a stage's tester, and spouts driven without Spark."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from acktree.spark import app
from simulated_kafka import Simulation, run_in
from spark.spouts import SpoutTester
from spark.tester import StageTester

FD_SETSIZE = 1024

# Before any test starts a JVM: its tasks find the modules of this folder.
_TESTS = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))


@pytest.fixture
def spout(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[Callable[..., SpoutTester]]:
    testers: list[SpoutTester] = []

    def make(**arguments: Any) -> SpoutTester:
        testers.append(SpoutTester(kafka, unique, **arguments))
        return testers[-1]

    def close() -> None:
        for tester in testers:
            tester.close()

    yield make
    run_in(simulation, close)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Spark's callback server waits for its socket with select(), which no higher descriptor fits in; what
    # hangs then is every query, until its deadline.
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < FD_SETSIZE / 2, "tests before this one left clients open"
    session = app.make_session("acktree tests")
    yield session
    session.stop()


@pytest.fixture
def tester(spark: SparkSession, bootstrap: str, unique: str, tmp_path: Path) -> Iterator[StageTester]:
    with StageTester.running(spark, bootstrap, unique, tmp_path) as made:
        yield made
