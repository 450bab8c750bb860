"""Runs simulated processes in virtual time: their tasks run one at a time, and yield only where they wait.

Invariant: one seed gives one run. A task runs until it waits; what runs next depends on virtual time alone,
and time passes only when nothing can run. The idea is FoundationDB's; the form for synchronous code, where
every wait yields, is that of Neon's desim.
"""

import asyncio
import heapq
import itertools
import random
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

from greenlet import getcurrent, greenlet

from acktree.core.world import ProcessEnds
from acktree.testing.virtual.errors import NothingCanHappen, NotSimulated, TookTooLong

START_S = 1_700_000_000.0
"""The wall clock when a simulation begins, in seconds since 1970."""
FOREVER_S = float("inf")
PAUSE = "a pause"


class Killed(ProcessEnds):
    """The simulated process was killed; raised in it from everything that waits."""


@dataclass(eq=False)
class Process:
    """A simulated operating system process."""

    name: str
    number: int
    is_alive: bool = True
    is_stopped: bool = False
    """Whether it gets no processor time, as after SIGSTOP."""
    clock_step_s: float = 0.0
    """How far its wall clock is off."""
    tasks: list["Task"] = field(default_factory=list)
    at_death: list[Callable[[], None]] = field(default_factory=list)
    """What its clients do when it dies: in this order, before any of its code notices."""
    error: BaseException | None = None
    """What ended it, if that was not a kill or an ordinary end."""
    state: dict[Any, Any] = field(default_factory=dict)
    """What modules keep for this process alone."""
    calls: int = 0
    """How many calls its clients have made."""


class Timer:
    """A call at a time, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """Do it not."""
        self.call = None


class Task:
    """A thread of a simulated process."""

    def __init__(self, kernel: "Kernel", process: Process, run: Callable[[], object], name: str) -> None:
        self.kernel, self.process, self.name = kernel, process, name
        self.is_done = False
        self.waits_for = ""
        self.due: Timer | None = None
        self.is_waiting = False
        self.running_loop: object | None = None
        self.joining: list[Task] = []
        self._run = run
        self.resume = partial(kernel.resume, self)
        self.greenlet = greenlet(self._main, parent=kernel.hub)
        self.switch = self.greenlet.switch

    def _main(self) -> None:
        process = self.process
        try:
            if process.is_alive:
                self._run()
        except Killed:
            pass
        except BaseException as error:
            if process.is_alive and process.error is None:
                process.error = error
        finally:
            self.is_done = True
            process.tasks.remove(self)
            if not process.tasks:
                self.kernel.ended.append(process)
            for task in self.joining:
                self.kernel.wake(task)

    # The Thread of acktree.core.world.

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most ``timeout`` seconds of virtual time."""
        self.joining.append(self.kernel.current)
        self.kernel.wait_until(lambda: self.is_done, timeout, f"the end of {self.name}")

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return not self.is_done


