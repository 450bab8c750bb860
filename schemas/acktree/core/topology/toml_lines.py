"""Finds the line of a key in the text of a TOML file, for errors that name it. Pure.

Invariant: it always finds a line: that of the key, else of the nearest table around it.
"""

import re

_HEADER = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)


def find_line(text: str, place: tuple[str, ...]) -> int:
    """Return the 1-based line of ``place``, else of the first table in it, else of the nearest around it."""
    best_depth, best_line = 0, 1
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = here = _parts(header[1])
        elif key := _KEY.match(line):
            here = table + _parts(key[1])
        else:
            continue
        depth = min(len(here), len(place))
        if here[:depth] == place[:depth] and depth > best_depth:
            best_depth, best_line = depth, number
    return best_line


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
