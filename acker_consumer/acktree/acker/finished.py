"""The roots that are finished: what still comes for one of them is late, and no orphan.

Invariant: holds at least the latest MAX_FINISHED finished roots, those of the latest ``turn`` to ``turn`` and
of the one before; no other roots. Flat arrays of root ids, two sets: the younger one fills, the older one is
dropped as a whole.
"""

import numpy as np

from acktree.acker.kernels.finished_roots import copy_finished
from acktree.acker.kernels.slots import JUDGED
from acktree.schemas.batch_codec import Integers
from acktree.schemas.ids import IdArray

MAX_FINISHED = 1 << 20
LEAST_PLACES = 1024
NOTED_ROOTS = 32


class FinishedRoots:
    """Two sets of roots; ``counts`` is the table's, with how many the younger one holds."""

    def __init__(self, counts: Integers, seed: np.uint64, most: int = MAX_FINISHED) -> None:
        self._counts, self._seed, self._most = counts, seed, most
        self.young: IdArray = np.zeros(LEAST_PLACES, np.uint64)
        self.old: IdArray = np.zeros(1, np.uint64)
        self.noted: IdArray = np.zeros(NOTED_ROOTS, np.uint64)

    @property
    def nbytes(self) -> int:
        return self.young.nbytes + self.old.nbytes + self.noted.nbytes

    def turn(self) -> None:
        """Forget the older set; the younger one is the older from here on."""
        self.old, self.young = self.young, np.zeros(LEAST_PLACES, np.uint64)
        self._counts[JUDGED] = 0

    def reserve(self, rows: int) -> None:
        """Make room for more verdicts."""
        if 4 * (int(self._counts[JUDGED]) + rows) <= 3 * len(self.young):
            return
        if self._counts[JUDGED] >= self._most:
            self.turn()
        places = max(2 * len(self.young), 2 * (int(self._counts[JUDGED]) + rows))
        larger: IdArray = np.zeros(places, np.uint64)
        copy_finished(self.young, larger, self._seed)
        self.young = larger
