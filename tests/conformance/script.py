"""A script: operations of several clients, one after the other.

Invariant: any part of a script is a script. An operation that names a client or topic which is not there
results in SKIPPED, so a failing script can be cut down operation by operation.
"""

from collections.abc import Callable
from typing import Any

Operation = tuple[Any, ...]
"""A verb and its arguments, all of them literals: strings, numbers, lists, dictionaries, None."""
Script = list[Operation]
Place = tuple[str, int]
"""A partition, by the script's name of its topic."""

SKIPPED = "skipped"
"""The result of an operation that has nothing to work on."""
MAX_OPERATIONS = 200


def show(script: Script) -> str:
    """Return a script as a list that Python reads."""
    return "[\n" + "".join(f"    {operation!r},\n" for operation in script) + "]"


def shrink(script: Script, fails: Callable[[Script], bool], limit: int = 200) -> Script:
    """Return a part of a failing script that still fails: none of its operations can be left out.

    ``limit``: how many parts are tried at most.
    """
    size, tried = len(script) // 2, 0
    while size:
        start = 0
        while start < len(script) and tried < limit:
            shorter = script[:start] + script[start + size :]
            tried += 1
            if fails(shorter):
                script = shorter
            else:
                start += size
        size //= 2
    return script
