"""The position on a result topic that may be committed: a cut, not just what was read.

Invariant: every verdict below the cut has its effect in the commit that carries the cut, or in a batch that
Spark has written. Committing further loses a verdict in a crash: its record is stuck or lost. As metadata is
short, a commit may tell less than the one before: then the cut goes back.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Place = tuple[int, int]
"""Slot and offset of a source record, of a block's first one."""


class Opened(NamedTuple):
    """A failure of the block at ``first``; behind ``last`` it has no record."""

    slot: int
    first: int
    last: int


LEAST_TOLD = 1_000
"""So many facts are kept before those that the frontiers have passed are looked for."""


@dataclass(slots=True)
class _Fact:
    offset: int
    highest: Mapping[int, int]
    failures: list[Opened]

    def forget_passed(self, frontiers: Mapping[int, int]) -> bool:
        """Forget slots that are gone or done so far; tell whether any is left."""
        self.highest = {
            s: most for s, most in self.highest.items() if s in frontiers and most >= frontiers[s]
        }
        return bool(self.highest)


class ResultCut:
    """Result records in the order read, from the first whose effect is not durable."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._facts: deque[_Fact] = deque()
        self._told: deque[_Fact] = deque()
        self._most_told = LEAST_TOLD
        self._reach: Mapping[int, int] = {}
        self._unwritten: set[Place] = set()
        self._held: set[int] = set()

    def hold(self, offset: int) -> None:
        """Hold the cut at a record that waits to be obeyed."""
        self._held.add(offset)

    def release(self, offset: int) -> None:
        """Let the cut pass a record that was held."""
        self._held.discard(offset)

    def note(self, offset: int, highest_done: Mapping[int, int], failures: Iterable[Opened]) -> None:
        """Note one result record: the highest offset it finished per slot, and the failures it opened."""
        opened = list(failures)
        self._unwritten.update(each[:2] for each in opened)
        if highest_done or opened:
            self._facts.append(_Fact(offset, highest_done, opened))
        self.next_offset = offset + 1

    def written(self, places: Iterable[Place]) -> None:
        """Note that the replays of these failures stand in a batch that Spark has written."""
        self._unwritten.difference_update(places)

    def cut(
        self, reach: Mapping[int, int], frontiers: Mapping[int, int], is_open: Callable[[int, int], bool]
    ) -> int:
        """Return the next offset to commit beside a commit that tells everything below ``reach`` per slot.

        What is below ``frontiers`` every later commit tells, too.
        """
        tells_less = any(reach.get(slot, 0) < most for slot, most in self._reach.items())
        self._reach = dict(reach)
        if tells_less or len(self._told) > self._most_told:
            self._told = deque(fact for fact in self._told if fact.forget_passed(frontiers))
            self._most_told = 2 * len(self._told) + LEAST_TOLD
        if tells_less:
            self._facts, self._told = self._told + self._facts, deque()
        while self._facts and self._is_durable(self._facts[0], reach, is_open):
            self._told.append(self._facts.popleft())
        first = self._facts[0].offset if self._facts else self.next_offset
        return min(first, *self._held) if self._held else first

    def _is_durable(self, fact: _Fact, reach: Mapping[int, int], is_open: Callable[[int, int], bool]) -> bool:
        if any(highest >= reach.get(slot, 0) for slot, highest in fact.highest.items()):
            return False
        fact.failures = [
            each
            for each in fact.failures
            if each[:2] in self._unwritten
            and (is_open(each.slot, each.first) or each.last >= reach.get(each.slot, 0))
        ]
        return not fact.failures