class Kernel:
    """Runs the tasks of all processes."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.at_close: list[Callable[[], object]] = []
        """Called when this world ends."""
        self.switches = 0
        self.ended: list[Process] = []
        """Processes whose last task has ended, until the watcher takes them out."""
        self.on_call: Callable[[Process, str], None] = lambda _process, _call: None
        """Called before each call of a client, in the process that makes it."""
        self._numbers = itertools.count()
        self._kills = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._current: Task | None = None
        self._end_s = FOREVER_S
        self._thread = get_ident()
        self._stranger: str | None = None

    @property
    def current(self) -> Task:
        """The task that runs. Raises NotSimulated: none does, or a real thread asks."""
        if self._stranger is not None or get_ident() != self._thread:
            self.refuse_real_threads()
        if self._current is None:
            raise NotSimulated("only a task of a simulated process may do this; spawn one for it")
        return self._current

    def refuse_real_threads(self) -> None:
        """Raise NotSimulated in a real thread, and then in every task: none shall wait for it."""
        if self._stranger is None and get_ident() != self._thread:
            self._stranger = threading.current_thread().name
        if self._stranger is not None:
            raise NotSimulated(
                f"the real thread {self._stranger!r} uses the simulated Kafka or its time; "
                "start it with acktree.core.world.start_thread"
            )

    @property
    def is_in_task(self) -> bool:
        """Whether a task runs."""
        return self._current is not None

    def process(self, name: str) -> Process:
        """Add a process."""
        process = Process(name, 1000 + len(self.processes))
        self.processes.append(process)
        return process

    def spawn(self, process: Process, run: Callable[[], object], name: str) -> Task:
        """Start a task at the present time."""
        task = Task(self, process, run, name)
        process.tasks.append(task)
        self._run_at(task, 0.0)
        return task

    # Time.

    def call_after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call something after a delay; it must not wait."""
        timer = Timer(call)
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), timer))
        return timer

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the task that runs."""
        self._suspend(seconds, PAUSE)

    def wait(self, timeout_s: float | None, reason: str) -> None:
        """Wait until someone wakes this task, or for ``timeout_s`` at most; check what it waits for again."""
        self._suspend(timeout_s, reason)

    def wait_until(self, holds: Callable[[], bool], timeout_s: float | None, reason: str) -> None:
        """Wait until something holds, or for ``timeout_s`` at most, whatever wakes the task meanwhile."""
        until_s = FOREVER_S if timeout_s is None else self.now_s + timeout_s
        while not holds() and self.now_s < until_s:
            self.wait(until_s - self.now_s, reason)

    def wake(self, task: Task) -> None:
        """Make a waiting task run at the present time; one that does not wait is left alone."""
        if task.is_waiting:
            task.is_waiting = False
            if task.due is not None:
                task.due.cancel()
            self._run_at(task, 0.0)

    def _run_at(self, task: Task, delay_s: float) -> None:
        task.due = self.call_after(delay_s, task.resume)

    def _suspend(self, delay_s: float | None, reason: str) -> None:
        task = self.current
        if not task.process.is_alive:
            raise Killed
        if delay_s is not None and reason is PAUSE and not task.process.is_stopped:
            until_s = self.now_s + delay_s
            if until_s < self._end_s and (not self._heap or until_s < self._heap[0][0]):
                self.now_s = until_s  # nothing can happen before that: no need to hand over
                return
        task.waits_for, task.is_waiting = reason, True
        task.due = None
        if delay_s is not None and delay_s < FOREVER_S:
            self._run_at(task, max(0.0, delay_s))
        loop = asyncio._get_running_loop()
        if loop is not None:
            asyncio._set_running_loop(None)
        self.hub.switch()
        if loop is not None:
            asyncio._set_running_loop(loop)
        task.is_waiting = False
        if not task.process.is_alive:
            raise Killed

    def resume(self, task: Task) -> None:
        """Let a task run until it waits; for its timer."""
        if task.is_done:
            return
        if task.process.is_stopped and task.process.is_alive:
            task.due = self.call_after(0.05, task.resume)
            return
        self.switches += 1
        before, self._current = self._current, task
        try:
            task.switch()
        finally:
            self._current = before

    # Faults.

    def kill(self, process: Process) -> None:
        """End a process as kill -9 does: what was not sent is lost, and no code of it cleans up."""
        if not process.is_alive:
            return
        process.is_alive = False
        self._kills += 1  # a process may take others along: the task that runs dies when all of them are dead
        for at_death in process.at_death:
            at_death()
        self._kills -= 1
        for task in list(process.tasks):
            if task is self._current:
                continue
            if task.due is not None:
                task.due.cancel()
            self._run_at(task, 0.0)
        if not self._kills and self._current is not None and not self._current.process.is_alive:
            raise Killed

    def kill_all(self, processes: Iterable[Process]) -> None:
        """Kill several, the one whose task runs last."""
        mine = None if self._current is None else self._current.process
        for process in sorted(processes, key=lambda process: process is mine):
            self.kill(process)

    def stop(self, process: Process, seconds: float) -> None:
        """Give a process no processor time for a while, as SIGSTOP does: then it is a zombie."""
        process.is_stopped = True
        self.call_after(seconds, lambda: setattr(process, "is_stopped", False))

    # Running.

    def run(self, until: Callable[[], bool] = lambda: False, limit_s: float = 3600.0) -> None:
        """Run until a condition holds, checked whenever something has happened.

        Raises:
            TookTooLong: it does not hold ``limit_s`` of virtual time from now.
            NothingCanHappen: all tasks wait for something that nobody will do.
            Exception: what ended a process.
        """
        end_s = self._end_s = self.now_s + limit_s
        while not until():
            if not self._heap:
                raise NothingCanHappen("no task can ever run again:\n" + self.describe())
            at_s, _, timer = self._heap[0]
            if timer.call is not None and at_s > end_s:
                raise TookTooLong(f"not done after {limit_s:g} s of virtual time:\n" + self.describe())
            heapq.heappop(self._heap)
            call, timer.call = timer.call, None
            if call is None:
                continue
            self.now_s = max(self.now_s, at_s)
            call()

    def run_for(self, seconds: float) -> None:
        """Let virtual time pass for everybody."""
        end_s = self.now_s + seconds
        timer = self.call_after(seconds, lambda: None)
        self.run(lambda: self.now_s >= end_s, seconds + 1)
        timer.cancel()

    def describe(self) -> str:
        """Return what every task waits for, and where."""
        lines = []
        for process in self.processes:
            for task in process.tasks:
                lines.append(f"{process.name}: {task.name} waits for {task.waits_for or 'its start'}")
                frame = task.greenlet.gr_frame
                stack = traceback.extract_stack(frame, 12) if frame is not None else []
                ours = [place for place in stack if "/testing/" not in place.filename][-3:]
                lines += [f"    {place.filename}:{place.lineno} {place.name}" for place in ours]
        return "\n".join(lines) or "no task is left"

    def close(self) -> None:
        """Kill every process, so that no task is left."""
        for process in self.processes:
            self.kill(process)
        while self._heap:
            _, _, timer = heapq.heappop(self._heap)
            call, timer.call = timer.call, None
            if call is not None and any(process.tasks for process in self.processes):
                call()
        while self.at_close:
            self.at_close.pop()()
