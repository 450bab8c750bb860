"""Limits how much a spout may have pending to a few seconds of its bolts' work, found by completion times.

A queue in front of a bolt gains nothing once the bolt is never idle. As in LEDBAT (RFC 6817), the time from
emission to completion says how long the queue is: the base is the time it takes with little pending, and the
limit follows the bolts so that a record takes ``TARGET_S`` longer. Three differences: the typical (median)
record counts, so that a few that a bolt holds for an hour do not matter; only records that were emitted under
a limit show whether it is right; and where lowering it does not help, the apparent queue is the new base, as
with a bolt that works once a minute.

Invariant: the limit lets at least one record pass. Pure: times are arguments.
"""

from dataclasses import dataclass, field
from math import inf

TARGET_S = 5.0
"""How long a typical record waits in queues."""
FIRST_SHARE, FIRST_LIMIT = 25, 4_000
"""A spout task begins with max pending divided by FIRST_SHARE, and with at least FIRST_LIMIT records."""
TOLERANCE = 0.2
"""By which part of the time in queues a typical record may miss its goal, either way, without a change."""
MAX_GROWTH = 15.0
"""By how many times its value the limit may grow in one change."""
LITTLE_HELP = 0.75
"""Where a halved limit leaves more than this part of the time, the time is not spent in a queue."""


@dataclass(slots=True)
class PendingLimit:
    """The limit of one source of records. It changes only while it holds records back."""

    allowed: int = 0
    """How many records may be pending, apart from those that were overtaken; 0 for no limit."""
    most: int = 0
    least: int = 1
    busy_s: float = 0.0
    """See ``bound``."""
    base_s: float = inf
    """How long a typical record takes if none waits for another one."""
    overtaken_s: float = -inf
    """What was emitted before was overtaken by what was completed since: it waits in no queue."""
    _since_s: float = -inf
    """When the limit changed last."""
    _is_binding: bool = False
    _first_s: float = inf
    """When the first record was completed since the limit began to bind."""
    _completed: int = 0
    _times: list[tuple[float, int]] = field(default_factory=list)
    """What is typical of each call, of records that were emitted under this limit, and how many."""
    _slowest_s: float = 0.0
    """What typical records took at most since the limit was halved, 0 if it was not."""

    def bound(self, most: int, sharers: int = 1, least: int = 1, busy_s: float = 0.0) -> None:
        """Keep the limit between ``least`` and ``most``, 0 for no limit; it begins as one of ``sharers``.

        ``busy_s`` is the time from one batch of the spout to the next: what bolts do in it may also wait.
        """
        self.most, self.least, self.busy_s = most, least, busy_s
        first = self.allowed or max(FIRST_LIMIT, most // FIRST_SHARE) // sharers
        self.allowed = max(least, min(first, most)) if most else 0

    def hold_back(self) -> None:
        """Record that there was more to emit than the limit allows."""
        self._is_binding = True

    def complete(self, times: list[tuple[float, int]], now_s: float) -> None:
        """Take into account how long records took that were completed, with how many of them."""
        if not times or not self.allowed:
            return
        fresh = [each for each in times if now_s - each[0] > self._since_s]
        self.base_s = min(self.base_s, _median(fresh or times))
        if self._slowest_s:
            self._slowest_s = max(self._slowest_s, _median(times))
        queue_s = TARGET_S + self.busy_s
        self.overtaken_s = max(self.overtaken_s, now_s - 2 * max(_median(times), self.base_s + queue_s))
        if not self._is_binding:
            return
        if fresh:
            self._times.append((_median(fresh), sum(count for _, count in fresh)))
        self._completed += sum(count for _, count in times)
        self._first_s = min(self._first_s, now_s)
        seen = sum(count for _, count in self._times)
        is_whole = seen >= self.allowed
        if is_whole or (seen and now_s - self._first_s >= self.base_s + queue_s):
            self._follow(queue_s, now_s, is_whole)

    def _follow(self, queue_s: float, now_s: float, is_whole: bool) -> None:
        """Set the limit by what a typical record took that was emitted under it."""
        before, took_s, watched_s = self.allowed, _median(_later_half(self._times)), now_s - self._first_s
        goal_s = self.base_s + queue_s
        spare = 1 - (took_s - self.base_s) / queue_s
        if took_s > LITTLE_HELP * self._slowest_s > 0:
            self.base_s = took_s
        elif spare < -TOLERANCE:
            rate = self._completed / watched_s if watched_s >= goal_s else inf
            self.allowed = max(self.least, int(min(before * goal_s / took_s, rate * goal_s)))
        elif spare > TOLERANCE and is_whole:
            growth = goal_s / took_s - 1 if took_s > 0 else MAX_GROWTH
            self.allowed = before + int(before * max(spare, min(MAX_GROWTH, growth))) + 1
        self.allowed = min(self.allowed, self.most)
        self._slowest_s = took_s if 2 * self.allowed <= before else 0.0
        if self.allowed != before:
            self._since_s = now_s
        if is_whole or self.allowed != before:
            self._is_binding, self._first_s, self._completed = False, inf, 0
            self._times.clear()


def _later_half(times: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return what was completed last: while a queue grows, each record waits longer than the one before."""
    left, at = sum(count for _, count in times) / 2, len(times)
    while left > 0:
        at -= 1
        left -= times[at][1]
    return times[at:]


def _median(times: list[tuple[float, int]]) -> float:
    """Return the median of values with how often each occurs."""
    left = sum(count for _, count in times) / 2
    for value, count in sorted(times):
        left -= count
        if left <= 0:
            return value
    raise ValueError("no values")
