"""Tracks when the offsets of a partition were first emitted, in their order.

Invariant: an overdue offset stays overdue until it is cleared; an emission is called the first of its record
only if no earlier one is possible. Pure: times are arguments, in seconds.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from pyroaring import BitMap64


class FirstEmission(NamedTuple):
    """The time at which the record at an offset was first emitted; an upper bound unless ``is_first``."""

    offset: int
    time_s: float
    is_first: bool


class EmissionTimes:
    """The emission times of offsets that are not known to be done, oldest first."""

    def __init__(self) -> None:
        self.known_from = 0
        """What is below was emitted before its emission here, nobody knows when."""
        self._ends: list[int] = []
        self._times_s: list[float] = []
        self._first = 0
        """Where in both what is not known to be done begins."""
        self._overdue_end, self._overdue_s = 0, 0.0
        self._held: FirstEmission | None = None

    def record(self, end: int, now_s: float) -> None:
        """Record that everything below ``end`` that was not emitted before was emitted at a time."""
        self._ends.append(end)
        self._times_s.append(now_s)

    def _drop_first(self) -> None:
        self._first += 1
        if self._first > 1_000 and 2 * self._first > len(self._ends):
            del self._ends[: self._first], self._times_s[: self._first]
            self._first = 0

    def ages(self, offsets: BitMap64, now_s: float) -> list[tuple[float, int]]:
        """Return the times since the first emissions of some offsets, each with how many have it.

        An offset that has no emission is left out.
        """
        if not offsets:
            return []
        late = offsets.range_cardinality(0, self._overdue_end)
        ages = [(now_s - self._overdue_s, late)] if late else []
        if late == len(offsets):
            return ages
        begin, last = max(int(offsets.min()), self._overdue_end), int(offsets.max())
        at = bisect_right(self._ends, begin, self._first)
        while at < len(self._ends) and begin <= last:
            if (count := offsets.range_cardinality(begin, self._ends[at])) == 0:
                # None of it: continue with what comes next.
                begin = int(offsets[offsets.rank(begin)])
                at = bisect_right(self._ends, begin, at)
                continue
            ages.append((now_s - self._times_s[at], count))
            begin, at = self._ends[at], at + 1
        return ages

    def end_before(self, time_s: float) -> int:
        """Return the end of what was emitted before a time, 0 for nothing that is known."""
        at = bisect_left(self._times_s, time_s, self._first)
        return self._ends[at - 1] if at > self._first else 0

    def overdue_end(self, before_s: float) -> int:
        """Return the end of what was emitted before a time, 0 for nothing."""
        while self._first < len(self._ends) and self._times_s[self._first] < before_s:
            self._overdue_end, self._overdue_s = self._ends[self._first], self._times_s[self._first]
            self._drop_first()
        return self._overdue_end

    def first(self, frontier: int) -> FirstEmission | None:
        """Return the first emission of the record at the frontier, None if there is none."""
        while self._first < len(self._ends) and self._ends[self._first] <= frontier:
            self._drop_first()
        if self._held is None or self._held.offset != frontier:
            self._held = self._find(frontier)
        return self._held

    def _find(self, frontier: int) -> FirstEmission | None:
        if frontier < self._overdue_end:
            return FirstEmission(frontier, self._overdue_s, is_first=False)
        if self._first == len(self._ends):
            return None
        return FirstEmission(frontier, self._times_s[self._first], frontier >= self.known_from)

    def restore(self, held: FirstEmission) -> None:
        """Restore what was known of the record at the frontier."""
        self._held = held

    def clear(self) -> None:
        """Start again: nothing is emitted."""
        self._ends.clear()
        self._times_s.clear()
        self._first = 0
        self._overdue_end, self._held, self.known_from = 0, None, 0
