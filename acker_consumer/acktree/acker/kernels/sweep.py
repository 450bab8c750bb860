"""The compiled scans of the whole table: expire entries, renew orphans, return ages."""

from typing import Any

import numpy as np

from acktree.acker.kernels.finished_roots import add_finished, insert_buffered
from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.slots import (
    BUCKET_BITS,
    BUCKET_MASK,
    BUCKET_SHIFT,
    DROPPED_ORPHANS,
    INIT_SEEN,
    NOTHING,
    OLDEST_ORPHAN,
    OLDEST_PENDING,
    OLDEST_ROOT,
    ONE,
    RENEWED_ORPHANS,
    TICK_MASK,
    TIMED_OUT,
    Slots,
    TableState,
    age_in,
    remove,
    signed,
    task_in,
)
from acktree.schemas.batch_codec import Integers
from acktree.schemas.ids import IdArray


@compiled
def expire(
    state: TableState,
    now: int,
    message_ticks: int,
    orphan_ticks: int,
    oldest_bucket: int,
    expired_buckets: int,
    at: int,
    roots: IdArray,
    tasks: Integers,
) -> Any:
    """Remove expired entries from slot ``at`` on; return the slot where the output was full, or the end.

    Entries of the ``expired_buckets`` buckets from ``oldest_bucket`` on are removed at any age.
    ``counts[TIMED_OUT]`` is the number of output rows filled; OLDEST_* are the greatest ages left, in ticks.
    """
    slots, counts, slot = state.slots, state.counts, np.uint64(at)
    capacity = np.uint64(slots.shape[0])
    while slot < capacity:
        if slots[slot, 0] == NOTHING:
            slot += ONE
            continue
        word = slots[slot, 2]
        is_pending = word & INIT_SEEN != NOTHING
        age = age_in(now, word)
        distance = ((word >> BUCKET_SHIFT) - np.uint64(oldest_bucket)) & BUCKET_MASK
        limit = message_ticks if is_pending else orphan_ticks
        if age <= limit and distance >= np.uint64(expired_buckets):
            if is_pending and age > counts[OLDEST_PENDING]:
                counts[OLDEST_PENDING], counts[OLDEST_ROOT] = age, signed(slots[slot, 0])
            elif not is_pending and age > counts[OLDEST_ORPHAN]:
                counts[OLDEST_ORPHAN] = age
            slot += ONE
            continue
        if not is_pending:
            counts[DROPPED_ORPHANS] += 1
        elif counts[TIMED_OUT] == len(roots):
            break
        else:
            roots[counts[TIMED_OUT]], tasks[counts[TIMED_OUT]] = slots[slot, 0], task_in(word)
            counts[TIMED_OUT] += 1
            add_finished(state, slots[slot, 0])
        remove(state, slot)
    insert_buffered(state)
    return signed(slot)


@compiled
def renew_orphans(
    state: TableState, now: int, hold_ticks: int, oldest_bucket: int, old_buckets: int, bucket: int
) -> None:
    """Move orphans that are older than ``hold_ticks`` from old buckets to ``bucket``.

    The old buckets are the ``old_buckets`` ones from ``oldest_bucket`` on.
    """
    slots = state.slots
    for slot in range(slots.shape[0]):
        word = slots[slot, 2]
        if slots[slot, 0] == NOTHING or word & INIT_SEEN or age_in(now, word) <= hold_ticks:
            continue
        old_bucket = (word >> BUCKET_SHIFT) & BUCKET_MASK
        if (old_bucket - np.uint64(oldest_bucket)) & BUCKET_MASK < np.uint64(old_buckets):
            state.bucket_counts[old_bucket] -= 1
            state.bucket_counts[bucket] += 1
            slots[slot, 2] = (word & ~BUCKET_BITS) | (np.uint64(bucket) << BUCKET_SHIFT)
            state.counts[RENEWED_ORPHANS] += 1


def orphan_ages(slots: Slots, now: int) -> Integers:
    """Return the ages in ticks of all orphans, in no order."""
    words = slots[(slots[:, 0] != 0) & (slots[:, 2] < INIT_SEEN), 2]
    ages: Integers = (np.uint64(now) - words & TICK_MASK).astype(np.uint32).astype(np.int32).astype(np.int64)
    return ages
