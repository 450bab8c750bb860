"""Records rejected control records: the coordinates and reasons of the latest, and a count of all.

Invariant: bounded in memory and in log lines, whatever arrives; a record is invalid or folded, never both.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

KEPT = 1000
LINES_PER_SECOND = 10

log = logging.getLogger("acktree.acker")


class InvalidRecord(NamedTuple):
    """The coordinates of one record and why it was not folded."""

    topic: str
    partition: int
    offset: int
    reason: str


class InvalidRecords:
    """The latest KEPT invalid records; logs at most LINES_PER_SECOND of them a second."""

    def __init__(self, on_rejected: Callable[[str], object] = lambda _text: None) -> None:
        """``on_rejected`` is called with the coordinates and reason of each."""
        self._on_rejected = on_rejected
        self.latest: deque[InvalidRecord] = deque(maxlen=KEPT)
        self.total = 0
        self._second = 0
        self._lines = 0

    def add(self, invalid: InvalidRecord, wall_ms: int) -> None:
        """Count, keep and log an invalid record."""
        self.total += 1
        self.latest.append(invalid)
        self._on_rejected("invalid {}/{}/{}: {}".format(*invalid))
        if wall_ms // 1000 != self._second:
            self._second, self._lines = wall_ms // 1000, 0
        self._lines += 1
        if self._lines <= LINES_PER_SECOND:
            log.warning("action=invalid_record record=%s/%d@%d reason=%r", *invalid)
        elif self._lines == LINES_PER_SECOND + 1:
            log.warning("action=invalid_record more in this second, total=%d", self.total)
