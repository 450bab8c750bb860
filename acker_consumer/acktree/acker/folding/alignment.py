"""Keeps the two topics of a partition aligned in log time while the acker catches up.

An acker far behind that read all inits first, or all acks, would hold every root of the backlog in its
table. So both topics are read at about the same log time.
Invariant: a topic waits only while the other one has records to read, so waiting cannot become a stall. Pure.
"""

from collections.abc import Sequence

from acktree.acker.folding.clock import UNKNOWN_MS, LogClock

AHEAD_MS, NEAR_MS = 60_000, 30_000


class TopicAlignment:
    """Decides which topic of one partition (0 = inits, 1 = acks) must wait for the other."""

    def __init__(self) -> None:
        self._start_ms = UNKNOWN_MS
        self.waiting: int | None = None

    def choose(self, clock: LogClock, is_at_end: Sequence[bool]) -> int | None:
        """Return the topic that must wait: once AHEAD_MS of log time ahead, until NEAR_MS are left.

        ``is_at_end``: of each topic whether it has no more to read, up to its end or to an open transaction.
        """
        times = (clock.inits.time_ms, clock.acks.time_ms)
        ahead = int(times[1] > times[0])
        behind = 1 - ahead
        if self._start_ms == UNKNOWN_MS:
            self._start_ms = times[ahead]
        limit_ms = NEAR_MS if self.waiting == ahead else AHEAD_MS
        behind_ms = self._start_ms if times[behind] == UNKNOWN_MS else times[behind]
        is_far = times[ahead] - behind_ms > limit_ms
        self.waiting = ahead if is_far and not is_at_end[behind] else None
        return self.waiting
