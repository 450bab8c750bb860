"""The sums of roots: what a stage has emitted for each source record, and which records failed in it.

Invariant: a source record itself has no edge, so the value of its root is that of its tuples only. A
root that failed has no init: no acker ever knows of it. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from acktree.producers.collecting.arithmetic.ack_sums import AckSums, AnchorArray
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.wire.control_records import EntryArray, Fail
from acktree.wire.ids import IdArray


class FinishedRoots(NamedTuple):
    """Roots of one version that a stage has finished: values of those for an init, and those that failed."""

    version: int
    entries: EntryArray
    failed: Sequence[Fail]


class RootSums(AckSums):
    """Like those of a bolt, except for the inputs, whose anchors have no edge."""

    def _own_values(self, own: AnchorArray) -> IdArray:
        return np.zeros(len(own), np.uint64)


class RootPacker(AckPacker):
    """Keeps what is finished for the writer, and sends nothing."""

    def take(self) -> list[FinishedRoots]:
        """Return, once, what was finished."""
        waiting, self._updates = self._updates, {}
        self._stacks.clear()
        taken: list[FinishedRoots] = []
        for version, updates in waiting.items():
            entries, failed = updates.acks.folded(), list(updates.fails.values())
            if failed:
                entries = entries[~np.isin(entries["root"], [fail.root for fail in failed])]
            taken.append(FinishedRoots(version, entries, failed))
        return taken

    def flush(self) -> None:
        """Do nothing: ``take`` returns it."""

    def reset_at_once(self, version: int, root: int) -> None:
        """Do nothing: no acker counts the time of a record that the stage has not finished."""
