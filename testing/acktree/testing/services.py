"""Runs the processes of a tested topology, and starts them again after a kill.

Invariant: an error that ends a process is raised in the test, with its own traceback, unless the test expects
such a process to be started again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from acktree.testing.virtual.errors import UnknownFault
from acktree.testing.virtual.kernel import Kernel, Process

RESTART_S = 1.0
"""How long it takes by default until a killed process is started again."""


class Runner(Protocol):
    """Runs in a process: an acker, a worker, a spout, a Spark application."""

    def run(self) -> object: ...
    def stop(self) -> object: ...


@dataclass(eq=False)
class Service:
    """A process that is started again after a kill; ``name`` is COMPONENT-NUMBER."""

    name: str
    component: str
    kind: str
    """acker, bolt, spout or spark"""
    make: Callable[["Service"], Runner]
    process: Process | None = None
    runner: Any = None
    is_ready: bool = False
    starts: int = 0
    restart_after_s: float | None = RESTART_S

    def set_ready(self, _text: str = "") -> None:
        """Record that it has started."""
        self.is_ready = True

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.is_alive and bool(self.process.tasks)


@dataclass
class Services:
    """All of them, in the order in which they are started."""

    kernel: Kernel
    restart_on: tuple[type[BaseException], ...] = ()
    """Errors after which a process is started again, as a supervisor would."""
    all: list[Service] = field(default_factory=list)
    is_closing: bool = False

    def add(self, service: Service) -> Service:
        """Add one, and start it."""
        self.all.append(service)
        self.start(service)
        return service

    def start(self, service: Service) -> None:
        """Start a new process for a service."""
        process = self.kernel.process(service.name)
        service.process, service.runner, service.is_ready = process, None, False
        service.starts += 1
        process.at_death.append(lambda: self._start_later(service, process))

        def run() -> None:
            service.runner = service.make(service)
            service.runner.run()

        self.kernel.spawn(process, run, service.name)

    def _start_later(self, service: Service, dead: Process) -> None:
        if self.is_closing or service.process is not dead or service.restart_after_s is None:
            return
        delay_s, service.restart_after_s = service.restart_after_s, RESTART_S
        self.kernel.call_after(delay_s, lambda: self._start_again(service, dead))

    def _start_again(self, service: Service, dead: Process) -> None:
        if service.process is dead and not self.is_closing:
            self.start(service)

    def check(self) -> None:
        """Raise what ended a process; start it again where the test has said so."""
        for service in self.all:
            process = service.process
            if process is None or process.error is None or not process.is_alive:
                continue
            if isinstance(process.error, self.restart_on):
                self.kernel.kill(process)
                continue
            error = process.error
            error.add_note(f"raised in the simulated process {service.name} at {self.kernel.now_s:.3f} s")
            process.error = None
            self.kernel.kill(process)
            raise error

    def of(self, component: str) -> list[Service]:
        """Return the services of a component, or the one of that name. Raises UnknownFault: there is none."""
        found = [service for service in self.all if component in (service.component, service.name)]
        if not found:
            raise UnknownFault(f"there is no process {component!r}; must be one of: {self.names()}")
        return found

    def names(self) -> str:
        """Return the names of components and processes, as an error lists them."""
        return ", ".join(dict.fromkeys(name for service in self.all for name in _names(service)))

    @property
    def are_ready(self) -> bool:
        """Whether every process has started."""
        return all(service.is_ready for service in self.all)


def _names(service: Service) -> Iterable[str]:
    return service.component, service.name
