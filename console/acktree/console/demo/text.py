"""Provides real text for the demo: the Python standard library's sources, line by line."""

import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

EXCLUDED_FOLDERS = frozenset({"site-packages", "test", "tests", "idle_test"})


def library_lines(count: int | None) -> Iterator[str]:
    """Yield ``count`` lines of the library's sources in path order, blank ones too; None is each line once.

    After the last line the first one follows again. The library's own tests and installed packages are no
    part of it.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = (
        path
        for path in sorted(root.rglob("*.py"))
        if EXCLUDED_FOLDERS.isdisjoint(path.relative_to(root).parts)
    )
    lines = (line for path in files for line in path.read_text("utf-8", "replace").split("\n"))
    return lines if count is None else islice(cycle(lines), count)


_SPACES = re.compile("[ \t\n\x0b\x0c\r]+")


def split(line: str) -> list[str]:
    """Return the words of a line, parted as Java's regular expressions part them: by ASCII white space.

    >>> split("  a  b\\tc "), split("   ")
    (['a', 'b', 'c'], [])
    """
    return [word for word in _SPACES.split(line) if word]


def count_words(lines: list[str]) -> Counter[str]:
    """Return the direct count that the account is checked against."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(split(line))
    return counts
