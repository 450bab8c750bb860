"""Tracks whether the loop of a process moves: stored by that loop, read by threads that report it.

Invariant: the loop only assigns, so watching it costs nothing and cannot hold it up. A wait for the broker is
not a stall: it ends with the broker's return, and no restart of this process would shorten it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from acktree.core import world
from acktree.core.kafka.settings import Settings
from acktree.core.reports.stats import Value

STUCK_AFTER_S = 300.0
"""The default of ``max.poll.interval.ms``: the group takes the partitions of a worker that is slower."""


def stuck_after_of(user: Settings) -> float:
    """Return the default for a worker with these client properties, in seconds.

    >>> stuck_after_of({}), stuck_after_of({"max.poll.interval.ms": "900000"})
    (300.0, 900.0)
    """
    return float(user.get("max.poll.interval.ms", 1000 * STUCK_AFTER_S)) / 1000


class Executing(NamedTuple):
    """The record that user code was called with, the first of a batch; ``root`` is None if untracked."""

    topic: str
    partition: int
    offset: int
    root: int | None

    def figures(self) -> dict[str, Value]:
        """Return what a report says of it."""
        root = {} if self.root is None else {"executing_root": f"{self.root:016x}"}
        return {"executing": f"{self.topic}/{self.partition}/{self.offset}", **root}


class Liveness:
    """The liveness of one loop; ``executing`` returns the record its user code executes, from any thread."""

    def __init__(
        self,
        stuck_after_s: float = STUCK_AFTER_S,
        executing: Callable[[], Executing | None] = lambda: None,
    ) -> None:
        self.stuck_after_s, self.executing = stuck_after_s, executing
        self.thread: Callable[[], int | None] = lambda: None
        """Finds the thread that runs user code, if it is not the loop's."""
        self.calling = ""
        """The method of user code that runs now, if it is no ``execute``."""
        self._turn: tuple[float, float] | None = None
        """When it began, and how long it has waited for the broker."""
        self._waiting_since_s: float | None = None

    def begin_turn(self) -> None:
        """Record that the loop begins a turn."""
        self._turn = world.monotonic_s(), 0.0

    def end(self) -> None:
        """Say that the loop has ended."""
        self._turn = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for the broker in this block."""
        if self._waiting_since_s is not None:
            yield
            return
        self._waiting_since_s = since_s = world.monotonic_s()
        try:
            yield
        finally:
            if self._turn is not None:
                began_s, waited_s = self._turn
                self._turn = began_s, waited_s + world.monotonic_s() - since_s
            self._waiting_since_s = None

    @property
    def turn_s(self) -> float:
        """How long the turn has lasted, in seconds; 0 while the loop does not run."""
        turn = self._turn
        return max(0.0, world.monotonic_s() - turn[0]) if turn is not None else 0.0

    @property
    def broker_wait_s(self) -> float:
        """How long the turn has waited for the broker, in seconds."""
        return max(0.0, self.turn_s - self.stalled_s)

    @property
    def stalled_s(self) -> float:
        """How long the loop has been stalled, in seconds: how long the turn has lasted without its waits."""
        turn, since_s = self._turn, self._waiting_since_s
        if turn is None:
            return 0.0
        now_s = since_s if since_s is not None else world.monotonic_s()
        return max(0.0, now_s - turn[0] - turn[1])

    @property
    def is_stuck(self) -> bool:
        """Whether the loop has been stalled for longer than any call of user code may take."""
        return self.stalled_s > self.stuck_after_s

    def figures(self) -> dict[str, Value]:
        """Return what a report says of a stalled loop."""
        executing = self.executing()
        return {
            "stalled_s": round(self.stalled_s, 3),
            "stuck_after_s": self.stuck_after_s,
            **(executing.figures() if executing is not None else {}),
            **({"calling": self.calling} if self.calling else {}),
        }
