"""Keeps an hour of a topology's figures, as observed by the page's watcher. Pure.

Invariant: memory is bounded, whatever the size of the topology, and a time without an observation, or at
which a figure was unknown, is None: never a zero, never a line between the values before and after.
"""

from collections import OrderedDict
from collections.abc import Mapping

from acktree.console.view.documents import Status

SPAN_S = 3_600.0
BUCKET_S = 30.0
BUCKETS = int(SPAN_S / BUCKET_S)
MAX_LINES = 200

Line = tuple[float | None, ...]
"""The highest value in each bucket, the oldest first; the last one is of the newest look."""


class History:
    """The figures of an hour by name; times are of any one steady clock."""

    def __init__(self) -> None:
        self._lines: dict[str, OrderedDict[int, float]] = {}
        self._now = 0

    def add(self, figures: Mapping[str, float | None], now_s: float) -> None:
        """Add what a look has found; of more than MAX_LINES figures those named first."""
        self._now = int(now_s // BUCKET_S)
        for name, value in figures.items():
            if value is None or (name not in self._lines and len(self._lines) >= MAX_LINES):
                continue
            line = self._lines.setdefault(name, OrderedDict())
            line[self._now] = max(value, line.get(self._now, value))
        for name, line in list(self._lines.items()):
            while line and next(iter(line)) <= self._now - BUCKETS:
                line.popitem(last=False)
            if not line:
                del self._lines[name]

    def lines(self) -> dict[str, Line]:
        """Return the hour before the newest look."""
        numbers = range(self._now - BUCKETS + 1, self._now + 1)
        return {name: tuple(map(line.get, numbers)) for name, line in self._lines.items()}


def figures_of(status: Status) -> dict[str, float | None]:
    """Return the figures of a status that are kept, None for what is not known."""
    totals = status.totals
    kept = {"pending": totals.pending, "acked": totals.completed_per_s, "failed": totals.failed_per_s}
    return {**kept, **{lag_of(bolt.name): bolt.lag for bolt in status.bolts}}


def lag_of(bolt: str) -> str:
    """Return the name of a bolt's lag."""
    return f"lag of {bolt}"
