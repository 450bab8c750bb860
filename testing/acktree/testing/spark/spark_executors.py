"""Simulates Spark executors: task attempts in Python processes that read, and in others that write.

Invariant: an attempt ends once, by its result, an error, or the death of a process; its writer gets the end
marker of a whole input only if its reader reached the end. Jobs, retries, twins and losses are Spark's: a
task fails for good at its MAX_FAILURES-th error; the first attempt that ends well wins, and its twin is
killed.
"""

import io
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyarrow as pa

from acktree.core.temporary_folder import temporary_folder
from acktree.spark.runtime.task_context import SIMULATED_TASK
from acktree.testing.spark.spark_attempts import (
    Attempt,
    Channel,
    EndOfInput,
    Executor,
    State,
    StepFailed,
    TaskBody,
    TaskDied,
)
from acktree.testing.virtual.kernel import Kernel, Process

EXECUTORS, SLOTS = 2, 2
MAX_FAILURES = 4
"""spark.task.maxFailures, as ``acktree spark run`` has it for a local session."""
LOOK_INTERVAL_S = 1.0
SILENCE_S = 120.0
"""spark.network.timeout: an executor that says nothing for so long is given up."""
KILL_S = 0.1
"""How long it takes until a twin that lost is dead."""
NEW_EXECUTOR_S = 1.0


