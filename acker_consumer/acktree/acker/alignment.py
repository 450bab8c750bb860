"""Which of a partition's two topics must wait for the other while much is behind.

Both topics of one log span are to be in the table at about the same time: an acker far behind that read all
inits first, or all acks, would hold every root of the backlog at once.
Invariant: a topic waits only while the other one has records to read, so waiting cannot become a stall. Pure.
"""

from acktree.acker.clock import UNKNOWN_MS, LogClock

AHEAD_MS, NEAR_MS = 60_000, 30_000


class Pace:
    """Tells, for the topics of one partition (0 = inits, 1 = acks), which one is to wait."""

    def __init__(self) -> None:
        self._is_at_end = [False, False]
        self._began_ms = UNKNOWN_MS
        self.waiting: int | None = None

    def note_records(self, topic: int) -> None:
        """Note that a topic had more to read."""
        self._is_at_end[topic] = False

    def note_end(self, topic: int) -> None:
        """Note that a topic has no more to read: its end, or a transaction that is open."""
        self._is_at_end[topic] = True

    def choose(self, clock: LogClock) -> int | None:
        """Return the topic that must wait: once AHEAD_MS of log time ahead, until NEAR_MS are left."""
        times = (clock.inits.time_ms, clock.acks.time_ms)
        ahead = int(times[1] > times[0])
        behind = 1 - ahead
        if self._began_ms == UNKNOWN_MS:
            self._began_ms = times[ahead]
        limit_ms = NEAR_MS if self.waiting == ahead else AHEAD_MS
        behind_ms = self._began_ms if times[behind] == UNKNOWN_MS else times[behind]
        is_far = times[ahead] - behind_ms > limit_ms
        self.waiting = ahead if is_far and not self._is_at_end[behind] else None
        return self.waiting
