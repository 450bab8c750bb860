"""Decides when to scan the table for expired entries, and at which age an entry expires.

Invariant: while the acker keeps up with the log, a pending root is timed out at an age between the message
timeout T and 1.1 T plus a second. After an outage or a stall no root is timed out until the workers have had
as long as it lasted, at most T, to catch up. Pure: it reads no clock; log time is passed in.
"""

from dataclasses import dataclass
from math import inf

from acktree.acker.folding.clock import UNKNOWN_MS
from acktree.acker.folding.cut import BUCKET_MS
from acktree.acker.folding.table import TICK_MS
from acktree.acker.kernels.slots import NO_LIMIT

SCANS_PER_TIMEOUT = 30
MIN_SCAN_INTERVAL_MS, MAX_SCAN_INTERVAL_MS = 100, 1000
LEAPS_PER_TIMEOUT = 10
SHORTEST_LEAP_MS = 1000


@dataclass(frozen=True, slots=True)
class AgeLimits:
    """Maximum ages: of a pending root since its last message, of an orphan since its first or last reset.

    The life limit is that of any entry since its creation.

    ``inf`` turns a limit off; the life limit keeps the cut moving even without timeouts.
    """

    message_ms: float
    orphan_ms: float
    life_ms: float

    @classmethod
    def of_seconds(cls, message_s: float, orphan_s: float, retention_s: float) -> "AgeLimits":
        """Return the limits of a topology; a message timeout of 0 means none.

        An entry kept alive by resets, or by the lack of a timeout, ends at half the retention, so no cut
        stops moving.
        """
        return cls(1000 * message_s or inf, 1000 * orphan_s, 500 * retention_s)

    @property
    def scan_interval_ms(self) -> float:
        """Interval between two scans of the table."""
        shortest = min(self.message_ms, self.orphan_ms)
        return min(max(shortest / SCANS_PER_TIMEOUT, MIN_SCAN_INTERVAL_MS), MAX_SCAN_INTERVAL_MS)

    @property
    def leap_ms(self) -> float:
        """The step of log time that counts as a leap: at least three scan intervals, or every step would."""
        return max(SHORTEST_LEAP_MS, min(self.message_ms, self.orphan_ms) / LEAPS_PER_TIMEOUT)

    @property
    def hold_ms(self) -> float:
        """How long an orphan may hold the cut; with a bucket and a scan less than a message timeout."""
        return self.message_ms - min(self.scan_interval_ms + BUCKET_MS, self.message_ms / 2)

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
    """Return the age in ticks that an entry must exceed to be at least ``age_ms`` old."""
    return NO_LIMIT if age_ms == inf else -int(-age_ms // TICK_MS)


class Expiry:
    """Decides when a scan of the table is due, from the earliest time at which an entry can expire."""

    def __init__(self, limits: AgeLimits) -> None:
        self._limits = limits
        self._time_ms = UNKNOWN_MS
        self._held_until_ms = UNKNOWN_MS
        self._scanned_ms = UNKNOWN_MS
        self._pending_due_ms: float = inf
        self._orphans_due_ms: float = inf

    @property
    def limits(self) -> AgeLimits:
        return self._limits

    def change(self, limits: AgeLimits) -> None:
        """Apply the limits of a newer topology version; the next scan checks every entry again."""
        if limits != self._limits:
            self._limits = limits
            self._pending_due_ms = self._orphans_due_ms = UNKNOWN_MS

    def records_folded(self, oldest_ms: int) -> None:
        """Record that entries of this log time or later were folded."""
        self._pending_due_ms = min(self._pending_due_ms, oldest_ms + self._limits.message_ms)
        self._orphans_due_ms = min(self._orphans_due_ms, oldest_ms + self._limits.orphan_ms)

    def advance(self, time_ms: int) -> None:
        """Advance log time. A leap delays timeouts by its own length, at most a message timeout.

        Log time leaps when nobody could append (an outage), when this process stalled, or when the wall
        clock was set. The delay lets acks in flight arrive first.
        """
        leap = time_ms - self._time_ms
        if self._time_ms != UNKNOWN_MS and leap > self._limits.leap_ms:
            held = min(leap, self._limits.message_ms, self._limits.life_ms)
            self._held_until_ms = max(self._held_until_ms, int(time_ms + held))
        self._time_ms = max(self._time_ms, time_ms)

    @property
    def may_time_out(self) -> bool:
        """Whether a pending root may be older than the message timeout by log time."""
        return self._time_ms > self._pending_due_ms

    def is_due(self, newest_ms: int, has_expired_bucket: bool = False) -> bool:
        """Return whether to scan now; ``has_expired_bucket``: entries may be past a limit since creation.

        ``newest_ms`` is the newest time by which pending roots age.
        """
        now = self._time_ms
        if now < self._held_until_ms:
            return False
        if self._scanned_ms != UNKNOWN_MS and now - self._scanned_ms < self._limits.scan_interval_ms / 2:
            return False
        return has_expired_bucket or newest_ms > self._pending_due_ms or now > self._orphans_due_ms

    def scanned(self, oldest_pending_ms: float, oldest_orphan_ms: float) -> None:
        """Record a scan by the log times of the oldest entries left, ``inf`` if there are none."""
        self._scanned_ms = self._time_ms
        self._pending_due_ms = oldest_pending_ms + self._limits.message_ms
        self._orphans_due_ms = oldest_orphan_ms + self._limits.orphan_ms
