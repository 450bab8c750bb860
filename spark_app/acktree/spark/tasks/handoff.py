"""The hand-off from a read task to the stage in the same Spark task: its name, and the anchors of its rows.

Both run in one task attempt, in two Python processes of one executor, so the hand-off is a file named by the
attempt in the executor's folder. It is written if the stage has asked the job's tasks for it, or if the
source's options say that its plan is narrow (``declared_by``, the source's group), for
``writeStream.format("acktree")``.

Invariant: the file is written only in a job whose tasks remove it, so none stays behind. The file of a killed
task, or of a refused plan, is removed by the first task of the query's next batch on that executor: a query
runs one batch at a time. A complete file ends with ``_END``: without it, its reader did not reach its end. A
file is about one reader: a second one in the same attempt is refused.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark import SparkContext

from acktree.spark.runtime.task_context import executor_folder, running_task
from acktree.spark.shared.batch_commits import BatchName, ReadTaskName
from acktree.wire.errors import AcktreeError
from acktree.wire.header import ANCHOR

_WANTED = "acktree.handoff"
"""The local property that a job's tasks see: which batch of which query wants hand-offs."""
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark itself gives to the tasks of a streaming query."""
DECLARED_WRONGLY = (
    "the plan is not narrow, although option plan=narrow declares it so. A narrow plan may have projections, "
    "filters, explodes, joins with broadcast tables and functions of rows, but no shuffle, union, coalesce, "
    "limit or state. Leave plan=narrow out and write with foreachBatch and a stage"
)
_GROUP_END = "|"
_NOTHING = "nothing\n"

_END = b"end\n"
"""The last bytes of a complete hand-off; its records are longer."""


class ReadingUnfinished(AcktreeError):
    """The rows ended before this task had read all of its records."""


class NoHandoff(AcktreeError):
    """This task did not read any records itself: the plan is not narrow."""


class NotOneToOne(AcktreeError):
    """A task of a plan that was declared narrow has read the input of several tasks, or of another one."""


@contextmanager
def handoff_wanted(context: SparkContext, batch: BatchName) -> Iterator[None]:
    """On the driver, around a job whose tasks write what they have read: make them write hand-offs."""
    context.setLocalProperty(_WANTED, f"{batch.query}.{batch.number}")
    try:
        yield
    finally:
        context.setLocalProperty(_WANTED, None)  # type: ignore[arg-type]


def batch_of_task() -> BatchName | None:
    """Return the batch that this task belongs to, as Spark tells the tasks of a streaming query."""
    task = running_task()
    query = None if task is None else task.getLocalProperty(QUERY_ID)
    number = None if task is None else task.getLocalProperty(BATCH_ID)
    return BatchName(query, int(number)) if query and number else None


def handoff_path(declared_by: str = "") -> Path | None:
    """Return this attempt's hand-off file, None if nobody wants one, and outside of a Spark task."""
    task = running_task()
    if task is None:
        return None
    wanted = task.getLocalProperty(_WANTED)
    if wanted is None and declared_by and (batch := batch_of_task()) is not None:
        wanted = f"{batch.query}.{batch.number}"
    if wanted is None:
        return None
    return executor_folder() / f"acktree-handoff-{wanted}.{task.taskAttemptId()}"


def traces_path(path: Path) -> Path:
    """Return the file for trace contexts beside a hand-off; what removes one removes the other."""
    return path.with_name(f"{path.name}-traces")


def begin_handoff(task: ReadTaskName | None, declared_by: str = "", number: int = 0) -> None:
    """Write the name of what this task reads, None for nothing, if a hand-off is wanted; rows follow.

    ``number`` is that of the read task in its batch: what a declared plan has for the task's number.

    Raises:
        NotOneToOne: the plan was declared narrow, and is not.
    """
    if declared_by:
        _check_declared(number)
    if (path := handoff_path(declared_by)) is not None:
        _remove_earlier_batches(path)
        heading = f"{declared_by}{_GROUP_END}{task.line() if task else _NOTHING}"
        try:
            with path.open("xb") as file:
                file.write(heading.encode())
        except FileExistsError:
            raise NotOneToOne(
                "one task reads the records of several read tasks (is there a coalesce, or a union?): "
                + DECLARED_WRONGLY
            ) from None


def _check_declared(number: int) -> None:
    task = running_task()
    if task is None:
        return
    if task.getLocalProperty(_WANTED) is not None:
        raise NotOneToOne(
            "the source has option plan=narrow, but its query is written with foreachBatch: leave the option "
            "out, or write with writeStream.format('acktree')"
        )
    if task.partitionId() != number:
        raise NotOneToOne(
            f"task {task.partitionId()} reads the records of read task {number} (is there a coalesce, a "
            f"union or a join without a key?): {DECLARED_WRONGLY}"
        )


def _remove_earlier_batches(path: Path) -> None:
    query, _, _ = path.name.partition(".")
    for other in path.parent.glob(f"{query}.*.*"):
        if other.stem != path.stem:
            other.unlink(missing_ok=True)


def add_to_handoff(anchors: bytes, declared_by: str = "") -> None:
    """Add the anchors of rows that were read, 18 bytes each."""
    # Life of a record, step 3.
    if (path := handoff_path(declared_by)) is not None:
        with path.open("ab") as file:
            file.write(anchors)


def read_handoff(declared_by: str = "") -> ReadTaskName | None:
    """Return the name of what this task reads, None for nothing; call when a row, or the end, has arrived.

    Raises:
        NoHandoff: nothing was read in this task, or for another component.
    """
    path = handoff_path(declared_by)
    if path is None or not path.exists():
        raise NoHandoff("the rows of this task were read by another task" + _why(declared_by))
    with path.open("rb") as file:
        group, _, name = file.readline().decode().partition(_GROUP_END)
    if group != declared_by:
        raise NoHandoff(f"the rows of this task were read for {group or 'a stage'}{_why(declared_by)}")
    return None if name == _NOTHING else ReadTaskName.from_line(name)


def _why(declared_by: str) -> str:
    if not declared_by:
        return ""
    return f", not for {declared_by}: set plan=narrow on the source as well. If it is set: {DECLARED_WRONGLY}"


def end_handoff(declared_by: str = "") -> None:
    """Mark the hand-off complete."""
    add_to_handoff(_END, declared_by)


def handoff_anchors(declared_by: str = "") -> NDArray[np.void]:
    """Return the anchors, (n,) of ANCHOR, of all rows this task has read; call when the rows have ended.

    Raises:
        ReadingUnfinished: the reader has not reached its end, so anchors of some records are missing.
    """
    path = handoff_path(declared_by)
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


def clear_handoff(declared_by: str = "") -> None:
    """Remove the file, if there is one; call when the task ends, successful or not."""
    if (path := handoff_path(declared_by)) is not None:
        path.unlink(missing_ok=True)
        traces_path(path).unlink(missing_ok=True)
