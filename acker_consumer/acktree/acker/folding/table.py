"""The acker's core: XOR of edges per root in one flat table, 24 bytes a slot, no Python object per root.

Invariant: the table is a function of the records folded, in the order per topic, and of the calls to
``expire``. It knows no Kafka and no clock: ticks (of TICK_MS) and buckets are arguments.
Cost: 34 to 44 bytes a root; a fold is one cache miss; growth copies the table once per quarter more roots.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from acktree.acker.folding.finished import MAX_FINISHED, FinishedRoots
from acktree.acker.folding.reasons import Reason, Reasons, reason_of
from acktree.acker.kernels import fold, slots, sweep
from acktree.acker.kernels.fold import FoldOutput
from acktree.acker.kernels.slots import BUCKETS, NO_LIMIT, SLOT_WORDS, BucketCounts, Slots, TableState
from acktree.wire.batch_codec import AckBatch, InitBatch, Integers
from acktree.wire.ids import MASK, IdArray

TICK_MS = 10
MAX_ENTRIES = 1 << 26
LEAST_SLOTS = 1024
FULL, ROOMY, SPARSE = 0.7, 0.55, 0.4
EXPIRE_ROWS = 1 << 16
_NO_CLOCK = np.array([-1], np.int64)


class FailedRoot(NamedTuple):
    root: int
    spout_task: int
    reason: Reason


@dataclass(frozen=True, slots=True, eq=False)
class FinishedTrees:
    """The roots that one fold finished: ``acked[i]`` belongs to spout task ``acked_tasks[i]``."""

    acked: IdArray
    acked_tasks: Integers
    failed: tuple[FailedRoot, ...] = ()


class TimedOut(NamedTuple):
    """Roots that timed out, with their spout tasks."""

    roots: IdArray
    tasks: Integers


class Entry(NamedTuple):
    """The table's entry for one root, for tests and for tracing."""

    value: int
    init_seen: bool
    has_failed: bool
    spout_task: int
    bucket: int
    tick: int


