"""The position on a result topic that may be committed: a cut, not just what was read.

Invariant: every verdict below the cut has its effect in the commit that carries the cut, or in a batch that
Spark has written. Committing further loses a verdict in a crash: its record is stuck or lost. A failure is
known by its emission, never by its place: the next failure of the same record is another one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from acktree.spark.ledger.done_set import EVERYTHING


class BlockEmission(NamedTuple):
    """One emission of the block at ``first``."""

    slot: int
    generation: int
    first: int


class OpenFailure(NamedTuple):
    """A failure of an emission; behind ``last`` its block has no record."""

    emission: BlockEmission
    last: int


@dataclass(slots=True)
class _UndurableResult:
    offset: int
    highest: Mapping[int, int]
    failures: list[OpenFailure]


class ResultCut:
    """Result records in the order read, from the first whose effect is not durable."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._undurable: deque[_UndurableResult] = deque()
        self._unwritten: set[BlockEmission] = set()
        self._held: set[int] = set()

    @property
    def kept(self) -> int:
        """Return how many facts are kept; frontiers that move on keep that small."""
        return len(self._undurable) + len(self._unwritten)

    def hold(self, offset: int) -> None:
        """Hold the cut at a record that waits to be obeyed."""
        self._held.add(offset)

    def release(self, offset: int) -> None:
        """Let the cut pass a record that was held."""
        self._held.discard(offset)

    def record(self, offset: int, highest_done: Mapping[int, int], failures: Iterable[OpenFailure]) -> None:
        """Note one result record: the highest offset it finished per slot, and the failures it opened."""
        opened = list(failures)
        self._unwritten.update(each.emission for each in opened)
        if highest_done or opened:
            self._undurable.append(_UndurableResult(offset, highest_done, opened))
        self.next_offset = offset + 1

    def written(self, failed: Iterable[BlockEmission]) -> None:
        """Note that a batch that Spark has written replays these failed emissions."""
        self._unwritten.difference_update(failed)

    def cut(self, reach: Mapping[int, int], is_open: Callable[[BlockEmission], bool]) -> int:
        """Return the next offset to commit beside a commit that tells everything below ``reach`` per slot.

        What a commit has told all later ones tell, too. A slot without a reach is no longer read.
        """
        while self._undurable and self._is_durable(self._undurable[0], reach, is_open):
            self._undurable.popleft()
        first = self._undurable[0].offset if self._undurable else self.next_offset
        return min(first, *self._held) if self._held else first

    def _is_durable(
        self, result: _UndurableResult, reach: Mapping[int, int], is_open: Callable[[BlockEmission], bool]
    ) -> bool:
        if any(highest >= reach.get(slot, EVERYTHING) for slot, highest in result.highest.items()):
            return False
        waiting: list[OpenFailure] = []
        for failure in result.failures:
            emission = failure.emission
            if emission in self._unwritten:
                if is_open(emission) or failure.last >= reach.get(emission.slot, EVERYTHING):
                    waiting.append(failure)
                else:
                    self._unwritten.discard(emission)
        result.failures = waiting
        return not waiting
