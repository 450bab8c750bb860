"""Proves that this task was given all of its rows, which neither pyarrow nor PySpark shows to a function.

If something above a Python worker fails, or its task is killed, Spark closes the worker's socket. Between
two messages that looks to pyarrow like the normal end of a stream, so a function sees its rows end and cannot
tell half an input from all of it. A whole input is followed by a word of Spark's protocol, END_OF_STREAM,
which Spark writes only after everything above has ended well; PySpark reads it after the function has
returned, too late for a function that commits.

Invariant: code that concludes anything from the end of its rows checks here first. A missing proof is an
error, never a yes. Private part of Spark used: the stream that ``pyspark.worker.main`` reads, its local
variable ``infile``.
"""

import io
import sys
from types import FrameType

from pyspark.serializers import SpecialLengths

from acktree.wire.errors import AcktreeError

_END = SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)


class InputEndedEarly(AcktreeError):
    """The input rows of a task ended early: the step that produces them failed, or the task was killed."""


class NoProofOfEnd(AcktreeError):
    """This version of Spark is not supported: its worker does not show whether its input was complete."""


def check_input_is_whole() -> None:
    """Return once Spark has said that the rows of this task ended because there are no more.

    Raises:
        InputEndedEarly: Spark has closed the stream without saying so.
        NoProofOfEnd: the stream that Spark says it on was not found.
    """
    # Life of a record, step 7.
    if not has_end_marker(_worker_stream()):
        raise InputEndedEarly(
            "the input rows of this task ended early: the step that produces them failed, or the task was "
            "killed; nothing is committed and Spark runs the task again"
        )


def has_end_marker(stream: io.BufferedReader | io.BufferedRWPair) -> bool:
    """Wait for what follows the rows and return whether it is Spark's end marker; consume nothing.

    One byte of it is enough: after the rows Spark writes the marker or nothing.

    >>> whole, cut_off = io.BytesIO(b"\\xff\\xff\\xff\\xfc"), io.BytesIO()
    >>> has_end_marker(io.BufferedReader(whole)), has_end_marker(io.BufferedReader(cut_off))
    (True, False)
    """
    following = stream.peek(len(_END))[: len(_END)]
    return bool(following) and _END.startswith(following)


def _worker_stream() -> io.BufferedReader | io.BufferedRWPair:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
            stream = frame.f_locals["infile"]
            if isinstance(stream, io.BufferedReader | io.BufferedRWPair):
                return stream
        frame = frame.f_back
    raise NoProofOfEnd(
        "the stream of Spark's Python worker was not found, so a whole input cannot be told from one that "
        "was cut off: use a version of Spark that acktree is tested with (see docs/spark.md)"
    )
