"""The compiled walks through the whole table: expire, renew orphans, tell ages."""

from typing import Any

import numpy as np

from acktree.acker.kernels.finished_roots import judge, settle
from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.slots import (
    BIRTH_BITS,
    BIRTH_MASK,
    BIRTH_SHIFT,
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
    State,
    age_in,
    remove,
    signed,
    task_in,
)
from acktree.schemas.batch_codec import Integers
from acktree.schemas.ids import IdArray


@compiled
def expire(
    state: State,
    now: int,
    message_ticks: int,
    orphan_ticks: int,
    oldest_birth: int,
    doomed_births: int,
    at: int,
    roots: IdArray,
    tasks: Integers,
) -> Any:
    """Remove what is older than its limit from slot ``at`` on; return where the output was full, or the end.

    Births less than ``doomed_births`` buckets above ``oldest_birth`` go at any age. ``counts[TIMED_OUT]``
    says how many rows of the outputs are filled; OLDEST_* are the greatest ages that stay, in ticks.
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
        born = ((word >> BIRTH_SHIFT) - np.uint64(oldest_birth)) & BIRTH_MASK
        limit = message_ticks if is_pending else orphan_ticks
        if age <= limit and born >= np.uint64(doomed_births):
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
            judge(state, slots[slot, 0])
        remove(state, slot)
    settle(state)
    return signed(slot)


@compiled
def renew_orphans(
    state: State, now: int, hold_ticks: int, oldest_birth: int, old_births: int, birth: int
) -> None:
    """Give a new birth to the orphans that are older than ``hold_ticks`` and were born in old buckets.

    Old are the ``old_births`` buckets from ``oldest_birth`` on.
    """
    slots = state.slots
    for slot in range(slots.shape[0]):
        word = slots[slot, 2]
        if slots[slot, 0] == NOTHING or word & INIT_SEEN or age_in(now, word) <= hold_ticks:
            continue
        born = (word >> BIRTH_SHIFT) & BIRTH_MASK
        if (born - np.uint64(oldest_birth)) & BIRTH_MASK < np.uint64(old_births):
            state.births[born] -= 1
            state.births[birth] += 1
            slots[slot, 2] = (word & ~BIRTH_BITS) | (np.uint64(birth) << BIRTH_SHIFT)
            state.counts[RENEWED_ORPHANS] += 1


def orphan_ages(slots: Slots, now: int) -> Integers:
    """Return the ages in ticks of all orphans, in no order."""
    words = slots[(slots[:, 0] != 0) & (slots[:, 2] < INIT_SEEN), 2]
    ages: Integers = (np.uint64(now) - words & TICK_MASK).astype(np.uint32).astype(np.int32).astype(np.int64)
    return ages