class Table:
    """Entries of one acker partition; ``bucket_counts[b]`` counts those of bucket b (modulo BUCKETS)."""

    def __init__(self, seed: int, max_entries: int = MAX_ENTRIES, max_finished: int = MAX_FINISHED) -> None:
        """Make an empty table; ``seed`` spreads the roots, ``max_entries`` bounds the orphans.

        At the bound the oldest orphans are evicted; if pending roots fill it, new orphans are refused. A
        pending root is never dropped or refused: their number is bounded by the spouts' max pending.
        """
        self._seed = np.uint64((seed | 1) & MASK)
        self._max_entries = max_entries
        self.slots: Slots = np.zeros((LEAST_SLOTS, SLOT_WORDS), np.uint64)
        self.counts: Integers = np.zeros(slots.COUNTS, np.int64)
        self.counts[[slots.OLDEST_PENDING, slots.OLDEST_ORPHAN]] = -NO_LIMIT
        self.finished = FinishedRoots(self.counts, self._seed, max_finished)
        self._reasons = Reasons()
        self.bucket_counts: BucketCounts = np.zeros(BUCKETS, np.int32)

    def __len__(self) -> int:
        return int(self.counts[slots.ENTRIES])

    @property
    def pending(self) -> int:
        return int(self.counts[slots.PENDING])

    @property
    def orphans(self) -> int:
        return len(self) - self.pending

    @property
    def folded(self) -> int:
        """Entries of records folded since the table was made."""
        return int(self.counts[slots.FOLDED])

    @property
    def duplicated_inits(self) -> int:
        return int(self.counts[slots.DUPLICATED_INITS])

    @property
    def dropped_orphans(self) -> int:
        return int(self.counts[slots.DROPPED_ORPHANS])

    @property
    def refused_orphans(self) -> int:
        return int(self.counts[slots.REFUSED_ORPHANS])

    @property
    def renewed_orphans(self) -> int:
        return int(self.counts[slots.RENEWED_ORPHANS])

    @property
    def late(self) -> int:
        """Acks, fails and resets of finished roots."""
        return int(self.counts[slots.LATE])

    @property
    def nbytes(self) -> int:
        return self.slots.nbytes + self.bucket_counts.nbytes + self.finished.nbytes

    @property
    def oldest_pending_ticks(self) -> int | None:
        """Age of the oldest pending root at the last scan by ``expire``, None if there was none."""
        ticks = int(self.counts[slots.OLDEST_PENDING])
        return ticks if ticks > -NO_LIMIT else None

    @property
    def oldest_orphan_ticks(self) -> int | None:
        ticks = int(self.counts[slots.OLDEST_ORPHAN])
        return ticks if ticks > -NO_LIMIT else None

    def fold_inits(self, batch: InitBatch, ticks: Integers, bucket: int) -> FinishedTrees:
        """Fold AckInits: the first init of a root sets its spout task and folds, any other is counted.

        Args:
            ticks: log time of each record, int64.
            bucket: bucket of the entries created here.
        """
        out = _outputs(int(batch.starts[-1]), int(batch.starts[-1]))
        self.counts[[slots.ACKED, slots.FAILED]] = 0
        at, bucket = 0, bucket % BUCKETS
        while True:
            at = fold.fold_inits(self.state, self._room, bucket, ticks, batch, at, out)
            if at == len(batch.faults):
                break
            rows = int(batch.starts[at + 1] - batch.starts[at])
            self.reserve(rows)
            self.finished.reserve(rows)
        count = int(self.counts[slots.FAILED])
        failed = zip(out.failed[:count].tolist(), out.failed_tasks[:count].tolist(), strict=True)
        return self._finished_trees(
            out, [FailedRoot(root, task, self._reasons.pop(root)) for root, task in failed]
        )

    def fold_acks(self, batch: AckBatch, ticks: Integers, bucket: int) -> FinishedTrees:
        """Fold Acks: of each record the fails, then the acks, then the resets."""
        # Life of an ack, step 9.
        out = _outputs(int(batch.ack_starts[-1]), int(batch.fail_starts[-1]))
        self.counts[[slots.ACKED, slots.FAILED]] = 0
        at, bucket, may_insert = 0, bucket % BUCKETS, True
        while True:
            room = min(self._room, self._max_entries)
            at = fold.fold_acks(self.state, room, may_insert, bucket, ticks, batch, at, out)
            if at == len(batch.faults):
                break
            rows = _rows(batch, at)
            may_insert = self._make_room(rows, int(ticks[at]))
            self.finished.reserve(rows)
        count = int(self.counts[slots.FAILED])
        columns = (out.failed[:count], out.failed_tasks[:count], out.failed_rows[:count])
        failed = zip(*(column.tolist() for column in columns), strict=True)
        for row in np.flatnonzero(out.early).tolist():
            self._reasons.add(int(batch.fail_roots[row]), reason_of(batch, row))
        return self._finished_trees(
            out, [FailedRoot(root, task, reason_of(batch, row)) for root, task, row in failed]
        )

    def expire(
        self,
        now_tick: int,
        message_ticks: int = NO_LIMIT,
        orphan_ticks: int = NO_LIMIT,
        oldest_bucket: int = 0,
        expired_buckets: int = 0,
        clocks: Integers | None = None,
    ) -> TimedOut:
        """Remove and return pending roots over ``message_ticks`` old; drop orphans over ``orphan_ticks``.

        ``clocks``: the tick by which each spout task's roots age, see sweep.expire; default: ``now_tick``.

        Entries of the ``expired_buckets`` buckets from ``oldest_bucket`` on are removed at any age.
        """
        # Life of an ack, step 10.
        assert 0 <= expired_buckets < BUCKETS, expired_buckets
        if clocks is None:
            clocks = np.array([now_tick], np.int64)
        self.counts[[slots.OLDEST_PENDING, slots.OLDEST_ORPHAN]] = -NO_LIMIT
        parts, at = [], 0
        while at < len(self.slots):
            roots = np.empty(min(EXPIRE_ROWS, len(self)), np.uint64)
            tasks = np.empty(len(roots), np.int64)
            self.counts[slots.TIMED_OUT] = 0
            self.finished.reserve(len(roots))
            oldest = oldest_bucket % BUCKETS
            at = sweep.expire(
                self.state,
                now_tick,
                clocks,
                message_ticks,
                orphan_ticks,
                oldest,
                expired_buckets,
                at,
                roots,
                tasks,
            )
            count = int(self.counts[slots.TIMED_OUT])
            parts.append((roots[:count], tasks[:count]))
        self._shrink()
        return TimedOut(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def renew_orphans(
        self, now_tick: int, hold_ticks: int, oldest_bucket: int, old_buckets: int, bucket: int
    ) -> None:
        """Move orphans older than ``hold_ticks`` to ``bucket``, as if they had been created there.

        Only those of the ``old_buckets`` buckets from ``oldest_bucket`` on.
        """
        oldest, bucket = oldest_bucket % BUCKETS, bucket % BUCKETS
        sweep.renew_orphans(self.state, now_tick, hold_ticks, oldest, old_buckets, bucket)

    def oldest_pending(self, now_tick: int, limit: int) -> list[tuple[int, int]]:
        """Scan the table for the oldest pending roots; return each with its age in ticks, oldest first."""
        roots, ages = np.empty(limit, np.uint64), np.empty(limit, np.int64)
        count = sweep.oldest_pending(self.slots, now_tick, roots, ages)
        return list(zip(roots[:count].tolist(), ages[:count].tolist(), strict=True))

    def clear_finished(self) -> None:
        """Drop the roots finished before the last call; see FinishedRoots."""
        self.finished.rotate()

    def entry(self, root: int) -> Entry | None:
        """Return the entry of a root, None if it has none."""
        slot = slots.slot_of(self.slots, np.uint64(root), self._seed)
        if slot < 0:
            return None
        value, word = int(self.slots[slot, 1]), int(self.slots[slot, 2])
        task, bucket = (word >> 46 & slots.SPOUT_TASKS - 1) if word >> 63 else 0, word >> 32 & BUCKETS - 1
        return Entry(value, bool(word >> 63), bool(word >> 62 & 1), task, bucket, word & 0xFFFFFFFF)

    def reserve(self, rows: int) -> None:
        """Make room for more roots."""
        if len(self) + rows > self._room:
            self._resize(int((len(self) + rows) / ROOMY))

    @property
    def _room(self) -> int:
        return int(len(self.slots) * FULL)

    @property
    def state(self) -> TableState:
        finished = self.finished
        return TableState(
            self.slots,
            self.bucket_counts,
            self.counts,
            self._seed,
            finished.young,
            finished.old,
            finished.buffered,
        )

    def _finished_trees(self, out: FoldOutput, failed: list[FailedRoot]) -> FinishedTrees:
        count = int(self.counts[slots.ACKED])
        self._shrink()
        return FinishedTrees(out.acked[:count], out.acked_tasks[:count], tuple(failed))

    def _make_room(self, rows: int, now_tick: int) -> bool:
        """Make room for orphans within the bound; return False if they must be refused."""
        if len(self) + rows > self._max_entries and self.orphans:
            self._evict_orphans(rows, now_tick)
        if len(self) + rows > self._max_entries:
            return False
        self.reserve(rows)
        return True

    def _evict_orphans(self, rows: int, now_tick: int) -> None:
        """Drop the oldest orphans, at least half of them, so that eviction does not run for every record."""
        ages = sweep.orphan_ages(self.slots, now_tick)
        wanted = min(len(ages), max(rows, len(ages) // 2, 1))
        limit = int(np.partition(ages, len(ages) - wanted)[len(ages) - wanted]) - 1
        none, no_tasks = np.empty(0, np.uint64), np.empty(0, np.int64)
        sweep.expire(self.state, now_tick, _NO_CLOCK, NO_LIMIT, limit, 0, 0, 0, none, no_tasks)

    def _shrink(self) -> None:
        if len(self.slots) > LEAST_SLOTS and len(self) < len(self.slots) * SPARSE:
            self._resize(int(len(self) / ROOMY))

    def _resize(self, capacity: int) -> None:
        larger: Slots = np.zeros((max(capacity, LEAST_SLOTS), SLOT_WORDS), np.uint64)
        slots.rehash(self.slots, larger, self._seed)
        self.slots = larger


def _outputs(acks: int, fails: int) -> FoldOutput:
    return FoldOutput(
        acked=np.empty(acks, np.uint64),
        acked_tasks=np.empty(acks, np.int64),
        failed=np.empty(fails, np.uint64),
        failed_tasks=np.empty(fails, np.int64),
        failed_rows=np.empty(fails, np.int64),
        early=np.zeros(fails, np.bool_),
    )


def _rows(batch: AckBatch, record: int) -> int:
    """Return how many roots a record names, each of which may become an orphan."""
    columns = (batch.ack_starts, batch.fail_starts, batch.reset_starts)
    return sum(int(starts[record + 1] - starts[record]) for starts in columns)
