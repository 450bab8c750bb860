"""Compiles inner loops with numba; the machine code cached on disk always matches its sources.

numba reuses cached machine code as long as the file of a function is unchanged, but that code includes
functions and constants of other files. So every name has a digest of all the files: a change in one of them
recompiles all of them. Needs numba.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def digest_of(paths: Iterable[Path]) -> str:
    """Return eight hexadecimal digits that change with any of the files."""
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:8]


class Compiler:
    """Compiles the functions of one file, keeping their types."""

    def __init__(self, *sources: str | Path | None) -> None:
        """``sources`` are the file itself and all whose compiled functions or constants it uses."""
        assert None not in sources, "a module without a file cannot be compiled"
        self._digest = digest_of([Path(source) for source in sources if source is not None])

    def __call__(self, function: Function) -> Function:
        """Compile a function; its arguments' types decide how often."""
        jit = numba.njit(cache=True, nogil=True, error_model="numpy")
        function.__qualname__ += f"_{self._digest}"
        return cast(Function, jit(function))
