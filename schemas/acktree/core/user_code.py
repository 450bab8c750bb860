"""Loads a user's class or function from MODULE:NAME, and describes exceptions of user code.

Invariant: an error names the line of user code that raised it; the whole traceback is logged at level DEBUG.
"""

import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from acktree.wire.errors import AcktreeError

log = logging.getLogger("acktree.user_code")

_OURS = tuple(f"{folder}{os.sep}" for folder in sys.modules["acktree"].__path__)  # a namespace has several
_NOT_THE_USERS = (
    *_OURS,
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
)


class UserCodeFailed(AcktreeError):
    """User code raised an error where nothing is retried; the log has the traceback at DEBUG."""


@contextmanager
def clear_user_errors(what: str) -> Iterator[None]:
    """Turn what code of a user raises into UserCodeFailed: "``what`` raised … (in FILE, line 7)".

    An error of ours stays as it is: a broken invariant, or one that has its sentence already.
    """
    try:
        yield
    except AcktreeError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if frames[-1].filename.startswith(_OURS) or not _of_user(frames):
            raise
        log.debug("%s raised", what, exc_info=error)
        raise UserCodeFailed(f"{what} raised {described(error)}") from error


def described(error: BaseException) -> str:
    """Return type and first line of an error, and the last line of the user's own code that it went through.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     described(error).partition(" (in ")[0]
    "ValueError: invalid literal for int() with base 10: 'x'"
    """
    text = f"{type(error).__name__}: {text_of(error).strip()}".partition("\n")[0].removesuffix(": ")
    if isinstance(error, SyntaxError) and error.filename:
        return text
    frames = _of_user(traceback.extract_tb(error.__traceback__))
    return f"{text} (in {frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def text_of(error: BaseException) -> str:
    """Return an exception's text; one of user code may have none."""
    try:
        return str(error)
    except Exception as no_text:
        return f"no message: its __str__ raised {type(no_text).__name__}"


def _of_user(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if is_of_user(frame.filename)]


def is_of_user(filename: str) -> bool:
    """Return whether a source file is neither ours, nor Python's, nor of an installed package."""
    return not filename.startswith(_NOT_THE_USERS)


def load_callable(place: str, form: str, example: str, error: type[AcktreeError]) -> Any:
    """Return the class or function at MODULE:NAME, which may also be in the working directory.

    ``form`` and ``example`` say in an error how it is written; NAME may have dots.

    Raises:
        error: there is no such module or name, a module that it imports is missing, or it cannot be called.
    """
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise error(f"{place!r} is not {form}, for example {example}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise error(f"module {module!r} needs {missing.name!r}, which is not installed") from missing
        raise error(
            f"no module {module!r} in the current folder or among the installed packages"
        ) from missing
    except AcktreeError:
        raise
    except Exception as failed:
        log.debug("import of %s", module, exc_info=failed)
        raise error(f"module {module!r} cannot be imported: {described(failed)}") from failed
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise error(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise error(f"{place} is {found!r}, neither a class nor a function")
    return found
