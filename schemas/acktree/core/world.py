"""Provides everything that a process takes from its machine: time, randomness, threads and Kafka clients.

Invariant: product code takes them from here and nowhere else, so that a simulated world can stand in for the
real one (FoundationDB's idea): it decides when time passes, which numbers are drawn and how a client answers.
The processes of a simulated world share one Python process, so the state of each is in ``process_state``.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

Answer = TypeVar("Answer")


class ProcessEnds(BaseException):
    """Raised in a simulated process that was killed; no code may run after it."""


class Thread(Protocol):
    """A thread that has been started."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most ``timeout`` seconds."""
        ...

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        ...


class Event(Protocol):
    """A flag that threads wait for; see threading.Event."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """A lock that its owner may acquire again; see threading.RLock."""

    def acquire(self) -> object: ...

    def release(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...


class ClientLogger(Protocol):
    """Takes the log lines of a client; a logging.Logger is one."""

    def log(self, level: int, msg: str, /, *args: object) -> None: ...


class World(Protocol):
    """The environment of a process."""

    is_simulated: bool
    """Whether clients are Python objects, without librdkafka behind them."""

    def monotonic_s(self) -> float:
        """Return the time of a clock that never steps."""
        ...

    def wall_s(self) -> float:
        """Return the time since 1970; it may step."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def random_bits(self, bits: int) -> int:
        """Return a random number of ``bits`` bits."""
        ...

    def start_thread(self, run: Callable[[], object], name: str) -> Thread:
        """Start a daemon thread of this process."""
        ...

    def thread_id(self) -> int:
        """Return a number that no other running thread has."""
        ...

    def thread_name(self) -> str:
        """Return the name of this thread."""
        ...

    def event(self) -> Event:
        """Return a flag that is not set."""
        ...

    def lock(self) -> Lock:
        """Return a lock that nobody holds."""
        ...

    def event_loop(self, max_calls: int | None) -> asyncio.AbstractEventLoop:
        """Return a new event loop whose ``asyncio.to_thread`` runs ``max_calls`` functions concurrently.

        None: as many as asyncio's own.
        """
        ...

    def wait_for(self, future: Future[Answer], timeout_s: float) -> Answer:
        """Return a future's result, or raise its error, or TimeoutError after so long."""
        ...

    def process_id(self) -> int:
        """Return a number that no other running process of this machine has."""
        ...

    def end_process(self, code: int) -> None:
        """End this process immediately, with all of its threads."""
        ...

    def process_state(self) -> dict[Any, Any]:
        """Return what modules keep for this process alone, each under its own key: a fork's is empty."""
        ...

    def host_name(self) -> str:
        """Return the name of this machine."""
        ...

    def consumer(self, settings: dict[str, Any], logger: ClientLogger) -> Consumer:
        """Return a new consumer."""
        ...

    def producer(self, settings: dict[str, Any], logger: ClientLogger) -> Producer:
        """Return a new producer."""
        ...

    def admin(self, settings: dict[str, Any], logger: ClientLogger) -> AdminClient:
        """Return a new admin client."""
        ...


