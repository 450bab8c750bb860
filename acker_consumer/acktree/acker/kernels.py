"""The compiled inner loops of the table: find, fold, remove, expire, rehash.

One slot is three unsigned 64-bit words: root (0 = empty), value, and a word of bit fields: init seen, failed,
spout task (16 bits), birth bucket (14 bits), age tick (32 bits, compared in serial-number arithmetic).
Invariant: linear probing without tombstones, never full; ``counts`` and ``births`` agree with the slots.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.schemas.batch_codec import AckBatch, InitBatch, Integers, compiled
from acktree.schemas.ids import IdArray

Slots = NDArray[np.uint64]
Births = NDArray[np.int32]

SLOT_WORDS = 3
SPOUT_TASKS = 1 << 16
BIRTH_BUCKETS = 1 << 14
NO_LIMIT = 1 << 62

# Rows of ``counts``, what the loops tell beside their results.
ENTRIES, PENDING, ACKED, FAILED, DUPLICATED_INITS, DROPPED_ORPHANS, REFUSED_ORPHANS = range(7)
FOLDED, TIMED_OUT, OLDEST_PENDING, OLDEST_ORPHAN, OLDEST_ROOT, JUDGED, LATE, COUNTS = range(7, 15)

_INIT_SEEN = np.uint64(1 << 63)
_HAS_FAILED = np.uint64(1 << 62)
_TASK_SHIFT, _TASK_MASK = np.uint64(46), np.uint64(SPOUT_TASKS - 1)
_BIRTH_SHIFT, _BIRTH_MASK = np.uint64(32), np.uint64(BIRTH_BUCKETS - 1)
_BIRTH_BITS = np.uint64((BIRTH_BUCKETS - 1) << 32)
_TICK_MASK = np.uint64(0xFFFFFFFF)
_NOTHING, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_AHEAD = 48


class State(NamedTuple):
    """A table's memory; ``seed`` is odd. The judged are roots that have their verdict, in two sets."""

    slots: Slots
    births: Births
    counts: Integers
    seed: np.uint64
    judged: IdArray
    judged_before: IdArray


class Decided(NamedTuple):
    """Where a fold writes its verdicts; the last two only for acks, a row per fail."""

    acked: IdArray
    acked_tasks: Integers
    failed: IdArray
    failed_tasks: Integers
    failed_rows: Integers
    early: NDArray[np.bool_]


@compiled
def _signed(number: Any) -> Any:
    return np.int64(number)


@compiled
def _home(root: np.uint64, seed: np.uint64, capacity: np.uint64) -> np.uint64:
    """Return where a root belongs: the high bits of a hash, so that a rehash walks both tables in order."""
    mixed = (root ^ (root >> _HALF)) * seed
    return ((mixed >> _HALF) * capacity) >> _HALF


