"""The table's memory and its compiled operations: find, insert, remove, rehash.

One slot is three unsigned 64-bit words: root (0 = empty), value, and a word of bit fields: init seen, failed,
spout task (16 bits), bucket (14 bits), age tick (32 bits, compared in serial-number arithmetic).
Invariant: linear probing without tombstones, never full; ``counts`` and ``bucket_counts`` match the slots.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.prefetch import prefetch
from acktree.wire.batch_codec import Integers
from acktree.wire.ids import IdArray

Slots = NDArray[np.uint64]
BucketCounts = NDArray[np.int32]

SLOT_WORDS = 3
SPOUT_TASKS = 1 << 16
BUCKETS = 1 << 14
NO_LIMIT = 1 << 62

# Rows of ``counts``, the counters that the loops keep beside their results.
ENTRIES, PENDING, ACKED, FAILED, DUPLICATED_INITS, DROPPED_ORPHANS, REFUSED_ORPHANS = range(7)
FOLDED, TIMED_OUT, OLDEST_PENDING, OLDEST_ORPHAN, FINISHED, LATE = range(7, 13)
RENEWED_ORPHANS, BUFFERED, COUNTS = range(13, 16)

INIT_SEEN = np.uint64(1 << 63)
HAS_FAILED = np.uint64(1 << 62)
WAS_RESET = np.uint64(1 << 46)
"""Of an orphan: its age was reset. It has the place of the task, which only the init knows."""
TASK_SHIFT, TASK_MASK = np.uint64(46), np.uint64(SPOUT_TASKS - 1)
BUCKET_SHIFT, BUCKET_MASK = np.uint64(32), np.uint64(BUCKETS - 1)
BUCKET_BITS = np.uint64((BUCKETS - 1) << 32)
TICK_MASK = np.uint64(0xFFFFFFFF)
NOTHING, ONE = np.uint64(0), np.uint64(1)
_HALF, _SLOTS_AHEAD = np.uint64(32), np.uint64(2)


class TableState(NamedTuple):
    """A table's memory; ``seed`` is odd. The last three hold the finished roots."""

    slots: Slots
    bucket_counts: BucketCounts
    counts: Integers
    seed: np.uint64
    finished: IdArray
    finished_before: IdArray
    buffered: IdArray


@compiled
def signed(number: Any) -> Any:
    """Return an integer as a signed one: numba turns a mix of signed and unsigned into a float."""
    return np.int64(number)


@compiled
def home_of(root: np.uint64, seed: np.uint64, capacity: np.uint64) -> np.uint64:
    """Return a root's home slot: the high bits of a hash, so that a rehash walks both tables in order."""
    mixed = (root ^ (root >> _HALF)) * seed
    return ((mixed >> _HALF) * capacity) >> _HALF


@compiled
def fetch(slots: Slots, root: np.uint64, seed: np.uint64) -> None:
    """Prefetch a root's home slot and the cache line after it, so that the misses of many roots overlap."""
    home = home_of(root, seed, np.uint64(slots.shape[0]))
    prefetch(slots, home)
    prefetch(slots, home + _SLOTS_AHEAD)


@compiled
def find_slot(slots: Slots, root: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the slot that holds the root, or the empty one where it would go."""
    capacity = np.uint64(slots.shape[0])
    slot = home_of(root, seed, capacity)
    while slots[slot, 0] != root and slots[slot, 0] != NOTHING:
        slot += ONE
        if slot == capacity:
            slot = NOTHING
    return slot


@compiled
def slot_of(slots: Slots, root: np.uint64, seed: np.uint64) -> Any:
    """Return the slot of a root, -1 if it has none."""
    slot = find_slot(slots, root, seed)
    return signed(slot) if slots[slot, 0] == root else signed(-1)


@compiled
def insert(state: TableState, slot: np.uint64, root: np.uint64, value: np.uint64, word: np.uint64) -> None:
    """Fill the empty slot that ``find`` returned."""
    state.slots[slot, 0], state.slots[slot, 1], state.slots[slot, 2] = root, value, word
    state.counts[ENTRIES] += 1
    if word & INIT_SEEN:
        state.counts[PENDING] += 1
    state.bucket_counts[(word >> BUCKET_SHIFT) & BUCKET_MASK] += 1


@compiled
def remove(state: TableState, hole: np.uint64) -> None:
    """Empty a slot and move back the entries that probed past it, so that no search ends too early."""
    slots, word = state.slots, state.slots[hole, 2]
    state.counts[ENTRIES] -= 1
    if word & INIT_SEEN:
        state.counts[PENDING] -= 1
    state.bucket_counts[(word >> BUCKET_SHIFT) & BUCKET_MASK] -= 1
    capacity = np.uint64(slots.shape[0])
    slot = hole
    while True:
        slot += ONE
        if slot == capacity:
            slot = NOTHING
        root = slots[slot, 0]
        if root == NOTHING:
            break
        home = home_of(root, state.seed, capacity)
        probed = slot - home if slot >= home else slot + capacity - home
        gap = slot - hole if slot >= hole else slot + capacity - hole
        if probed >= gap:
            slots[hole, 0], slots[hole, 1], slots[hole, 2] = root, slots[slot, 1], slots[slot, 2]
            hole = slot
    slots[hole, 0] = NOTHING


@compiled
def rehash(old: Slots, new: Slots, seed: np.uint64) -> None:
    """Copy every entry of old into new, which is empty and large enough."""
    for row in range(old.shape[0]):
        root = old[row, 0]
        if root != NOTHING:
            slot = find_slot(new, root, seed)
            new[slot, 0], new[slot, 1], new[slot, 2] = root, old[row, 1], old[row, 2]


@compiled
def task_in(word: np.uint64) -> Any:
    """Return the spout task in a slot's word."""
    return signed((word >> TASK_SHIFT) & TASK_MASK)


@compiled
def age_in(now: int, word: np.uint64) -> Any:
    """Return how many ticks ago the entry's age was set; negative if it was set to a later tick."""
    return signed(np.int32(np.uint32((np.uint64(now) - word) & TICK_MASK)))
