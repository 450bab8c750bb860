"""Fixtures: a tester for workers, one topology per test; and the places where a bolt must behave alike."""

from collections.abc import Iterator

import pytest

import hypothesis_profiles  # noqa: F401  the profiles, registered and loaded
from producers.cluster import WorkerCluster
from producers.conformance import Run, in_memory, on_broker
from simulated_kafka import Simulation, run_in


@pytest.fixture
def cluster(kafka: str, unique: str, simulation: Simulation | None) -> Iterator[WorkerCluster]:
    made = WorkerCluster(kafka, unique)
    yield made
    run_in(simulation, made.close)


@pytest.fixture
def run(request: pytest.FixtureRequest, simulation: Simulation | None) -> Run:
    """Run a bolt where the ``conformance`` decorator says, in the simulation if the test has one."""
    exactly_once = request.param.endswith("-exactly-once")
    if request.param.startswith("double"):
        return in_memory(exactly_once)
    return on_broker(request.getfixturevalue("cluster"), exactly_once)
