"""Fixtures: a tester for workers, one topology per test; and the places where a bolt must behave alike."""

from collections.abc import Iterator
from typing import Any

import pytest

import hypothesis_profiles  # noqa: F401  the profiles, registered and loaded
from acktree.core import world
from acktree.producers.testing import BoltDouble
from producers.cluster import WorkerCluster
from producers.conformance import Run, in_memory, on_broker
from simulated_kafka import Simulation, run_in


@pytest.fixture
def cluster(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[WorkerCluster]:
    made = WorkerCluster(kafka, unique)
    yield made
    run_in(simulation, made.close)


@pytest.fixture(autouse=True)
def _doubles_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every BoltDouble at the end of its test: an AsyncBolt has a thread. A simulation ends its own."""
    made: list[BoltDouble] = []
    begin = BoltDouble.__init__

    def begin_and_keep(double: BoltDouble, *arguments: Any, **more: Any) -> None:
        begin(double, *arguments, **more)
        if not world.is_simulated():
            made.append(double)

    monkeypatch.setattr(BoltDouble, "__init__", begin_and_keep)
    yield
    for double in made:
        double.close()


@pytest.fixture
def run(request: pytest.FixtureRequest, simulation: Simulation | None) -> Run:
    """Run a bolt where the ``conformance`` decorator says, in the simulation if the test has one."""
    exactly_once = request.param.endswith("-exactly-once")
    if request.param.startswith("double"):
        return in_memory(exactly_once)
    return on_broker(request.getfixturevalue("cluster"), exactly_once)
