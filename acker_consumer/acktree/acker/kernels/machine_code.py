"""Compiles the inner loops of the table; machine code kept on the disk is always that of these sources.

numba keeps machine code as long as a function's own file is the same, but functions of other files are part
of it. So every name carries a digest of all the files: after a change in one of them all are compiled.
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
