"""A thread that runs a bolt, one call after the other, so that user code never holds up the loop.

Invariant: at most one call runs; its exception is raised to the next caller.
"""

from collections.abc import Callable

from acktree.core import world

Call = Callable[[], object]


class BoltThread:
    """Runs from ``start`` to ``end``, under a name that thread dumps show; used by one other thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._call: Call | None = None
        self.error: BaseException | None = None
        """What the last call has raised, until ``check`` raises it."""
        self._given, self._ended = world.event(), world.event()
        self.is_busy = False
        """Whether a call runs."""
        self.calls = 0
        """How many calls were begun."""
        self.thread_id: int | None = None
        """The thread, once it runs."""

    def start(self) -> None:
        """Start the thread; called once."""
        world.start_thread(self._run, self._name)

    def begin(self, call: Call) -> None:
        """Begin a call; none may be running."""
        assert not self.is_busy, self._name
        self._call, self.is_busy = call, True
        self.calls += 1
        self._ended.clear()
        self._given.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no call runs, None for as long as it takes; return whether none does."""
        if self.is_busy:
            self._ended.wait(timeout_s)
        return not self.is_busy

    def check(self) -> None:
        """Raise what the last call has raised, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def end(self) -> None:
        """End the thread, after its call if one runs."""
        self._given.set()

    def _run(self) -> None:
        self.thread_id = world.thread_id()
        while True:
            self._given.wait()
            self._given.clear()
            call, self._call = self._call, None
            if call is None:
                return
            try:
                call()
            except world.ProcessEnds:
                raise
            except BaseException as error:
                self.error = error
            del call
            self.is_busy = False
            self._ended.set()
