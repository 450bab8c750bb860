"""Tests on the simulated Kafka: a module marked ``simulated`` runs there, in virtual time.

With ``ACKTREE_TEST_REAL_KAFKA`` set the same tests run on the real broker: ``make test-slow`` does so, and
holds the simulation to it. Such a test makes its clients, threads and events through
``acktree.core.world``, and waits with it: it runs as a task of a simulation, and what it waits for costs
virtual time only. A test that needs a process to kill, or what the simulation leaves out, is marked ``real``.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from acktree.core.world import use_world
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.virtual.errors import NotSimulated
from acktree.testing.virtual.kernel import Kernel, Process
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
        self.has_failed = False

    def run(self, call: Callable[[], object]) -> None:
        """Run something as a task of the test's process, until it ends; raise what it raised.

        Raises:
            TookTooLong, NothingCanHappen: it waits for something that does not come.
        """
        raised: list[BaseException] = []

        def attempt() -> None:
            try:
                call()
            except BaseException as error:
                raised.append(error)

        task = self.kernel.spawn(self._process, attempt, "test")
        try:
            self.kernel.run(lambda: task.is_done, LIMIT_S)
            if raised:
                raise raised[0]
        except BaseException as error:
            self.has_failed = True
            for process in self.kernel.processes:
                if process.error is not None:
                    error.add_note(f"a thread of {process.name!r} had ended with {process.error!r}")
            raise

    def start_process(self, run: Callable[[], object]) -> Process:
        """Run something in a simulated process of its own, which ``kernel.kill`` ends."""
        process = self.kernel.process("started")
        self.kernel.spawn(process, run, "main")
        return process

    def close(self) -> None:
        """End all tasks. Raises AssertionError: a test that has passed has left some running."""
        left = "" if self.has_failed or not self._process.tasks else self.kernel.describe()
        self.kernel.close()
        assert not left, f"the test is over, and these threads still run; stop them:\n{left}"


@contextmanager
def simulated() -> Iterator[Simulation]:
    """Run everything in a simulation until the block ends; see Simulation.close."""
    made, sleep = Simulation(), time.sleep

    def refuse(seconds: float) -> None:
        if made.kernel.is_in_task and threading.current_thread() is threading.main_thread():
            raise NotSimulated("time.sleep lets no virtual time pass; wait with acktree.core.world.sleep")
        sleep(seconds)

    with use_world(made.world), pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", refuse)
        yield made
        made.close()


def run_in(simulation: Simulation | None, call: Callable[[], object]) -> None:
    """Run what a fixture does after its test where the test ran."""
    if simulation is None:
        call()
    else:
        simulation.run(call)


def is_simulated(item: pytest.Item) -> bool:
    """Return whether a test runs on the simulated Kafka."""
    if item.get_closest_marker("virtual") is not None:
        return True
    if item.get_closest_marker("simulated") is None or os.environ.get(REAL):
        return False
    return item.get_closest_marker("real") is None


def is_real(item: pytest.Item) -> bool:
    """Return whether a test that can run on either Kafka runs on the real one.

    Such a test has the fixture ``kafka``, or one that asks for it while it runs, which is ``run``.
    """
    fixtures = getattr(item, "fixturenames", ())
    asks_later = "simulation" in fixtures and item.get_closest_marker("simulated") is not None
    return ("kafka" in fixtures or asks_later) and not is_simulated(item)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation | None]:
    """The simulation that the test runs in, None on a real broker."""
    if not is_simulated(request.node):
        yield None
        return
    with simulated() as made:
        yield made


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
