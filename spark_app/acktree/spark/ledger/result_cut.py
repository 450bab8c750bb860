"""The position on a result topic that may be committed: a cut, not just what was read.

Invariant: every result below the cut has its effect in the commit that carries the cut, or in a batch that
Spark has written. Committing further would lose a result in a crash: its record would be stuck or lost. A
failure is identified by its emission, never by its position: the next failure of the same record is another.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from acktree.spark.ledger.partitions.done_set import EVERYTHING


class Emission(NamedTuple):
    """One emission of a record."""

    slot: int
    generation: int
    offset: int


@dataclass(slots=True)
class _UndurableResult:
    offset: int
    highest: Mapping[int, int]
    failed: list[Emission]


class ResultCut:
    """Result records in the order read, from the first whose effect is not durable."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._undurable: deque[_UndurableResult] = deque()
        self._unwritten: set[Emission] = set()
        self._held: set[int] = set()

    @property
    def kept(self) -> int:
        """Return how many results are kept; advancing frontiers keep that small."""
        return len(self._undurable) + len(self._unwritten)

    def hold(self, offset: int) -> None:
        """Hold the cut at a command that waits to be applied."""
        self._held.add(offset)

    def release(self, offset: int) -> None:
        """Let the cut pass a record that was held."""
        self._held.discard(offset)

    def record(self, offset: int, highest_done: Mapping[int, int], failed: Iterable[Emission]) -> None:
        """Record one result: the highest offset it finished per slot, and the emissions that failed."""
        result = _UndurableResult(offset, highest_done, list(failed))
        self._unwritten.update(result.failed)
        if highest_done or result.failed:
            self._undurable.append(result)
        self.next_offset = offset + 1

    def written(self, failed: Iterable[Emission]) -> None:
        """Record that a batch that Spark has written replays these failed emissions."""
        self._unwritten.difference_update(failed)

    def cut(self, reach: Mapping[int, int], is_open: Callable[[Emission], bool]) -> int:
        """Return the next offset to commit beside a commit that holds everything below ``reach`` per slot.

        What a commit holds, all later ones hold, too. A slot without a reach is no longer read.
        """
        while self._undurable and self._is_durable(self._undurable[0], reach, is_open):
            self._undurable.popleft()
        first = self._undurable[0].offset if self._undurable else self.next_offset
        return min(first, *self._held) if self._held else first

    def _is_durable(
        self, result: _UndurableResult, reach: Mapping[int, int], is_open: Callable[[Emission], bool]
    ) -> bool:
        if any(highest >= reach.get(slot, EVERYTHING) for slot, highest in result.highest.items()):
            return False
        while result.failed:  # up to the first one that waits: the next call goes on from there
            emission = result.failed[-1]
            is_waiting = is_open(emission) or emission.offset >= reach.get(emission.slot, EVERYTHING)
            if emission in self._unwritten and is_waiting:
                return False
            self._unwritten.discard(emission)
            result.failed.pop()
        return True
