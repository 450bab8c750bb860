"""One script on the simulated and on a real Kafka."""

import logging
from dataclasses import dataclass
from typing import Any

from acktree.core.world import RealWorld
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.virtual.kernel import Kernel
from acktree.testing.world import SimulatedWorld
from conformance.differences import without_known_differences
from conformance.interpreter import run_script
from conformance.results import Result
from conformance.script import Operation, Script, show

LIMIT_S = 100_000.0
"""Of virtual time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first operation of a script whose results differ."""

    script: Script
    index: int
    simulated: Result
    real: Result

    @property
    def operation(self) -> Operation:
        """The operation."""
        return self.script[self.index]

    @property
    def results(self) -> str:
        """The operation and its results."""
        return (
            f"operation {self.index}: {self.operation!r}\n"
            f"simulated: {self.simulated!r}\n"
            f"real:      {self.real!r}"
        )

    def __str__(self) -> str:
        return f"{show(self.script)}\n{self.results}"


def run_simulated(script: Script) -> list[Result]:
    """Run a script in a simulated world of its own."""
    kernel = Kernel(0)
    world = SimulatedWorld(kernel, Cluster(kernel))
    process = kernel.process("script")
    results: list[Result] = []

    def run() -> None:
        admin = world.admin({}, logging.getLogger())
        results.extend(run_script(world, admin, "simulated", "s", script))

    task = kernel.spawn(process, run, "main")
    kernel.run(lambda: task.is_done, LIMIT_S)
    error = process.error
    kernel.close()
    if error is not None:
        raise error
    return results


def run_real(script: Script, bootstrap: str, admin: Any, prefix: str) -> list[Result]:
    """Run a script on a real Kafka, under names that begin with ``prefix``."""
    return run_script(RealWorld(), admin, bootstrap, prefix, script)


def compare(script: Script, bootstrap: str, admin: Any, prefix: str) -> Difference | None:
    """Run a script on both; return where they first differ, None where they are equal."""
    real = run_real(script, bootstrap, admin, prefix)
    simulated = run_simulated(script)
    for index, (ours, theirs) in enumerate(zip(simulated, real, strict=True)):
        ours = without_known_differences(script[index], ours)
        theirs = without_known_differences(script[index], theirs)
        if ours != theirs:
            return Difference(script, index, ours, theirs)
    return None
