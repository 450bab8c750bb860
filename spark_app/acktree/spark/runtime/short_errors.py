"""Cuts the errors of a batch short for the JVM.

Invariant: no text of more than MAX_CHARS goes from a batch's function to the JVM. Spark searches it for an
interrupted call with a pattern that uses Java stack for each character: a long text ends in a
StackOverflowError.
"""

import logging
import re
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from acktree.core.user_code import is_of_user
from acktree.spark.runtime.jvm_output import is_stopping
from acktree.wire.errors import AcktreeError

MAX_CHARS = 2_000
TRACEBACK = "Traceback (most recent call last):"
_CALL = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTED = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""By these, behind ``_CALL``, Spark knows a query that is stopped from one that fails."""

log = logging.getLogger("acktree.spark")
P = ParamSpec("P")
R = TypeVar("R")


class BatchFailed(AcktreeError):
    """A batch's function raised an error whose text is too long for the JVM; the log has the full text."""


def with_short_errors(write: Callable[P, R]) -> Callable[P, R]:
    """Return the function of a batch with long errors cut short; the whole text of one is logged."""

    @wraps(write)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return write(*args, **kwargs)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if len(text) <= MAX_CHARS:
                raise
            failed = BatchFailed(shortened(text))
            log.log(
                logging.DEBUG if is_interruption(text) or is_stopping() else logging.ERROR,
                "%s",
                text,
                extra={"action": "batch_failed"},
            )
        raise failed

    return call


def is_interruption(text: str) -> bool:
    """Return whether Spark takes the text of an error for that of a query which is stopped."""
    behind = text.partition(_CALL)[2]
    return any(name in behind for name in _INTERRUPTED)


def last_error(text: str) -> str:
    """Return the last error of a text with tracebacks, and the line of a user's own code that raised it.

    >>> last_error(f'{TRACEBACK}\n  File "jobs.py", line 7, in f\nValueError: 7\n\tat java')
    'ValueError: 7 (in jobs.py, line 7)'
    """
    frames = re.findall(r'^\s*File "([^"]+)", line (\d+)', text.rpartition(TRACEBACK)[2], re.MULTILINE)
    users = [frame for frame in frames if is_of_user(frame[0])]
    place = f" (in {users[-1][0]}, line {users[-1][1]})" if users else ""
    return shortened(text).partition("\n")[0] + place


def shortened(text: str, max_chars: int = MAX_CHARS // 2) -> str:
    """Return the last error of a traceback, or that a call was interrupted.

    >>> shortened("Traceback (most recent call last):\\n  File ...\\nValueError: 7\\n" + "at line" * 9, 20)
    'ValueError: 7\\nat lin'
    """
    if is_interruption(text):
        return f"{_CALL} a job: {_INTERRUPTED[0]}"
    last = text.rpartition(f"{TRACEBACK}\n")[2].splitlines()
    unindented = [at for at, line in enumerate(last) if line[:1].strip()]
    return "\n".join(last[unindented[0] :] if unindented else last).replace(
        _CALL, "Py4JJavaError while calling"
    )[:max_chars]
