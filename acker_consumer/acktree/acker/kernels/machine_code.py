"""Compiles the inner loops of the table; the machine code cached on disk always matches these sources.

numba reuses cached machine code as long as a function's own file is unchanged, but that code includes
functions of other files. So every name has a digest of all the files: a change in one of them recompiles all.
"""

from hashlib import sha256
from pathlib import Path

from acktree.schemas import batch_codec
from acktree.schemas.batch_codec import Function


def digest_of(paths: list[Path]) -> str:
    """Return eight hexadecimal digits that change with any of the files."""
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:8]


_DIGEST = digest_of([Path(batch_codec.__file__), *sorted(Path(__file__).parent.glob("*.py"))])


def compiled(function: Function) -> Function:
    """Compile a function that calls, or is called by, functions of the other files here."""
    function.__qualname__ += f"_{_DIGEST}"
    return batch_codec.compiled(function)
