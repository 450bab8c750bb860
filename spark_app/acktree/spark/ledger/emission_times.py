"""When the offsets of a partition were emitted for the first time, in their order.

Invariant: what is overdue stays overdue until it is cleared. Pure: times are arguments, in seconds.
"""

from collections import deque


class EmissionTimes:
    """The times of emissions that are not known to be done, oldest first."""

    def __init__(self) -> None:
        self._emitted: deque[tuple[int, float]] = deque()
        self._overdue_end = 0

    def record(self, end: int, now_s: float) -> None:
        """Record that everything below ``end`` that was not emitted before was emitted at a time."""
        self._emitted.append((end, now_s))

    def overdue_end(self, before_s: float) -> int:
        """Return the end of what was emitted before a time, 0 for nothing."""
        while self._emitted and self._emitted[0][1] < before_s:
            self._overdue_end = self._emitted.popleft()[0]
        return self._overdue_end

    def age_s(self, frontier: int, now_s: float) -> float:
        """Return how long ago the offset at the frontier was emitted; 0 if that is unknown or overdue."""
        while self._emitted and self._emitted[0][0] <= frontier:
            self._emitted.popleft()
        return max(0.0, now_s - self._emitted[0][1]) if self._emitted else 0.0

    def clear(self) -> None:
        """Start again: nothing is emitted."""
        self._emitted.clear()
        self._overdue_end = 0
