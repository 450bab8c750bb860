"""The compiled set of roots that have their verdict: two open-addressing tables of root ids, 0 = empty.

Invariant: a root is found from the moment it is judged. A new one waits among the ``noted`` while its
place comes into the cache; whoever searches, or ends a loop, settles them first.
"""

from typing import Any

import numpy as np

from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.prefetch import prefetch
from acktree.acker.kernels.slots import JUDGED, NOTED, NOTHING, ONE, State, home_of
from acktree.schemas.ids import IdArray


@compiled
def _seek(judged: IdArray, root: np.uint64, seed: np.uint64) -> np.uint64:
    """Return where a set of roots holds the root, or the empty place where it would go."""
    capacity = np.uint64(judged.shape[0])
    place = home_of(root, seed, capacity)
    while judged[place] != root and judged[place] != NOTHING:
        place += ONE
        if place == capacity:
            place = NOTHING
    return place


@compiled
def judge(state: State, root: np.uint64) -> None:
    """Remember that a root has its verdict."""
    prefetch(state.judged, home_of(root, state.seed, np.uint64(state.judged.shape[0])))
    state.noted[state.counts[NOTED]] = root
    state.counts[NOTED] += 1
    if state.counts[NOTED] == len(state.noted):
        settle(state)


@compiled
def settle(state: State) -> None:
    """Put the noted roots into the younger set; a full one takes no more."""
    for row in range(state.counts[NOTED]):
        place = _seek(state.judged, state.noted[row], state.seed)
        if state.judged[place] == NOTHING and state.counts[JUDGED] + 1 < len(state.judged):
            state.judged[place] = state.noted[row]
            state.counts[JUDGED] += 1
    state.counts[NOTED] = 0


@compiled
def is_finished(state: State, root: np.uint64) -> Any:
    """Tell whether a root has its verdict, as far back as is remembered."""
    settle(state)
    if state.judged[_seek(state.judged, root, state.seed)] == root:
        return True
    return state.judged_before[_seek(state.judged_before, root, state.seed)] == root


@compiled
def is_crammed(state: State, rows: int) -> Any:
    """Tell whether so many more verdicts would make searches in the younger set slow."""
    return 4 * (state.counts[JUDGED] + state.counts[NOTED] + rows) > 3 * len(state.judged)


@compiled
def copy_finished(old: IdArray, new: IdArray, seed: np.uint64) -> None:
    """Put every root of a set into another, which is large enough."""
    for place in range(len(old)):
        if old[place] != NOTHING:
            new[_seek(new, old[place], seed)] = old[place]
