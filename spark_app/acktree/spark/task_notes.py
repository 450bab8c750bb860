"""What a reading task tells the stage further down in the same Spark task: its share, its rows' anchors.

Both run in one task attempt, in two Python processes of one executor, so the note is a file named by the
attempt in the executor's folder.
Invariant: a note is written only in a job whose tasks take it, so none stays behind. What a killed task could
not take goes with the first task of the query's next batch on that executor: a query has one batch in hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark import SparkContext, SparkFiles, TaskContext

from acktree.schemas.errors import AcktreeError
from acktree.schemas.header import ANCHOR
from acktree.spark.marks import BatchName, ShareName

_WANTED = "acktree.notes"
"""The local property that a job's tasks see: which batch of which query wants notes."""


class NoNote(AcktreeError):
    """This task has read nothing itself: the plan is not narrow."""


@contextmanager
def notes_wanted(context: SparkContext, batch: BatchName) -> Iterator[None]:
    """On the driver, around a job whose tasks write what they have read: let them leave notes."""
    context.setLocalProperty(_WANTED, f"{batch.query}.{batch.number}")
    try:
        yield
    finally:
        context.setLocalProperty(_WANTED, None)  # type: ignore[arg-type]


def _path() -> Path | None:
    """Return where this attempt's note stands, None where the job does not want one."""
    context = TaskContext.get()
    assert context is not None, "only inside of a Spark task"
    batch = context.getLocalProperty(_WANTED)
    if batch is None:
        return None
    return Path(SparkFiles.getRootDirectory()) / f"acktree-note-{batch}.{context.taskAttemptId()}"


def begin_note(share: ShareName) -> None:
    """Say which share this task reads, if the stage wants to know; rows follow."""
    if (path := _path()) is not None:
        _forget_earlier_batches(path)
        path.write_bytes(share.line().encode())


def _forget_earlier_batches(path: Path) -> None:
    query, _, _ = path.name.partition(".")
    for other in path.parent.glob(f"{query}.*.*"):
        if other.stem != path.stem:
            other.unlink(missing_ok=True)


def add_to_note(anchors: bytes) -> None:
    """Add the anchors of rows that were read, 18 bytes each."""
    if (path := _path()) is not None:
        with path.open("ab") as note:
            note.write(anchors)


def read_note() -> ShareName:
    """Return which share this task reads; call when its first row, or the end, has come.

    Raises:
        NoNote: nothing was read in this task.
    """
    path = _path()
    if path is None or not path.exists():
        raise NoNote("the rows of this task were read by another one")
    with path.open("rb") as note:
        return ShareName.from_line(note.readline().decode())


def noted_anchors() -> NDArray[np.void]:
    """Return the anchors, (n,) of ANCHOR, of all rows this task has read; call when the rows have ended."""
    path = _path()
    assert path is not None, "read_note comes first"
    with path.open("rb") as note:
        note.readline()
        return np.fromfile(note, ANCHOR)


def forget_note() -> None:
    """Remove the note, if there is one; call when the task ends, well or not."""
    if (path := _path()) is not None:
        path.unlink(missing_ok=True)
