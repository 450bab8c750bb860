"""What a reading task tells the stage further down in the same Spark task: the anchors of every row it read.

Both run in one task attempt, in two Python processes, so the note is a file named by the attempt.
Invariant: a stage that finds the note knows that all rows of these inputs pass through it and no other
task, as long as the plan between is narrow; where there was an exchange, there is no note.
"""

from pathlib import Path

from pyspark import SparkFiles, TaskContext

from acktree.schemas.errors import AcktreeError


class NoNote(AcktreeError):
    """This task has read nothing itself: the plan is not narrow."""


def _path() -> Path:
    context = TaskContext.get()
    assert context is not None, "only inside of a Spark task"
    return Path(SparkFiles.getRootDirectory()) / f"acktree-note-{context.taskAttemptId()}"


def begin_note() -> None:
    """Say that this task reads; rows follow."""
    _path().touch()


def add_to_note(anchors: bytes) -> None:
    """Add the anchors of rows that were read, 18 bytes each."""
    with _path().open("ab") as note:
        note.write(anchors)


def check_note() -> None:
    """Raise NoNote if nothing has been read in this task; call when its first row, or the end, has come."""
    if not _path().exists():
        raise NoNote("the rows of this task were read by another one")


def take_note() -> bytes:
    """Return the anchors of all rows that this task has read and forget them; call when the rows have ended.

    Raises:
        NoNote: nothing was read in this task.
    """
    check_note()
    path = _path()
    anchors = path.read_bytes()
    path.unlink()
    return anchors
