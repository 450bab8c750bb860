"""Finds the Spark task that runs in this Python process, and its executor's folder.

Invariant: simulated processes, many of which share one Python process, each have their own task; no other
file asks Spark which task runs.
"""

from pathlib import Path
from typing import Protocol

from pyspark import SparkFiles, TaskContext

from acktree.core import world

SIMULATED_TASK = "acktree.spark.task"
"""Where a simulated process keeps its task, in ``world.process_state()``."""


class Task(Protocol):
    """The part of Spark's TaskContext that tasks use."""

    def attemptNumber(self) -> int: ...
    def getLocalProperty(self, key: str) -> str | None: ...
    def partitionId(self) -> int: ...
    def stageId(self) -> int: ...
    def taskAttemptId(self) -> int: ...


class SimulatedTask(Task, Protocol):
    """A task of a simulated executor."""

    @property
    def folder(self) -> Path: ...


def running_task() -> Task | None:
    """Return the task that runs, None outside of one."""
    return _simulated() if world.is_simulated() else TaskContext.get()


def executor_folder() -> Path:
    """Return the folder of the executor that runs the task."""
    simulated = _simulated() if world.is_simulated() else None
    return Path(SparkFiles.getRootDirectory()) if simulated is None else simulated.folder


def _simulated() -> SimulatedTask | None:
    found: SimulatedTask | None = world.process_state().get(SIMULATED_TASK)
    return found
