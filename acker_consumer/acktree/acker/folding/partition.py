"""Folds the decoded batches of one acker partition: its table, log clock, cut and expiry.

Invariant: the roots it finishes are a function of the records folded since the cut it started from and of
the log times it saw. Pure: no Kafka, no clock; a batch goes in, finished trees come out.
"""

from math import inf

import numpy as np

from acktree.acker.folding.alignment import TopicAlignment
from acktree.acker.folding.clock import UNKNOWN_MS, LogClock, TopicClock, Watermark
from acktree.acker.folding.cut import CutBuckets, Positions
from acktree.acker.folding.expiry import AgeLimits, Expiry
from acktree.acker.folding.table import MAX_ENTRIES, TICK_MS, FinishedTrees, Table, TimedOut
from acktree.wire.batch_codec import AckBatch, InitBatch, Integers


class Partition:
    """The state of one acker partition, created from a cut whenever the partition is taken over."""

    def __init__(
        self, start: Positions, limits: AgeLimits, seed: int, max_entries: int = MAX_ENTRIES
    ) -> None:
        self.table = Table(seed, max_entries)
        self.clock = LogClock(TopicClock(start.inits), TopicClock(start.acks))
        self.alignment = TopicAlignment()
        self.buckets = CutBuckets(self.table.bucket_counts, start)
        self._expiry = Expiry(limits)
        self._rotated_ms = 0

    @property
    def positions(self) -> Positions:
        """Next offsets to fold."""
        return Positions(self.clock.inits.next_offset, self.clock.acks.next_offset)

    @property
    def cut(self) -> Positions:
        """The positions from which a new owner must fold."""
        return self.buckets.cut(self.positions)

    @property
    def oldest_age_s(self) -> float:
        """Time since the oldest entry was created, 0 if there is none; a reset does not make it younger."""
        created_ms = self.buckets.oldest_entry_ms
        return max(0, self.clock.time_ms - created_ms) / 1000 if created_ms != UNKNOWN_MS else 0.0

    def oldest_pending(self, limit: int) -> list[tuple[float, int]]:
        """Return the age in seconds, since its last message, and the id of the oldest pending roots.

        The oldest first. Cost: a scan of the table.
        """
        found = self.table.oldest_pending(max(0, self.clock.time_ms) // TICK_MS, limit)
        return [(max(0, age_ticks) * TICK_MS / 1000, root) for root, age_ticks in found]

    @property
    def may_time_out(self) -> bool:
        """Whether a pending root may be older than the message timeout by log time."""
        return self._expiry.may_time_out

    def change_limits(self, limits: AgeLimits) -> None:
        """Apply the limits of a newer topology version."""
        self._expiry.change(limits)

    def fold_inits(
        self, batch: InitBatch, append_ms: Integers, next_offset: int, wall_ms: int
    ) -> FinishedTrees:
        """Fold AckInit records appended at ``append_ms``; ``next_offset`` is behind the last of them."""
        ticks, bucket = self._ticks_and_bucket(append_ms, wall_ms)
        finished = self.table.fold_inits(batch, ticks, bucket)
        self.clock.inits.fold(append_ms, next_offset, wall_ms)
        return finished

    def fold_acks(
        self, batch: AckBatch, append_ms: Integers, next_offset: int, wall_ms: int
    ) -> FinishedTrees:
        """Fold Ack records, as ``fold_inits`` does."""
        # Life of an ack, step 9.
        ticks, bucket = self._ticks_and_bucket(append_ms, wall_ms)
        finished = self.table.fold_acks(batch, ticks, bucket)
        self.clock.acks.fold(append_ms, next_offset, wall_ms)
        return finished

    def go_back(self, clock: TopicClock, next_offset: int) -> None:
        """Continue at an earlier offset of one topic, whose log has lost its end; what was folded is kept."""
        clock.go_back(next_offset)
        self.buckets.go_back(self.positions)

    def observe(self, inits: Watermark, acks: Watermark) -> None:
        """Record where both logs ended."""
        self.clock.inits.observe(inits)
        self.clock.acks.observe(acks)

    def expire(self, wall_ms: int, clocks_ms: Integers | None = None) -> TimedOut | None:
        """Return the roots that time out, None if no scan was due.

        ``clocks_ms``: the time by which each task's roots age (``WorkClock.clocks``); default: log time.
        """
        now_ms, limits = self.clock.time_ms, self._expiry.limits
        self._expiry.advance(now_ms)
        if now_ms - self._rotated_ms >= min(limits.orphan_ms, limits.life_ms):
            self.table.clear_finished()
            self._rotated_ms = now_ms
        expired = self._count_older(limits.life_ms)
        has_old_orphans = self.table.orphans > 0 and self._count_older(limits.hold_ms) > 0
        clocks = None if clocks_ms is None else np.where(clocks_ms < 0, -1, clocks_ms // TICK_MS)
        newest_ms = now_ms if clocks_ms is None else int(clocks_ms.max())
        if not self._expiry.is_due(newest_ms, expired > 0 or has_old_orphans):
            return None
        timed_out = self.table.expire(
            now_ms // TICK_MS, limits.message_ticks, limits.orphan_ticks, self.buckets.oldest, expired, clocks
        )
        if has_old_orphans:
            self._renew_orphans(wall_ms)
        ages = (self.table.oldest_pending_ticks, self.table.oldest_orphan_ticks)
        self._expiry.scanned(*(inf if age is None else now_ms - age * TICK_MS for age in ages))
        return timed_out

    def _count_older(self, limit_ms: float) -> int:
        """Return how many buckets, from the oldest on, have only entries older than a limit."""
        return self.buckets.count_older(int(self.clock.time_ms - limit_ms)) if limit_ms < inf else 0

    def _renew_orphans(self, wall_ms: int) -> None:
        """Move orphans that have held the cut long enough to the current bucket."""
        now_ms, limits = self.clock.time_ms, self._expiry.limits
        bucket = self.buckets.open(wall_ms, self.positions, now_ms)
        old = self._count_older(limits.hold_ms)
        self.table.renew_orphans(now_ms // TICK_MS, limits.hold_ticks, self.buckets.oldest, old, bucket)

    def _ticks_and_bucket(self, append_ms: Integers, wall_ms: int) -> tuple[Integers, int]:
        """Return the age ticks of a batch's records, and the bucket of the entries it creates."""
        ages_ms = self.clock.ages_of(append_ms, wall_ms)
        bucket = self.buckets.open(wall_ms, self.positions, int(ages_ms.max()))
        self._expiry.records_folded(int(ages_ms.min()))
        return ages_ms // TICK_MS, bucket
