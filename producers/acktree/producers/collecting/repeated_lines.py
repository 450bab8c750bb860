"""Log lines that each tuple may cause: the first of a kind is written, then how many more there were.

Invariant: what a worker logs is bounded, however many tuples fail: some lines and a count of up to MAX_KINDS
kinds in INTERVAL_S.
"""

import logging
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from acktree.core import world

INTERVAL_S = 10.0
MAX_KINDS = 100
"""So many kinds are told apart in an interval; the others count as one."""
MAX_CALLERS = 20

log = logging.getLogger("acktree.bolt")


@dataclass(slots=True)
class _Kind:
    until_s: float
    lines: int = 0
    first: str = ""
    level: int = logging.WARNING
    action: str = ""
    more: int = 0


class RepeatedLines:
    """The lines of one collector."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._next_s = 0.0

    def write_first(self, kind: Hashable, level: int, text: str, extra: dict[str, Any], **more: Any) -> None:
        """Log a line that ``counts`` has let through."""
        found = self._kinds[self._known(kind)]
        found.first, found.level, found.action = found.first or text, level, extra["action"]
        log.log(level, "%s", text, extra=extra, stacklevel=2, **more)

    def counts(self, kind: Hashable, lines: int = 1) -> bool:
        """Return whether a line is not among the first of its kind, and count it if so."""
        now_s, kind = world.monotonic_s(), self._known(kind)
        found = self._kinds.get(kind)
        if found is not None and now_s >= found.until_s:
            self._end(found)
            found = None
        if found is None:
            found = self._kinds[kind] = _Kind(now_s + INTERVAL_S)
        is_more = found.lines == lines
        found.lines += not is_more
        found.more += is_more
        return is_more

    def _known(self, kind: Hashable) -> Hashable:
        return kind if kind in self._kinds or len(self._kinds) < MAX_KINDS else None

    def flush(self, *, is_last: bool = False) -> None:
        """Log how many lines were left out, of the kinds whose interval is over, or of all."""
        now_s = world.monotonic_s()
        if now_s < self._next_s and not is_last:
            return
        self._next_s = now_s + 1.0
        for kind, found in list(self._kinds.items()):
            if now_s >= found.until_s or is_last:
                del self._kinds[kind]
                self._end(found)

    def _end(self, found: _Kind) -> None:
        if found.more:
            text = "%s more in %g s like: %s"
            extra = {"action": found.action}
            log.log(found.level, text, f"{found.more:,}", INTERVAL_S, found.first, extra=extra)


def caller() -> Hashable:
    """Return what is equal for two calls from one place."""
    frame, found = sys._getframe(1), list[Hashable]()
    while frame is not None and len(found) < MAX_CALLERS:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
