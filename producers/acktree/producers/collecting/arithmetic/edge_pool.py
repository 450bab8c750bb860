"""Random edge ids as the 8 bytes a header holds, drawn in blocks.

Invariant: a forked child never returns an edge from its parent's block.
"""

import os
from collections.abc import Callable, Iterator
from itertools import chain

from acktree.core import world
from acktree.core.edges import EdgeSource

BLOCK_EDGES = 4_096


class EdgePool:
    """Edges in blocks from an EdgeSource; ``take()`` returns the next one, 8 bytes little-endian."""

    def __init__(self) -> None:
        self._source = EdgeSource()
        self._block: list[bytes] = []
        self.take: Callable[[], bytes] = chain.from_iterable(self._blocks()).__next__
        if not world.is_simulated():  # where nothing forks, and pools come by the million
            os.register_at_fork(after_in_child=lambda: self._block.clear())

    def _blocks(self) -> Iterator[list[bytes]]:
        """Yield blocks; one that is cleared while it is in use ends, and the next one is drawn."""
        while True:
            packed = self._source.many(BLOCK_EDGES).astype("<u8").tobytes()
            self._block = [packed[at : at + 8] for at in range(0, len(packed), 8)]
            yield self._block
