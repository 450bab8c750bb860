"""An asyncio event loop in a thread of its own, told from another thread what to run.

Invariant: who waits for the loop does not wait for a dead one: what ended it is raised instead.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

LOOK_S = 0.5
"""How often one who waits looks whether the loop still runs."""

Answer = TypeVar("Answer")


class LoopThread:
    """Runs from ``start`` to ``close``."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="acktree-loop", daemon=True)
        self.ended_by: BaseException | None = None

    def start(self) -> None:
        """Begin; called once."""
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:
            self.ended_by = error

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Let the loop call something at its next turn."""
        self.check()
        self._loop.call_soon_threadsafe(call, *arguments)

    def wait(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Let the loop run a coroutine; return its result, or raise its error or what ended the loop."""
        return self.result(self.begin(work))

    def begin(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Let the loop run a coroutine meanwhile."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def result(self, future: Future[Answer]) -> Answer:
        """Wait for what was begun; return its result, or raise its error or what ended the loop."""
        while True:
            try:
                return future.result(LOOK_S)
            except NotYet:
                if future.done():
                    raise
                self.check()

    def check(self) -> None:
        """Raise what ended the loop, if something did."""
        if self.ended_by is not None:
            raise self.ended_by

    def close(self) -> None:
        """Cancel what still runs, and end."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop)
            self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    loop = asyncio.get_running_loop()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=LOOK_S) if others else None
    await loop.shutdown_asyncgens()
    loop.stop()
