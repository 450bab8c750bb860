"""Remembers the finished roots: a message for one of them is late, and makes no orphan.

Invariant: holds at least the latest MAX_FINISHED finished roots, those since the last ``rotate`` and those
between it and the one before; no other roots. Two sets, flat arrays of root ids: the younger one fills, the
older one is dropped as a whole.
"""

import numpy as np

from acktree.acker.kernels.finished_roots import copy_finished
from acktree.acker.kernels.slots import FINISHED
from acktree.wire.batch_codec import Integers
from acktree.wire.ids import IdArray

MAX_FINISHED = 1 << 20
LEAST_PLACES = 1024
BUFFERED_ROOTS = 32


class FinishedRoots:
    """Two sets of roots; ``counts`` is the table's, and holds the size of the younger one."""

    def __init__(self, counts: Integers, seed: np.uint64, limit: int = MAX_FINISHED) -> None:
        self._counts, self._seed, self._limit = counts, seed, limit
        self.young: IdArray = np.zeros(LEAST_PLACES, np.uint64)
        self.old: IdArray = np.zeros(1, np.uint64)
        self.buffered: IdArray = np.zeros(BUFFERED_ROOTS, np.uint64)

    @property
    def nbytes(self) -> int:
        return self.young.nbytes + self.old.nbytes + self.buffered.nbytes

    def rotate(self) -> None:
        """Drop the older set; the younger one takes its place, and an empty one starts."""
        self.old, self.young = self.young, np.zeros(LEAST_PLACES, np.uint64)
        self._counts[FINISHED] = 0

    def reserve(self, rows: int) -> None:
        """Make room for more finished roots."""
        if 4 * (int(self._counts[FINISHED]) + rows) <= 3 * len(self.young):
            return
        if self._counts[FINISHED] >= self._limit:
            self.rotate()
        places = max(2 * len(self.young), 2 * (int(self._counts[FINISHED]) + rows))
        larger: IdArray = np.zeros(places, np.uint64)
        copy_finished(self.young, larger, self._seed)
        self.young = larger
