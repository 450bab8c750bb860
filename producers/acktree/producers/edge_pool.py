"""Random edge ids as the 8 bytes a header holds, drawn in blocks.

Invariant: a forked child never hands out an edge that its parent holds.
"""

import os

from acktree.schemas.ids import EdgeSource

BLOCK_EDGES = 4_096


class EdgePool:
    """A stack of edges, filled from an EdgeSource when it runs empty."""

    def __init__(self) -> None:
        self._source = EdgeSource()
        self._edges: list[bytes] = []
        os.register_at_fork(after_in_child=self._edges.clear)

    def take(self) -> bytes:
        """Return one edge, 8 bytes little-endian."""
        if not self._edges:
            block = self._source.many(BLOCK_EDGES).astype("<u8").tobytes()
            self._edges.extend(block[at : at + 8] for at in range(0, len(block), 8))
        return self._edges.pop()
