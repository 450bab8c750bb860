"""An asyncio event loop whose time is virtual, and waiting for its futures.

Invariant: the loop waits for nothing but its own timers and ``call_soon_threadsafe``; it has no sockets.
"""

import asyncio
import inspect
import selectors
from concurrent.futures import Future
from typing import Any, TypeVar

from acktree.testing.virtual.kernel import Kernel, Task

Answer = TypeVar("Answer")


class _Sleeper(selectors.SelectSelector):
    """Waits in virtual time instead of for sockets."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self.sleeping: Task | None = None
        self.is_awake = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait until the next timer is due or somebody calls."""
        if not self.is_awake and (timeout is None or timeout > 0):
            self.sleeping = self._kernel.current
            self._kernel.wait(timeout, "a coroutine's timer or a call")
            self.sleeping = None
        self.is_awake = False
        return []

    def wake(self) -> None:
        """Look immediately for what there is to do."""
        self.is_awake = True
        if self.sleeping is not None:
            self._kernel.wake(self.sleeping)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._sleeper = kernel, _Sleeper(kernel)
        super().__init__(self._sleeper)

        kernel.current.process.at_death.append(self._drop_tasks)

    def _drop_tasks(self) -> None:
        """Close the coroutines that a killed process has not begun: Python would warn of them."""
        for task in asyncio.all_tasks(self):
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    def __del__(self) -> None:
        """Do not warn of a loop that was never closed: it holds no socket."""

    def time(self) -> float:
        """Return virtual time."""
        return self._kernel.now_s

    def _make_self_pipe(self) -> None:
        """Make none: a real loop is woken by it."""

    def _close_self_pipe(self) -> None:
        """See _make_self_pipe."""

    def _write_to_self(self) -> None:
        self._sleeper.wake()


def wait_for(kernel: Kernel, future: Future[Answer], timeout_s: float) -> Answer:
    """Return a future's result, or raise its error, or TimeoutError after so much virtual time."""
    task, until_s = kernel.current, kernel.now_s + timeout_s

    def wake(_: Any) -> None:
        kernel.wake(task)

    future.add_done_callback(wake)
    while not future.done():
        if kernel.now_s >= until_s:
            raise TimeoutError
        kernel.wait(until_s - kernel.now_s, "the result of a coroutine or request")
    return future.result(0)