class RealWorld:
    """This machine, and librdkafka."""

    is_simulated = False
    monotonic_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    random_bits = staticmethod(secrets.randbits)
    thread_id = staticmethod(threading.get_ident)
    event = staticmethod(threading.Event)
    lock = staticmethod(threading.RLock)
    process_id = staticmethod(os.getpid)
    end_process = staticmethod(os._exit)
    host_name = staticmethod(socket.gethostname)

    def __init__(self) -> None:
        self._states: dict[int, dict[Any, Any]] = {}

    def event_loop(self, max_calls: int | None) -> asyncio.AbstractEventLoop:
        """See World."""
        loop = asyncio.new_event_loop()
        if max_calls is not None:
            loop.set_default_executor(ThreadPoolExecutor(max_calls, "acktree-call"))
        return loop

    def start_thread(self, run: Callable[[], object], name: str) -> Thread:
        """See World."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def thread_name(self) -> str:
        """See World."""
        return threading.current_thread().name

    def wait_for(self, future: Future[Answer], timeout_s: float) -> Answer:
        """See World."""
        return future.result(timeout_s)

    def process_state(self) -> dict[Any, Any]:
        """See World; what a fork inherits is neither used nor freed."""
        return self._states.setdefault(os.getpid(), {})

    def consumer(self, settings: dict[str, Any], logger: ClientLogger) -> Consumer:
        """See World."""
        return Consumer(settings, logger=logger)

    def producer(self, settings: dict[str, Any], logger: ClientLogger) -> Producer:
        """See World."""
        return Producer(settings, logger=logger)

    def admin(self, settings: dict[str, Any], logger: ClientLogger) -> AdminClient:
        """See World."""
        return AdminClient(settings, logger=logger)


_world: World = RealWorld()


@contextmanager
def use_world(world: World) -> Iterator[None]:
    """Run everything in another world until the block ends."""
    global _world
    before, _world = _world, world
    try:
        yield
    finally:
        _world = before


def current() -> World:
    """Return the world itself: a loop over tuples takes its function once, and saves a call per tuple."""
    return _world


def is_simulated() -> bool:
    """Return whether clients are simulated ones."""
    return _world.is_simulated


def monotonic_s() -> float:
    """Return the time of a clock that never steps."""
    return _world.monotonic_s()


def wall_s() -> float:
    """Return the time since 1970."""
    return _world.wall_s()


def wall_ms() -> int:
    """Return the time since 1970 in milliseconds."""
    return int(_world.wall_s() * 1000)


def sleep(seconds: float) -> None:
    """Let time pass."""
    _world.sleep(seconds)


def random_bits(bits: int) -> int:
    """Return a random number of ``bits`` bits."""
    return _world.random_bits(bits)


def random_fraction() -> float:
    """Return a random number in [0, 1)."""
    return _world.random_bits(53) / (1 << 53)


def start_thread(run: Callable[[], object], name: str) -> Thread:
    """Start a daemon thread."""
    return _world.start_thread(run, name)


def thread_id() -> int:
    """Return a number that no other running thread has."""
    return _world.thread_id()


def thread_name() -> str:
    """Return the name of this thread."""
    return _world.thread_name()


def event() -> Event:
    """Return a flag that is not set."""
    return _world.event()


def lock() -> Lock:
    """Return a lock that nobody holds; its owner may acquire it again."""
    return _world.lock()


def event_loop(max_calls: int | None = None) -> asyncio.AbstractEventLoop:
    """Return a new event loop whose ``asyncio.to_thread`` runs ``max_calls`` functions concurrently.

    None: as many as asyncio's own.
    """
    return _world.event_loop(max_calls)


def wait_for(future: Future[Answer], timeout_s: float) -> Answer:
    """Return a future's result, or raise its error, or TimeoutError after so long."""
    return _world.wait_for(future, timeout_s)


def end_process(code: int) -> None:
    """End this process immediately, with all of its threads; nothing is cleaned up."""
    _world.end_process(code)


def process_id() -> int:
    """Return a number that no other running process of this machine has."""
    return _world.process_id()


def process_state() -> dict[Any, Any]:
    """Return what modules keep for this process alone, each under its own key: a fork's is empty."""
    return _world.process_state()


def process_name() -> str:
    """Return HOST:PROCESS."""
    return f"{_world.host_name()}:{_world.process_id()}"


def consumer(settings: dict[str, Any], logger: ClientLogger) -> Consumer:
    """Return a new consumer."""
    return _world.consumer(settings, logger)


def producer(settings: dict[str, Any], logger: ClientLogger) -> Producer:
    """Return a new producer."""
    return _world.producer(settings, logger)


def admin(settings: dict[str, Any], logger: ClientLogger) -> AdminClient:
    """Return a new admin client."""
    return _world.admin(settings, logger)
