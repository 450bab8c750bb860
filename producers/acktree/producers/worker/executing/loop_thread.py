"""Runs an asyncio event loop in a separate thread, to which another thread gives work.

Invariant: nobody waits for a dead loop: the exception that ended it is raised instead.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

from acktree.core import world

CHECK_INTERVAL_S = 0.5
"""How often a waiting thread checks whether the loop still runs."""

Answer = TypeVar("Answer")


class LoopThread:
    """Runs from ``start`` to ``close``, under a name that thread dumps show."""

    def __init__(self, name: str, max_calls: int | None = None) -> None:
        """``max_calls``: how many functions ``asyncio.to_thread`` runs concurrently; None: as asyncio."""
        self._name = name
        self._loop = world.event_loop(max_calls)
        self._thread: world.Thread | None = None
        self.ended_by: BaseException | None = None
        self.thread_id: int | None = None
        """The thread, once it runs."""

    def start(self) -> None:
        """Start the thread; called once."""
        self._thread = world.start_thread(self._run, self._name)

    def _run(self) -> None:
        self.thread_id = world.thread_id()
        try:
            self._loop.run_forever()
        except BaseException as error:
            self.ended_by = error

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something on the loop, at its next iteration."""
        self.check()
        self._loop.call_soon_threadsafe(call, *arguments)

    def running_task(self) -> asyncio.Task[Any] | None:
        """Return the task that the loop runs at this moment."""
        return asyncio.current_task(self._loop)

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine on the loop; return its result, or raise its error or what ended the loop."""
        try:
            return self.result(self.begin(work))
        finally:
            _close_unless_begun(work)

    def wait_for_last(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine as ``wait`` does; if the loop ends, this thread runs what is left of it."""
        future = self.begin(work)
        try:
            self.check()
            return self.result(future)
        except BaseException:
            if self.ended_by is None or future.done():
                _close_unless_begun(work)
                raise
        self._join()
        return self._loop.run_until_complete(asyncio.wrap_future(future, loop=self._loop))

    def begin(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def result(self, future: Future[Answer]) -> Answer:
        """Wait for a started coroutine; return its result, or raise its error or what ended the loop."""
        while True:
            try:
                return world.wait_for(future, CHECK_INTERVAL_S)
            except NotYet:
                if future.done():
                    raise
                self.check()

    def check(self) -> None:
        """Raise the exception that ended the loop, if there was one."""
        if self.ended_by is not None:
            raise self.ended_by

    def close(self) -> None:
        """End the thread, and cancel all tasks: in this thread, because that of the loop may have ended."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._join()
            self._loop.run_until_complete(_cancel_all())
        self._loop.close()

    def _join(self) -> None:
        """Wait for the end of the thread; forget a stop that it has not seen."""
        assert self._thread is not None
        self._thread.join()
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()


def _close_unless_begun(work: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that nobody will run any more."""
    if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    others.sort(key=lambda task: (len(task.get_name()), task.get_name()))  # as they began: Task-1, Task-2
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=CHECK_INTERVAL_S) if others else None
    await asyncio.get_running_loop().shutdown_asyncgens()
