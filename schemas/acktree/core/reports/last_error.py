"""Records where a process runs, since when, and its last failure, for its reports.

Invariant: at most ERROR_CHARS characters of one failure, without control characters.
"""

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from acktree.core import world
from acktree.core.reports.stats import Value

ERROR_CHARS = 200
_REMOVED = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp"))
"""Categories of characters that show nothing, or change how the rest of a line is shown."""


class ProcessFacts(NamedTuple):
    """The part of a report about its process; None is "not reported"."""

    host: str | None
    pid: int | None
    started_ms: int | None
    last_error: str | None
    last_error_ms: int | None


class LastError:
    """The host and start of this process, and its last failure; calls may come from any thread."""

    def __init__(self) -> None:
        self._where: dict[str, Value] = {
            "host": world.current().host_name(),
            "pid": world.process_id(),
            "started_ms": world.wall_ms(),
        }
        self._last: tuple[int, str] | None = None

    def add(self, **facts: Value) -> None:
        """Add these facts about the process to every later report."""
        self._where = {**self._where, **facts}

    def failed(self, text: str) -> None:
        """Keep a failure as the last one; cheap, as each failed tuple is one."""
        self._last = world.wall_ms(), text

    def figures(self) -> dict[str, Value]:
        """Return what a report says of this process."""
        if (last := self._last) is None:
            return self._where
        return {**self._where, "last_error": one_line(last[1]), "last_error_ms": last[0]}


def one_line(text: object) -> str:
    r"""Return the beginning of a text as a line: runs of blanks and control characters become one blank.

    >>> one_line("ValueError:\n\tno such\x1b[31m word"), len(one_line("x" * 300))
    ('ValueError: no such [31m word', 200)
    """
    shown = str(text)[: 4 * ERROR_CHARS]
    line = "".join(" " if unicodedata.category(each) in _REMOVED else each for each in shown)
    line = " ".join(line.split())
    return line if len(line) <= ERROR_CHARS else f"{line[: ERROR_CHARS - 1]}…"


def facts_of(values: Mapping[str, object]) -> ProcessFacts:
    """Return what a report's figures say of its process; what is missing or of another type is None.

    >>> facts_of({"pid": 7, "last_error": "no such word", "last_error_ms": "yesterday"})
    ProcessFacts(host=None, pid=7, started_ms=None, last_error='no such word', last_error_ms=None)
    """
    host, error = values.get("host"), values.get("last_error")
    return ProcessFacts(
        one_line(host) if isinstance(host, str) and host else None,
        _whole(values.get("pid")),
        _whole(values.get("started_ms")),
        one_line(error) if isinstance(error, str) and error else None,
        _whole(values.get("last_error_ms")),
    )


def _whole(value: object) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return int(value) if is_whole and isinstance(value, int) else None
