"""The compiled folds of init and ack records into the table; they output the roots that finish.

Cost: one cache miss a root, and those of many roots overlap: a slot is prefetched _ROWS_AHEAD rows early.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.acker.kernels.finished_roots import add_finished, insert_buffered, is_finished, is_nearly_full
from acktree.acker.kernels.machine_code import compiled
from acktree.acker.kernels.slots import (
    ACKED,
    BUCKET_BITS,
    BUCKET_SHIFT,
    DUPLICATED_INITS,
    ENTRIES,
    FAILED,
    FOLDED,
    HAS_FAILED,
    INIT_SEEN,
    LATE,
    NOTHING,
    PENDING,
    REFUSED_ORPHANS,
    TASK_SHIFT,
    TICK_MASK,
    WAS_RESET,
    TableState,
    age_in,
    fetch,
    find_slot,
    insert,
    remove,
    task_in,
)
from acktree.wire.batch_codec import AckBatch, InitBatch, Integers
from acktree.wire.ids import IdArray

_ROWS_AHEAD = 48


class FoldOutput(NamedTuple):
    """The arrays to which a fold writes finished roots; the last two for acks, ``early`` a row per fail."""

    acked: IdArray
    acked_tasks: Integers
    failed: IdArray
    failed_tasks: Integers
    failed_rows: Integers
    early: NDArray[np.bool_]


@compiled
def fold_inits(
    state: TableState, room: int, bucket: int, ticks: Integers, batch: InitBatch, at: int, out: FoldOutput
) -> int:
    """Fold the init records from ``at`` on; return the first that needs a larger table (or the record count).

    ``counts[ACKED]`` and ``counts[FAILED]`` say how many rows of the outputs are filled.
    """
    slots, counts, last = state.slots, state.counts, batch.starts[-1] - 1
    done = len(batch.faults)
    for record in range(at, done):
        if batch.faults[record] != 0:
            continue
        first, behind, task = batch.starts[record], batch.starts[record + 1], batch.tasks[record]
        if counts[ENTRIES] + behind - first > room or is_nearly_full(state, behind - first):
            done = record
            break
        fresh = INIT_SEEN | (np.uint64(task) << TASK_SHIFT) | (np.uint64(ticks[record]) & TICK_MASK)
        bucket_bits = np.uint64(bucket) << BUCKET_SHIFT
        counts[FOLDED] += behind - first
        for row in range(first, behind):
            fetch(slots, batch.entries[min(row + _ROWS_AHEAD, last), 0], state.seed)
            root, value = batch.entries[row, 0], batch.entries[row, 1]
            slot = find_slot(slots, root, state.seed)
            is_new = slots[slot, 0] == NOTHING
            word = NOTHING if is_new else slots[slot, 2]
            if word & INIT_SEEN:
                counts[DUPLICATED_INITS] += 1
                continue
            if not is_new:
                value ^= slots[slot, 1]
            if word & HAS_FAILED:
                out.failed[counts[FAILED]], out.failed_tasks[counts[FAILED]] = root, task
                counts[FAILED] += 1
            elif value == NOTHING:
                out.acked[counts[ACKED]], out.acked_tasks[counts[ACKED]] = root, task
                counts[ACKED] += 1
            elif is_new:
                insert(state, slot, root, value, fresh | bucket_bits)
                continue
            else:
                if word & WAS_RESET and age_in(ticks[record], word) < 0:
                    slots[slot, 2] = (fresh & ~TICK_MASK) | (word & (BUCKET_BITS | TICK_MASK))
                else:
                    slots[slot, 2] = fresh | (word & BUCKET_BITS)
                slots[slot, 1] = value
                counts[PENDING] += 1
                continue
            add_finished(state, root)
            if not is_new:
                remove(state, slot)
    insert_buffered(state)
    return done


@compiled
def fold_acks(
    state: TableState,
    room: int,
    may_insert: bool,
    bucket: int,
    ticks: Integers,
    batch: AckBatch,
    at: int,
    out: FoldOutput,
) -> int:
    """Fold the ack records from ``at`` on: fails, acks, resets of each; return as ``fold_inits`` does.

    ``out.failed_rows`` names the row of the fail behind a failed root; ``out.early[row]`` is set for the fail
    of a root whose init has not been seen. Without ``may_insert`` an unknown root is counted, not kept.
    """
    slots, counts, last = state.slots, state.counts, batch.ack_starts[-1] - 1
    done = len(batch.faults)
    for record in range(at, done):
        if batch.faults[record] != 0:
            continue
        first, behind = batch.ack_starts[record], batch.ack_starts[record + 1]
        first_fail, behind_fails = batch.fail_starts[record], batch.fail_starts[record + 1]
        first_reset, behind_resets = batch.reset_starts[record], batch.reset_starts[record + 1]
        rows = behind - first + behind_fails - first_fail + behind_resets - first_reset
        if (may_insert and counts[ENTRIES] + rows > room) or is_nearly_full(state, rows):
            done = record
            break
        counts[FOLDED] += rows
        orphan = (np.uint64(bucket) << BUCKET_SHIFT) | (np.uint64(ticks[record]) & TICK_MASK)
        for row in range(first_fail, behind_fails):
            _fold_fail(state, may_insert, orphan, row, batch.fail_roots[row], out)
        for row in range(first, behind):
            fetch(slots, batch.acks[min(row + _ROWS_AHEAD, last), 0], state.seed)
            root, value = batch.acks[row, 0], batch.acks[row, 1]
            slot = find_slot(slots, root, state.seed)
            if slots[slot, 0] == NOTHING:
                _insert_orphan(state, may_insert, slot, root, value, orphan)
                continue
            value ^= slots[slot, 1]
            if value == NOTHING and slots[slot, 2] & INIT_SEEN:
                out.acked[counts[ACKED]], out.acked_tasks[counts[ACKED]] = root, task_in(slots[slot, 2])
                counts[ACKED] += 1
                add_finished(state, root)
                remove(state, slot)
            else:
                slots[slot, 1] = value
                word = slots[slot, 2]
                if word & INIT_SEEN and age_in(ticks[record], word) > 0:
                    slots[slot, 2] = (word & ~TICK_MASK) | (np.uint64(ticks[record]) & TICK_MASK)
        for row in range(first_reset, behind_resets):
            _fold_reset(state, may_insert, orphan, ticks[record], batch.resets[row])
    insert_buffered(state)
    return done


@compiled
def _insert_orphan(
    state: TableState, may_insert: bool, slot: np.uint64, root: np.uint64, value: np.uint64, word: np.uint64
) -> Any:
    """Keep a message that came before its init; return whether it was kept: a late one is not."""
    if is_finished(state, root):
        state.counts[LATE] += 1
    elif not may_insert:
        state.counts[REFUSED_ORPHANS] += 1
    else:
        insert(state, slot, root, value, word)
        return True
    return False


@compiled
def _fold_fail(
    state: TableState, may_insert: bool, orphan: np.uint64, row: int, root: np.uint64, out: FoldOutput
) -> None:
    """Fail a root: immediately if its init has been seen, else set a flag that waits for the init."""
    slot, counts = find_slot(state.slots, root, state.seed), state.counts
    word = state.slots[slot, 2]
    if state.slots[slot, 0] == NOTHING:
        out.early[row] = _insert_orphan(state, may_insert, slot, root, NOTHING, orphan | HAS_FAILED)
    elif word & INIT_SEEN:
        out.failed[counts[FAILED]], out.failed_tasks[counts[FAILED]] = root, task_in(word)
        out.failed_rows[counts[FAILED]] = row
        counts[FAILED] += 1
        add_finished(state, root)
        remove(state, slot)
    elif not word & HAS_FAILED:
        state.slots[slot, 2] = word | HAS_FAILED
        out.early[row] = True


@compiled
def _fold_reset(state: TableState, may_insert: bool, orphan: np.uint64, tick: int, root: np.uint64) -> None:
    """Reset the age of a root, never to an older one, even before its init is folded; its bucket stays."""
    slot = find_slot(state.slots, root, state.seed)
    word = state.slots[slot, 2]
    if state.slots[slot, 0] == NOTHING:
        _insert_orphan(state, may_insert, slot, root, NOTHING, orphan | WAS_RESET)
        return
    if age_in(tick, word) > 0:
        word = (word & ~TICK_MASK) | (np.uint64(tick) & TICK_MASK)
    state.slots[slot, 2] = word if word & INIT_SEEN else word | WAS_RESET
