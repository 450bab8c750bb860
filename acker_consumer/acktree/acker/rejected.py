"""Records that were not folded: where they lie and why, the latest of them, all of them counted.

Invariant: bounded in memory and in log lines, whatever arrives; a record is here or folded, never both.
"""

import logging
from collections import deque
from typing import NamedTuple

KEPT = 1000
LINES_PER_SECOND = 10

log = logging.getLogger("acktree.acker")


class Aside(NamedTuple):
    """The coordinates of one record and why it was not folded."""

    topic: str
    partition: int
    offset: int
    reason: str


class Rejected:
    """The latest KEPT records set aside; a log line for at most LINES_PER_SECOND of them."""

    def __init__(self) -> None:
        self.latest: deque[Aside] = deque(maxlen=KEPT)
        self.total = 0
        self._second = 0
        self._lines = 0

    def add(self, aside: Aside, wall_ms: int) -> None:
        """Keep a record that was not folded."""
        self.total += 1
        self.latest.append(aside)
        if wall_ms // 1000 != self._second:
            self._second, self._lines = wall_ms // 1000, 0
        self._lines += 1
        if self._lines <= LINES_PER_SECOND:
            log.warning("action=set_aside record=%s/%d@%d reason=%r", *aside)
        elif self._lines == LINES_PER_SECOND + 1:
            log.warning("action=set_aside more in this second, total=%d", self.total)
