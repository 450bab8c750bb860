"""Draws random edge ids, one for each tuple that is emitted."""

import random

import numpy as np

from acktree.core import world
from acktree.wire.ids import MASK, EdgeId, IdArray


class EdgeSource:
    """Random edge ids, never 0, seeded in every process: a fork does not repeat its parent's ids."""

    def __init__(self) -> None:
        self._pid = 0
        self._reseed()

    def _reseed(self) -> None:
        self._pid = world.process_id()
        self._scalar = random.Random(world.random_bits(256))
        self._vector = np.random.Generator(np.random.SFC64(world.random_bits(128)))

    def one(self) -> EdgeId:
        """Return one edge id."""
        if self._pid != world.process_id():
            self._reseed()
        return EdgeId(self._scalar.getrandbits(64) or 1)

    def many(self, count: int) -> IdArray:
        """Return ``count`` edge ids."""
        if self._pid != world.process_id():
            self._reseed()
        return self._vector.integers(1, MASK, count, dtype=np.uint64, endpoint=True)
