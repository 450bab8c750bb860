"""Implements acktree.core.world by a kernel and a simulated cluster.

Invariant: only tasks of simulated processes call it, and every answer follows from the seed.
"""

import asyncio
import math
import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from acktree.core.world import ClientLogger, Event, Lock, Thread
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.network import Network
from acktree.testing.kafka.clients.admin import SimulatedAdmin
from acktree.testing.kafka.clients.consumer import SimulatedConsumer
from acktree.testing.kafka.clients.producer import SimulatedProducer
from acktree.testing.kafka.clients.properties import refuse_unknown
from acktree.testing.virtual.kernel import START_S, Kernel, Process, Task
from acktree.testing.virtual.virtual_loop import VirtualLoop, wait_for

Answer = TypeVar("Answer")

SHORTEST_S, LONGEST_S = 0.0002, 0.002
"""How long a request, and an answer, usually takes."""


class SimulatedEvent:
    """A flag in virtual time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._is_set = kernel, False
        self._waiting: list[Task] = []

    def set(self) -> None:
        """Set it, and wake all waiting tasks."""
        self._is_set = True
        for task in self._waiting:
            self._kernel.wake(task)

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        if not self._is_set:
            self._waiting.append(task := self._kernel.current)
            self._kernel.wait_until(self.is_set, timeout, "an event")
            self._waiting.remove(task)
        return self._is_set


class SimulatedLock:
    """A lock in virtual time, which its owner may acquire again."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._owner: Task | None = None
        self._holds = 0
        self._waiting: list[Task] = []

    def acquire(self) -> bool:
        """Wait until no other task holds it, and hold it."""
        task = self._kernel.current if self._kernel.is_in_task else None
        if self._holds and self._owner is not task:
            assert task is not None, "only a task can wait"
            self._waiting.append(task)
            self._kernel.wait_until(lambda: not self._holds, None, "a lock")
            self._waiting.remove(task)
        self._owner = task
        self._holds += 1
        return True

    def release(self) -> None:
        """Hold it once less."""
        self._holds -= 1
        if not self._holds:
            for task in self._waiting:
                self._kernel.wake(task)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedWorld:
    """The world of simulated processes."""

    is_simulated = True

    def __init__(self, kernel: Kernel, cluster: Cluster) -> None:
        self.kernel, self.cluster = kernel, cluster
        self._drawn = random.Random(kernel.random.getrandbits(64))
        self._outside: dict[Any, Any] = {}
        self._networks: dict[Process, Network] = {}
        self.cut_off: set[Process] = set()
        """Processes that the broker does not answer."""
        self.bytes_per_s = math.inf
        """How fast the link of each process takes records to the broker."""
        self.delay_s: Callable[[], float] = lambda: kernel.random.uniform(SHORTEST_S, LONGEST_S)
        """How long the next request or answer takes."""
        self.lose_response: Callable[[Process, str], bool] = lambda _process, _call: False

    def monotonic_s(self) -> float:
        """See acktree.core.world, as all below."""
        return self.kernel.now_s

    def wall_s(self) -> float:
        step_s = self.kernel.current.process.clock_step_s if self.kernel.is_in_task else 0.0
        return START_S + self.kernel.now_s + step_s

    def sleep(self, seconds: float) -> None:
        self.kernel.sleep(seconds)

    def random_bits(self, bits: int) -> int:
        return self._drawn.getrandbits(bits)

    def start_thread(self, run: Callable[[], object], name: str) -> Thread:
        return self.kernel.spawn(self.kernel.current.process, run, name)

    def thread_id(self) -> int:
        return id(self.kernel.current) if self.kernel.is_in_task else 0

    def thread_name(self) -> str:
        return self.kernel.current.name if self.kernel.is_in_task else "main"

    def event(self) -> Event:
        return SimulatedEvent(self.kernel)

    def lock(self) -> Lock:
        return SimulatedLock(self.kernel)

    def event_loop(self, max_calls: int | None) -> asyncio.AbstractEventLoop:
        return VirtualLoop(self.kernel)

    def wait_for(self, future: Future[Answer], timeout_s: float) -> Answer:
        return wait_for(self.kernel, future, timeout_s)

    def process_id(self) -> int:
        return self.kernel.current.process.number if self.kernel.is_in_task else 0

    def end_process(self, code: int) -> None:
        self.kernel.kill(self.kernel.current.process)

    def process_state(self) -> dict[Any, Any]:
        return self.kernel.current.process.state if self.kernel.is_in_task else self._outside

    def host_name(self) -> str:
        return self.kernel.current.process.name if self.kernel.is_in_task else "outside"

    def consumer(self, settings: dict[str, Any], logger: ClientLogger) -> Any:
        refuse_unknown(Consumer, settings)
        return SimulatedConsumer(self._network(), settings)

    def producer(self, settings: dict[str, Any], logger: ClientLogger) -> Any:
        refuse_unknown(Producer, settings)
        return SimulatedProducer(self._network(), settings)

    def admin(self, settings: dict[str, Any], logger: ClientLogger) -> Any:
        refuse_unknown(AdminClient, settings)
        return SimulatedAdmin(self._network(), settings)

    def _network(self) -> Network:
        process = self.kernel.current.process
        found = self._networks.get(process)
        if found is None:
            found = Network(self.cluster, process, lambda: self.delay_s())
            found.is_cut_off = lambda: process in self.cut_off
            found.bytes_per_s = lambda: self.bytes_per_s
            found.lose_response = lambda process, call: self.lose_response(process, call)
            self._networks[process] = found
        return found
