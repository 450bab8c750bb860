"""Tests on the simulated Kafka: a module marked ``simulated`` runs there, in virtual time.

With ``ACKTREE_TEST_REAL_KAFKA`` set the same tests run on the real broker: ``make test-all`` does so, and
holds the simulation to it. Such a test makes its clients, threads and events through
``acktree.schemas.world``, and waits with it: it runs as a task of a simulation, and what it waits for costs
virtual time only. A test that needs a process to kill, or what the simulation leaves out, is marked ``real``.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from acktree.schemas.world import use_world
from acktree.testing.kafka.cluster import Cluster
from acktree.testing.kernel import Kernel
from acktree.testing.world import SimulatedWorld

REAL = "ACKTREE_TEST_REAL_KAFKA"
LIMIT_S = 3600.0


class Simulation:
    """A simulated Kafka, and the process of the test beside it."""

    def __init__(self, seed: int = 0) -> None:
        self.kernel = Kernel(seed)
        self.cluster = Cluster(self.kernel)
        self.world = SimulatedWorld(self.kernel, self.cluster)
        self._process = self.kernel.process("test")

    def run(self, call: Callable[[], object]) -> None:
        """Run something as a task of the test's process, until it ends; raise what it raised."""
        raised: list[BaseException] = []

        def attempt() -> None:
            try:
                call()
            except BaseException as error:
                raised.append(error)

        task = self.kernel.spawn(self._process, attempt, "test")
        self.kernel.run(lambda: task.is_done, LIMIT_S)
        if raised:
            raise raised[0]


def is_simulated(item: pytest.Item) -> bool:
    """Return whether a test runs on the simulated Kafka."""
    if item.get_closest_marker("simulated") is None or os.environ.get(REAL):
        return False
    return item.get_closest_marker("real") is None


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation | None]:
    """The simulation that the test runs in, None on a real broker."""
    if not is_simulated(request.node):
        yield None
        return
    made = Simulation()
    with use_world(made.world):
        yield made
        made.kernel.close()


@pytest.fixture
def kafka(request: pytest.FixtureRequest, simulation: Simulation | None) -> str:
    """The address of the Kafka that the test runs on, a real or a simulated one."""
    address: str = request.getfixturevalue("bootstrap") if simulation is None else "simulated"
    return address


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that has a simulation inside of it."""
    simulation = pyfuncitem.funcargs.get("simulation")
    if simulation is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    simulation.run(lambda: pyfuncitem.obj(**arguments))
    return True
