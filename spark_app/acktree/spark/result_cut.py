"""The position on a result topic that may be committed: a cut, not just what was read.

Invariant: every verdict below the cut has its effect in the commit that carries the cut, or in a batch that
Spark has written. Committing further loses a verdict in a crash: its record is stuck or lost.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Place = tuple[int, int]
"""Slot and offset of a source record."""


@dataclass(slots=True)
class _Fact:
    offset: int
    highest: Mapping[int, int]
    failures: list[Place]


class ResultCut:
    """Result records in the order read, from the first whose effect is not durable."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._facts: deque[_Fact] = deque()
        self._unwritten: set[Place] = set()

    def note(self, offset: int, highest_done: Mapping[int, int], failures: Iterable[Place]) -> None:
        """Note one result record: the highest offset it finished per slot, and the failures it opened."""
        opened = list(failures)
        self._unwritten.update(opened)
        if highest_done or opened:
            self._facts.append(_Fact(offset, highest_done, opened))
        self.next_offset = offset + 1

    def written(self, places: Iterable[Place]) -> None:
        """Note that the replays of these failures stand in a batch that Spark has written."""
        self._unwritten.difference_update(places)

    def cut(self, reach: Mapping[int, int], is_open: Callable[[int, int], bool]) -> int:
        """Return the next offset to commit beside a commit that tells everything below ``reach`` per slot."""
        while self._facts and self._is_durable(self._facts[0], reach, is_open):
            self._facts.popleft()
        return self._facts[0].offset if self._facts else self.next_offset

    def _is_durable(self, fact: _Fact, reach: Mapping[int, int], is_open: Callable[[int, int], bool]) -> bool:
        if any(highest >= reach.get(slot, 0) for slot, highest in fact.highest.items()):
            return False
        fact.failures = [
            (slot, offset)
            for slot, offset in fact.failures
            if (slot, offset) in self._unwritten and (is_open(slot, offset) or offset >= reach.get(slot, 0))
        ]
        return not fact.failures