@compiled
def _find(slots: Slots, root: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the slot that holds the root, or the empty one where it would go."""
    capacity = np.uint64(slots.shape[0])
    slot = _home(root, seed, capacity)
    while slots[slot, 0] != root and slots[slot, 0] != _NOTHING:
        slot += _ONE
        if slot == capacity:
            slot = _NOTHING
    return slot


@compiled
def _remove(state: State, hole: np.uint64) -> None:
    """Empty a slot and move what probed past it, so that no search ends too early."""
    slots, word = state.slots, state.slots[hole, 2]
    state.counts[ENTRIES] -= 1
    if word & _INIT_SEEN:
        state.counts[PENDING] -= 1
    state.births[(word >> _BIRTH_SHIFT) & _BIRTH_MASK] -= 1
    capacity = np.uint64(slots.shape[0])
    slot = hole
    while True:
        slot += _ONE
        if slot == capacity:
            slot = _NOTHING
        root = slots[slot, 0]
        if root == _NOTHING:
            break
        home = _home(root, state.seed, capacity)
        probed = slot - home if slot >= home else slot + capacity - home
        gap = slot - hole if slot >= hole else slot + capacity - hole
        if probed >= gap:
            slots[hole, 0], slots[hole, 1], slots[hole, 2] = root, slots[slot, 1], slots[slot, 2]
            hole = slot
    slots[hole, 0] = _NOTHING


@compiled
def _insert(state: State, slot: np.uint64, root: np.uint64, value: np.uint64, word: np.uint64) -> None:
    state.slots[slot, 0], state.slots[slot, 1], state.slots[slot, 2] = root, value, word
    state.counts[ENTRIES] += 1
    if word & _INIT_SEEN:
        state.counts[PENDING] += 1
    state.births[(word >> _BIRTH_SHIFT) & _BIRTH_MASK] += 1


@compiled
def _seek(judged: IdArray, root: np.uint64, seed: np.uint64) -> np.uint64:
    """Return where a set of roots holds the root, or the empty place where it would go."""
    capacity = np.uint64(judged.shape[0])
    place = _home(root, seed, capacity)
    while judged[place] != root and judged[place] != _NOTHING:
        place += _ONE
        if place == capacity:
            place = _NOTHING
    return place


@compiled
def _judge(state: State, root: np.uint64) -> None:
    """Remember that a root has its verdict; a full set takes no more."""
    place = _seek(state.judged, root, state.seed)
    if state.judged[place] == _NOTHING and state.counts[JUDGED] + 1 < len(state.judged):
        state.judged[place] = root
        state.counts[JUDGED] += 1


@compiled
def _is_judged(state: State, root: np.uint64) -> Any:
    if state.judged[_seek(state.judged, root, state.seed)] == root:
        return True
    return state.judged_before[_seek(state.judged_before, root, state.seed)] == root


@compiled
def _is_crammed(state: State, rows: int) -> Any:
    """Tell whether so many more verdicts would make searches in the judged slow."""
    return 4 * (state.counts[JUDGED] + rows) > 3 * len(state.judged)


@compiled
def copy_judged(old: IdArray, new: IdArray, seed: np.uint64) -> None:
    """Put every root of a set into another, which is large enough."""
    for place in range(len(old)):
        if old[place] != _NOTHING:
            new[_seek(new, old[place], seed)] = old[place]


@compiled
def _task(word: np.uint64) -> Any:
    return _signed((word >> _TASK_SHIFT) & _TASK_MASK)


@compiled
def _age(now: int, word: np.uint64) -> Any:
    """Return how many ticks ago the entry's age was set; negative if that is still to come."""
    return _signed(np.int32(np.uint32((np.uint64(now) - word) & _TICK_MASK)))


@compiled
def _touch(slots: Slots, seed: np.uint64, rows: IdArray, start: int, end: int) -> np.uint64:
    """Read the homes of the roots in rows[start:end], so that the cache misses of many roots overlap."""
    capacity = np.uint64(slots.shape[0])
    seen = _NOTHING
    for row in range(start, end):
        seen ^= slots[_home(rows[row, 0], seed, capacity), 0]
    return seen


@compiled
def fold_inits(
    state: State, room: int, birth: int, ticks: Integers, batch: InitBatch, at: int, out: Decided
) -> tuple[int, np.uint64]:
    """Fold the init records from ``at`` on; return the first that needs a larger table (or their number).

    ``counts[ACKED]`` and ``counts[FAILED]`` say how many rows of the outputs are filled.
    """
    slots, counts, seen, touched = state.slots, state.counts, _NOTHING, _signed(0)
    for record in range(at, len(batch.faults)):
        if batch.faults[record] != 0:
            continue
        first, behind, task = batch.starts[record], batch.starts[record + 1], batch.tasks[record]
        if counts[ENTRIES] + behind - first > room or _is_crammed(state, behind - first):
            return record, seen
        fresh = _INIT_SEEN | (np.uint64(task) << _TASK_SHIFT) | (np.uint64(ticks[record]) & _TICK_MASK)
        born = np.uint64(birth) << _BIRTH_SHIFT
        counts[FOLDED] += behind - first
        for row in range(first, behind):
            if row >= touched:
                touched = min(_signed(row + _AHEAD), batch.starts[-1])
                seen ^= _touch(slots, state.seed, batch.entries, row, touched)
            root, value = batch.entries[row, 0], batch.entries[row, 1]
            slot = _find(slots, root, state.seed)
            is_new = slots[slot, 0] == _NOTHING
            word = _NOTHING if is_new else slots[slot, 2]
            if word & _INIT_SEEN:
                counts[DUPLICATED_INITS] += 1
                continue
            if not is_new:
                value ^= slots[slot, 1]
            if word & _HAS_FAILED:
                out.failed[counts[FAILED]], out.failed_tasks[counts[FAILED]] = root, task
                counts[FAILED] += 1
            elif value == _NOTHING:
                out.acked[counts[ACKED]], out.acked_tasks[counts[ACKED]] = root, task
                counts[ACKED] += 1
            elif is_new:
                _insert(state, slot, root, value, fresh | born)
                continue
            else:
                slots[slot, 1], slots[slot, 2] = value, fresh | (word & _BIRTH_BITS)
                counts[PENDING] += 1
                continue
            _judge(state, root)
            if not is_new:
                _remove(state, slot)
    return len(batch.faults), seen


@compiled
def fold_acks(
    state: State,
    room: int,
    may_insert: bool,
    birth: int,
    ticks: Integers,
    batch: AckBatch,
    at: int,
    out: Decided,
) -> tuple[int, np.uint64]:
    """Fold the ack records from ``at`` on: fails, acks, resets of each; return as ``fold_inits`` does.

    ``out.failed_rows`` names the row of the fail behind a failed root; ``out.early[row]`` is set for the fail
    of a root whose init has not been seen. Without ``may_insert`` an unknown root is counted, not kept.
    """
    slots, counts, seen, touched = state.slots, state.counts, _NOTHING, _signed(0)
    for record in range(at, len(batch.faults)):
        if batch.faults[record] != 0:
            continue
        first, behind = batch.ack_starts[record], batch.ack_starts[record + 1]
        first_fail, behind_fails = batch.fail_starts[record], batch.fail_starts[record + 1]
        first_reset, behind_resets = batch.reset_starts[record], batch.reset_starts[record + 1]
        rows = behind - first + behind_fails - first_fail + behind_resets - first_reset
        if (may_insert and counts[ENTRIES] + rows > room) or _is_crammed(state, rows):
            return record, seen
        counts[FOLDED] += rows
        orphan = (np.uint64(birth) << _BIRTH_SHIFT) | (np.uint64(ticks[record]) & _TICK_MASK)
        for row in range(first_fail, behind_fails):
            _fold_fail(state, may_insert, orphan, row, batch.fail_roots[row], out)
        for row in range(first, behind):
            if row >= touched:
                touched = min(_signed(row + _AHEAD), batch.ack_starts[-1])
                seen ^= _touch(slots, state.seed, batch.acks, row, touched)
            root, value = batch.acks[row, 0], batch.acks[row, 1]
            slot = _find(slots, root, state.seed)
            if slots[slot, 0] == _NOTHING:
                _insert_orphan(state, may_insert, slot, root, value, orphan)
                continue
            value ^= slots[slot, 1]
            if value == _NOTHING and slots[slot, 2] & _INIT_SEEN:
                out.acked[counts[ACKED]], out.acked_tasks[counts[ACKED]] = root, _task(slots[slot, 2])
                counts[ACKED] += 1
                _judge(state, root)
                _remove(state, slot)
            else:
                slots[slot, 1] = value
        for row in range(first_reset, behind_resets):
            _fold_reset(state, may_insert, orphan, ticks[record], batch.resets[row])
    return len(batch.faults), seen


@compiled
def _insert_orphan(
    state: State, may_insert: bool, slot: np.uint64, root: np.uint64, value: np.uint64, word: np.uint64
) -> Any:
    """Keep what came before its init, and tell whether it was kept; what comes after a verdict is not."""
    if _is_judged(state, root):
        state.counts[LATE] += 1
        return False
    if not may_insert:
        state.counts[REFUSED_ORPHANS] += 1
        return False
    _insert(state, slot, root, value, word)
    return True


@compiled
def _fold_fail(
    state: State, may_insert: bool, orphan: np.uint64, row: int, root: np.uint64, out: Decided
) -> None:
    """Mark a root failed: a verdict if its init has been seen, else to be remembered until it comes."""
    slot, counts = _find(state.slots, root, state.seed), state.counts
    word = state.slots[slot, 2]
    if state.slots[slot, 0] == _NOTHING:
        out.early[row] = _insert_orphan(state, may_insert, slot, root, _NOTHING, orphan | _HAS_FAILED)
    elif word & _INIT_SEEN:
        out.failed[counts[FAILED]], out.failed_tasks[counts[FAILED]] = root, _task(word)
        out.failed_rows[counts[FAILED]] = row
        counts[FAILED] += 1
        _judge(state, root)
        _remove(state, slot)
    elif not word & _HAS_FAILED:
        state.slots[slot, 2] = word | _HAS_FAILED
        out.early[row] = True


@compiled
def _fold_reset(state: State, may_insert: bool, orphan: np.uint64, tick: int, root: np.uint64) -> None:
    """Give a root a new age, never an older one; the birth stays."""
    slot = _find(state.slots, root, state.seed)
    word = state.slots[slot, 2]
    if state.slots[slot, 0] == _NOTHING:
        _insert_orphan(state, may_insert, slot, root, _NOTHING, orphan)
    elif _age(tick, word) > 0:
        state.slots[slot, 2] = (word & ~_TICK_MASK) | (np.uint64(tick) & _TICK_MASK)


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
        if slots[slot, 0] == _NOTHING:
            slot += _ONE
            continue
        word = slots[slot, 2]
        is_pending = word & _INIT_SEEN != _NOTHING
        age = _age(now, word)
        born = ((word >> _BIRTH_SHIFT) - np.uint64(oldest_birth)) & _BIRTH_MASK
        limit = message_ticks if is_pending else orphan_ticks
        if age <= limit and born >= np.uint64(doomed_births):
            if is_pending and age > counts[OLDEST_PENDING]:
                counts[OLDEST_PENDING], counts[OLDEST_ROOT] = age, _signed(slots[slot, 0])
            elif not is_pending and age > counts[OLDEST_ORPHAN]:
                counts[OLDEST_ORPHAN] = age
            slot += _ONE
            continue
        if not is_pending:
            counts[DROPPED_ORPHANS] += 1
        elif counts[TIMED_OUT] == len(roots):
            break
        else:
            roots[counts[TIMED_OUT]], tasks[counts[TIMED_OUT]] = slots[slot, 0], _task(word)
            counts[TIMED_OUT] += 1
            _judge(state, slots[slot, 0])
        _remove(state, slot)
    return _signed(slot)


@compiled
def rehash(old: Slots, new: Slots, seed: np.uint64) -> None:
    """Put every entry of old into new, which is empty and large enough."""
    for row in range(old.shape[0]):
        root = old[row, 0]
        if root != _NOTHING:
            slot = _find(new, root, seed)
            new[slot, 0], new[slot, 1], new[slot, 2] = root, old[row, 1], old[row, 2]


@compiled
def find(slots: Slots, root: np.uint64, seed: np.uint64) -> Any:
    """Return the slot of a root, -1 if it has none."""
    slot = _find(slots, root, seed)
    return _signed(slot) if slots[slot, 0] == root else _signed(-1)


def orphan_ages(slots: Slots, now: int) -> Integers:
    """Return the ages in ticks of all orphans, in no order."""
    words = slots[(slots[:, 0] != 0) & (slots[:, 2] < _INIT_SEEN), 2]
    ages: Integers = (np.uint64(now) - words & _TICK_MASK).astype(np.uint32).astype(np.int32).astype(np.int64)
    return ages
