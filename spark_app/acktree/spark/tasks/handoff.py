"""The hand-off from a read task to the stage in the same Spark task: what it reads, and its rows' anchors.

Both run in one task attempt, in two Python processes of one executor, so the hand-off is a file named by the
attempt in the executor's folder.
Invariant: the file is written only in a job whose tasks remove it, so none stays behind. What a killed task
left is removed by the first task of the query's next batch on that executor: a query runs one batch at a
time. A complete file ends with ``_END``: one without it is of a reader that did not reach its end.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark import SparkContext

from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import ANCHOR
from acktree.spark.driver.batch_commits import BatchName, ReadTaskName
from acktree.spark.runtime.task_context import executor_folder, running_task

_WANTED = "acktree.handoff"
"""The local property that a job's tasks see: which batch of which query wants hand-offs."""


_END = b"end\n"
"""The last bytes of a complete hand-off; its records are longer."""


class ReadingUnfinished(AcktreeError):
    """The rows ended before this task had read all of its records."""


class NoHandoff(AcktreeError):
    """This task did not read any records itself: the plan is not narrow."""


@contextmanager
def handoff_wanted(context: SparkContext, batch: BatchName) -> Iterator[None]:
    """On the driver, around a job whose tasks write what they have read: make them write hand-offs."""
    context.setLocalProperty(_WANTED, f"{batch.query}.{batch.number}")
    try:
        yield
    finally:
        context.setLocalProperty(_WANTED, None)  # type: ignore[arg-type]


def handoff_path() -> Path | None:
    """Return this attempt's hand-off file, None if no job wants one, and outside of a Spark task."""
    task = running_task()
    batch = None if task is None else task.getLocalProperty(_WANTED)
    if task is None or batch is None:
        return None
    return executor_folder() / f"acktree-handoff-{batch}.{task.taskAttemptId()}"


def begin_handoff(task: ReadTaskName) -> None:
    """Write the name of what this task reads, if the stage wants a hand-off; rows follow."""
    if (path := handoff_path()) is not None:
        _remove_earlier_batches(path)
        path.write_bytes(task.line().encode())


def _remove_earlier_batches(path: Path) -> None:
    query, _, _ = path.name.partition(".")
    for other in path.parent.glob(f"{query}.*.*"):
        if other.stem != path.stem:
            other.unlink(missing_ok=True)


def add_to_handoff(anchors: bytes) -> None:
    """Add the anchors of rows that were read, 18 bytes each."""
    # Life of a record, step 3.
    if (path := handoff_path()) is not None:
        with path.open("ab") as file:
            file.write(anchors)


def read_handoff() -> ReadTaskName:
    """Return the name of what this task reads; call when its first row, or the end, has arrived.

    Raises:
        NoHandoff: nothing was read in this task.
    """
    path = handoff_path()
    if path is None or not path.exists():
        raise NoHandoff("the rows of this task were read by another one")
    with path.open("rb") as file:
        return ReadTaskName.from_line(file.readline().decode())


def end_handoff() -> None:
    """Mark the hand-off complete."""
    add_to_handoff(_END)


def handoff_anchors() -> NDArray[np.void]:
    """Return the anchors, (n,) of ANCHOR, of all rows this task has read; call when the rows have ended.

    Raises:
        ReadingUnfinished: the reader has not reached its end, so anchors of some records are missing.
    """
    path = handoff_path()
    assert path is not None, "read_handoff comes first"
    with path.open("rb") as file:
        file.readline()
        size = os.fstat(file.fileno()).st_size - file.tell() - len(_END)
        anchors = np.fromfile(file, ANCHOR, max(0, size) // ANCHOR.itemsize)
        if size % ANCHOR.itemsize or file.read() != _END:
            raise ReadingUnfinished(
                "the rows ended before all records of this task were read: a function of the transform "
                "must take all rows that it is given"
            )
    return anchors


def clear_handoff() -> None:
    """Remove the file, if there is one; call when the task ends, successful or not."""
    if (path := handoff_path()) is not None:
        path.unlink(missing_ok=True)