class Executors:
    """The executors of one application, and the jobs that its driver runs on them."""

    def __init__(self, kernel: Kernel, driver: Process, count: int = EXECUTORS) -> None:
        self.kernel, self.driver = kernel, driver
        self._kept = ExitStack()
        self.folder = self._kept.enter_context(temporary_folder("simulated"))
        self._numbers, self._attempts, self._stages = itertools.count(), itertools.count(), itertools.count()
        self.all = [self._new() for _ in range(count)]
        self.stage_attempts: Counter[int] = Counter()
        """How often each stage was run again."""
        self.speculates: Callable[[Attempt], bool] = lambda _attempt: False
        """Whether an attempt gets a twin immediately."""
        self.cuts_off: Callable[[Attempt], bool] = lambda _attempt: False
        """Whether the step between reading and writing fails half-way, when all is read."""
        self.outlive_driver_s: Callable[[], float] = lambda: 0.0
        """How long executors keep running when their driver is dead."""
        self.failure: BaseException | None = None
        """The error of the last task that failed."""
        self._waiting_driver: Any = None
        driver.at_death.append(self._driver_died)
        kernel.at_close.append(self._kept.close)  # they may outlive their driver, but not the world

    def _new(self) -> Executor:
        name = f"{self.driver.name}.executor-{next(self._numbers)}"
        folder = self.folder / name
        folder.mkdir()
        return Executor(name, folder)

    @property
    def processes(self) -> list[Process]:
        """The Python processes of all executors."""
        return [process for executor in self.all for process in executor.all if process.is_alive]

    # Losses.

    def lose(self, executor: Executor) -> None:
        """Kill an executor with all that runs on it; another one takes its place a little later."""
        if executor.is_lost:
            return
        executor.is_lost = True
        self.all.remove(executor)
        self.kernel.call_after(NEW_EXECUTOR_S, self._replace)
        self.kernel.kill_all(executor.all)

    def _replace(self) -> None:
        if self.driver.is_alive:
            self.all.append(self._new())
            self._wake_driver()

    def _driver_died(self) -> None:
        delay_s = self.outlive_driver_s()
        if delay_s:
            self.kernel.call_after(delay_s, self.close)
        else:
            self.close()

    def close(self) -> None:
        """Kill every Python process, as the end of the driver does."""
        self._kept.close()
        self.kernel.kill_all([process for executor in self.all for process in executor.all])

    # Jobs.

    def new_stage(self) -> int:
        """Return the number of a new stage."""
        return next(self._stages)

    def run(
        self, bodies: Sequence[TaskBody], properties: Mapping[str, str], stage: int, indexes: Sequence[int]
    ) -> dict[int, Attempt]:
        """Run some tasks of a stage, in the driver; return the attempt of each that ended well.

        Raises:
            Exception: the error of a task that failed MAX_FAILURES times.
        """
        waiting = deque(indexes)
        running: list[Attempt] = []
        ended: dict[int, Attempt] = {}
        numbers: Counter[int] = Counter()
        failures: Counter[int] = Counter()

        def launch(index: int, executor: Executor, *, is_twin: bool = False) -> None:
            number = numbers[index]
            numbers[index] += 1
            attempt = Attempt(executor, index, number, next(self._attempts), stage, dict(properties))
            attempt.is_twin = is_twin
            self._start(attempt, bodies[index])
            running.append(attempt)

        while len(ended) < len(indexes):
            while waiting and (executor := self._free()) is not None:
                launch(waiting.popleft(), executor)
            for attempt in list(running):
                if attempt.state is State.RUNNING and not attempt.is_twin and self.speculates(attempt):
                    others = [other for other in self.all if other is not attempt.executor]
                    if others and not any(a.is_twin and a.index == attempt.index for a in running):
                        launch(attempt.index, self.kernel.random.choice(others), is_twin=True)
            self._waiting_driver = self.kernel.current
            self.kernel.wait(LOOK_INTERVAL_S, "the tasks of a Spark job")
            self._give_up_silent()
            for attempt in [a for a in running if a.state is not State.RUNNING]:
                running.remove(attempt)
                index = attempt.index
                has_other = index in ended or any(other.index == index for other in running)
                if attempt.state is State.ENDED:
                    if index not in ended:
                        self._win(attempt, running)
                        ended[index] = attempt
                    continue
                if attempt.state is State.FAILED and index not in ended:
                    failures[index] += 1
                    self.failure = attempt.error
                    if failures[index] >= MAX_FAILURES:
                        for other in running:
                            self._abandon(other)
                        assert attempt.error is not None
                        raise attempt.error
                if not has_other:
                    waiting.append(index)
        return ended

    def _win(self, attempt: Attempt, running: list[Attempt]) -> None:
        for update in attempt.updates:
            update()
        for other in running:
            if other.index == attempt.index:
                self.kernel.call_after(KILL_S, partial(self._abandon, other))

    def _free(self) -> Executor | None:
        free = [executor for executor in self.all if len(executor.running) < SLOTS]
        return min(free, key=lambda executor: len(executor.running)) if free else None

    def _give_up_silent(self) -> None:
        """Give up executors that got no processor time for SILENCE_S; their processes may come back."""
        for executor in list(self.all):
            if not any(process.is_stopped for process in executor.all):
                executor.silent_since_s = None
            elif executor.silent_since_s is None:
                executor.silent_since_s = self.kernel.now_s
            elif self.kernel.now_s - executor.silent_since_s > SILENCE_S:
                executor.is_lost = True
                self.all.remove(executor)
                for attempt in executor.running:
                    self._end(attempt, State.LOST)
                self.kernel.call_after(NEW_EXECUTOR_S, self._replace)

    # Attempts.

    def _start(self, attempt: Attempt, body: TaskBody) -> None:
        reader, writer = self._take(attempt, "reader"), self._take(attempt, "writer")
        attempt.processes = reader, writer
        attempt.channel = Channel(self.kernel)
        attempt.executor.running.append(attempt)
        self.kernel.spawn(reader, partial(self._read, attempt, body), "a reading task")
        infile: Any = io.BufferedReader(EndOfInput(attempt.channel))
        self.kernel.spawn(writer, partial(self._write, attempt, body, infile), "a writing task")

    def _take(self, attempt: Attempt, kind: str) -> Process:
        """Return an idle Python process of an executor, the one that is idle longest, or a new one."""
        executor = attempt.executor
        idle = executor.idle[kind]
        while idle:
            process = idle.pop(0)
            if process.is_alive:
                break
        else:
            process = self.kernel.process(f"{executor.name}.{kind}-{len(executor.all)}")
            executor.all.append(process)
            process.at_death.append(partial(self._process_died, executor, process))
        process.state[SIMULATED_TASK] = attempt
        return process

    def _read(self, attempt: Attempt, body: TaskBody) -> None:
        process = attempt.processes[0]
        try:
            self.kernel.on_call(process, "spark.read")
            if self.cuts_off(attempt):
                self._cut_off(attempt, list(body.source()))
                return
            for batch in body.source():
                attempt.channel.put(batch)
            self.kernel.on_call(process, "spark.read_end")
            attempt.channel.close(is_whole=True)
        except Exception as error:
            self._fail(attempt, error)

    def _cut_off(self, attempt: Attempt, batches: list[pa.RecordBatch]) -> None:
        """Hand over half of the rows that were read; the step above the writer fails then."""
        *whole, last = batches or [None]
        for batch in whole:
            attempt.channel.put(batch)
        if last is not None:
            attempt.channel.put(last.slice(0, len(last) // 2))
        raise StepFailed("a step between reading and writing has failed")

    def _write(self, attempt: Attempt, body: TaskBody, infile: Any) -> None:
        process = attempt.processes[1]

        def main(infile: Any) -> list[pa.RecordBatch]:
            """Named as in pyspark.worker, where the product looks for Spark's end marker."""
            assert infile.readable()
            return list(body.write(iter(attempt.channel)))

        try:
            self.kernel.on_call(process, "spark.write")
            result = main(infile)
            self.kernel.on_call(process, "spark.write_end")
        except Exception as error:
            self._fail(attempt, error)
            return
        attempt.result = result
        self._end(attempt, State.ENDED)
        for kind, each in zip(("reader", "writer"), attempt.processes, strict=True):
            if each.is_alive and each.state.pop(SIMULATED_TASK, None) is attempt:
                attempt.executor.idle[kind].append(each)

    def _fail(self, attempt: Attempt, error: BaseException) -> None:
        """End an attempt by an error; Python processes of failed tasks are not used again."""
        if attempt.state is State.RUNNING:
            attempt.error = error
            self._end(attempt, State.FAILED)
        self.kernel.call_after(KILL_S, partial(self._abandon, attempt))

    def _abandon(self, attempt: Attempt) -> None:
        """Kill the processes of an attempt that nobody waits for."""
        mine = [each for each in attempt.processes if each.state.get(SIMULATED_TASK) is attempt]
        self.kernel.kill_all(mine)

    def _process_died(self, executor: Executor, process: Process) -> None:
        attempt = process.state.get(SIMULATED_TASK)
        if attempt is None or attempt.state is not State.RUNNING:
            return
        attempt.error = TaskDied(f"{process.name} died")
        self._end(attempt, State.LOST if executor.is_lost else State.FAILED)
        self.kernel.call_after(KILL_S, partial(self._abandon, attempt))

    def _end(self, attempt: Attempt, state: State) -> None:
        if attempt.state is State.RUNNING:
            attempt.state = state
        attempt.channel.close(is_whole=False)
        if attempt in attempt.executor.running:
            attempt.executor.running.remove(attempt)
        self._wake_driver()

    def _wake_driver(self) -> None:
        if self._waiting_driver is not None:
            self.kernel.wake(self._waiting_driver)
