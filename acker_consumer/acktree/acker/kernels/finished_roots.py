"""The compiled set of finished roots: two open-addressing tables of root ids, 0 = empty.

Invariant: a root is found from the moment it is finished. A new one waits in ``buffered`` while its place is
fetched into the cache; every search, and the end of every loop, inserts the buffered ones first.
"""

from typing import Any

import numpy as np

from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.prefetch import prefetch
from acktree.acker.kernels.slots import BUFFERED, FINISHED, NOTHING, ONE, TableState, home_of
from acktree.wire.ids import IdArray


@compiled
def _find_place(finished: IdArray, root: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the place that holds the root in a set, or the empty one where it would go."""
    capacity = np.uint64(finished.shape[0])
    place = home_of(root, seed, capacity)
    while finished[place] != root and finished[place] != NOTHING:
        place += ONE
        if place == capacity:
            place = NOTHING
    return place


@compiled
def add_finished(state: TableState, root: np.uint64) -> None:
    """Add a root to the finished ones."""
    prefetch(state.finished, home_of(root, state.seed, np.uint64(state.finished.shape[0])))
    state.buffered[state.counts[BUFFERED]] = root
    state.counts[BUFFERED] += 1
    if state.counts[BUFFERED] == len(state.buffered):
        insert_buffered(state)


@compiled
def insert_buffered(state: TableState) -> None:
    """Insert the buffered roots into the younger set; once it is full it takes no more."""
    for row in range(state.counts[BUFFERED]):
        place = _find_place(state.finished, state.buffered[row], state.seed)
        if state.finished[place] == NOTHING and state.counts[FINISHED] + 1 < len(state.finished):
            state.finished[place] = state.buffered[row]
            state.counts[FINISHED] += 1
    state.counts[BUFFERED] = 0


@compiled
def is_finished(state: TableState, root: np.uint64) -> Any:
    """Return whether a root is among the finished ones still kept."""
    insert_buffered(state)
    if state.finished[_find_place(state.finished, root, state.seed)] == root:
        return True
    return state.finished_before[_find_place(state.finished_before, root, state.seed)] == root


@compiled
def is_nearly_full(state: TableState, rows: int) -> Any:
    """Return whether ``rows`` more roots would make searches in the younger set slow."""
    return 4 * (state.counts[FINISHED] + state.counts[BUFFERED] + rows) > 3 * len(state.finished)


@compiled
def copy_finished(old: IdArray, new: IdArray, seed: np.uint64) -> None:
    """Copy every root of a set into another, which is large enough."""
    for place in range(len(old)):
        if old[place] != NOTHING:
            new[_find_place(new, old[place], seed)] = old[place]
