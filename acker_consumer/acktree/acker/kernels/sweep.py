"""The compiled scans of the whole table: expire entries, find the oldest, renew orphans, return ages."""

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
from acktree.wire.batch_codec import Integers
from acktree.wire.ids import IdArray


@compiled
def expire(
    state: TableState,
    now: int,
    clocks: Integers,
    message_ticks: int,
    orphan_ticks: int,
    oldest_bucket: int,
    expired_buckets: int,
    at: int,
    roots: IdArray,
    tasks: Integers,
) -> Any:
    """Remove expired entries from slot ``at`` on; return the slot where the output was full, or the end.

    A pending root ages by its task's of the ``clocks``, in ticks; by the last one if there are fewer, not at
    all by a negative one. ``now`` is log time, by which orphans age.
    Entries of the ``expired_buckets`` buckets from ``oldest_bucket`` on are removed at any age.
    ``counts[TIMED_OUT]`` is the number of output rows filled; OLDEST_* are the greatest ages left, in ticks.
    """
    slots, counts, slot = state.slots, state.counts, np.uint64(at)
    capacity, last_clock = np.uint64(slots.shape[0]), len(clocks) - 1
    while slot < capacity:
        if slots[slot, 0] == NOTHING:
            slot += ONE
            continue
        word = slots[slot, 2]
        is_pending = word & INIT_SEEN != NOTHING
        age = age_in(now, word)
        if is_pending:
            clock = clocks[min(task_in(word), last_clock)]
            is_old = clock >= 0 and age_in(clock, word) > message_ticks
        else:
            is_old = age > orphan_ticks
        distance = ((word >> BUCKET_SHIFT) - np.uint64(oldest_bucket)) & BUCKET_MASK
        if not is_old and distance >= np.uint64(expired_buckets):
            if is_pending and age > counts[OLDEST_PENDING]:
                counts[OLDEST_PENDING] = age
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
def oldest_pending(slots: Slots, now: int, roots: IdArray, ages: Integers) -> Any:
    """Fill in the pending roots that are the oldest, oldest first, with their ages; return how many.

    One pass: a root is looked at twice only if it is among the oldest of those before it.
    """
    count, limit = 0, len(roots)
    for slot in range(slots.shape[0]):
        word = slots[slot, 2]
        if slots[slot, 0] == NOTHING or word & INIT_SEEN == NOTHING:
            continue
        age = age_in(now, word)
        if count < limit:
            count += 1
        elif age <= ages[limit - 1]:
            continue
        at = count - 1
        while at > 0 and ages[at - 1] < age:
            roots[at], ages[at] = roots[at - 1], ages[at - 1]
            at -= 1
        roots[at], ages[at] = slots[slot, 0], age
    return count


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
