"""When to look for entries whose time is up, and how old is too old.

Invariant: while the log is followed, a pending root is timed out when its age is between the message timeout
T and 1.1 T plus a second; after an outage or a stall nobody is, before the workers had that long, at most T,
to come back. Pure: it reads no clock, it is told log time.
"""

from dataclasses import dataclass
from math import inf

from acktree.acker.clock import UNKNOWN_MS
from acktree.acker.cut import BUCKET_MS
from acktree.acker.kernels.slots import NO_LIMIT
from acktree.acker.table import TICK_MS

LOOKS_PER_TIMEOUT = 30
SHORTEST_PAUSE_MS, LONGEST_PAUSE_MS = 100, 1000
LEAPS_PER_TIMEOUT = 10
SHORTEST_LEAP_MS = 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Greatest ages: of a pending root or orphan since its init or last reset, of any entry since its birth.

    ``inf`` turns one off; with the life limit on, timeouts turned off cannot hold the cut for ever.
    """

    message_ms: float
    orphan_ms: float
    life_ms: float

    @classmethod
    def of_seconds(cls, message_s: float, orphan_s: float, retention_s: float) -> "Limits":
        """Return the limits of a topology; a message timeout of 0 is none.

        Whatever resets or the lack of a timeout keep alive ends at half the retention: no cut stands still.
        """
        return cls(1000 * message_s or inf, 1000 * orphan_s, 500 * retention_s)

    @property
    def pause_ms(self) -> float:
        """How long to wait between two looks."""
        shortest = min(self.message_ms, self.orphan_ms)
        return min(max(shortest / LOOKS_PER_TIMEOUT, SHORTEST_PAUSE_MS), LONGEST_PAUSE_MS)

    @property
    def leap_ms(self) -> float:
        """The step of log time that is a leap: at least three pauses, or every step would be one."""
        return max(SHORTEST_LEAP_MS, min(self.message_ms, self.orphan_ms) / LEAPS_PER_TIMEOUT)

    @property
    def hold_ms(self) -> float:
        """How long an orphan may hold the cut: with a bucket and a pause, less than a message timeout."""
        return self.message_ms - min(self.pause_ms + BUCKET_MS, self.message_ms / 2)

    @property
    def message_ticks(self) -> int:
        return ticks(self.message_ms)

    @property
    def orphan_ticks(self) -> int:
        return ticks(self.orphan_ms)

    @property
    def hold_ticks(self) -> int:
        return ticks(self.hold_ms)


def ticks(age_ms: float) -> int:
    """Return the ticks that an entry must be older than to be at least ``age_ms`` old."""
    return NO_LIMIT if age_ms == inf else -int(-age_ms // TICK_MS)


class Expiry:
    """Tells when a look through the table is due; between looks it knows the earliest time one could be."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._time_ms = UNKNOWN_MS
        self._held_until_ms = UNKNOWN_MS
        self._looked_ms = UNKNOWN_MS
        self._due_ms: float = inf

    @property
    def limits(self) -> Limits:
        return self._limits

    def change(self, limits: Limits) -> None:
        """Take over the limits of a newer topology version; every entry is looked at again."""
        if limits != self._limits:
            self._limits, self._due_ms = limits, UNKNOWN_MS

    def note_records(self, oldest_ms: int) -> None:
        """Note that entries of this log time or younger were folded."""
        self._due_ms = min(self._due_ms, oldest_ms + min(self._limits.message_ms, self._limits.orphan_ms))

    def advance(self, time_ms: int) -> None:
        """Note log time. A leap holds verdicts back as long as the leap was, at most a message timeout.

        Log time leaps when nobody could append (an outage), when this process stalled, or when the wall
        clock was set: the acks that were under way come first.
        """
        leap = time_ms - self._time_ms
        if self._time_ms != UNKNOWN_MS and leap > self._limits.leap_ms:
            held = min(leap, self._limits.message_ms, self._limits.life_ms)
            self._held_until_ms = max(self._held_until_ms, int(time_ms + held))
        self._time_ms = max(self._time_ms, time_ms)

    def is_due(self, has_outlived: bool = False) -> bool:
        """Tell whether to look now; ``has_outlived``: an entry may be past what follows from its birth."""
        now = self._time_ms
        if now < self._held_until_ms:
            return False
        if self._looked_ms != UNKNOWN_MS and now - self._looked_ms < self._limits.pause_ms / 2:
            return False
        return has_outlived or now > self._due_ms

    def looked(self, oldest_pending_ms: float, oldest_orphan_ms: float) -> None:
        """Note the result of a look: the log times of the oldest entries left, ``inf`` if there are none."""
        self._looked_ms = self._time_ms
        self._due_ms = min(
            oldest_pending_ms + self._limits.message_ms, oldest_orphan_ms + self._limits.orphan_ms
        )
