"""One acker partition: its table, log clock, birth buckets and expiry, folding decoded batches.

Invariant: its verdicts are a function of the records folded since the cut it started from and of the log
times it was told. Pure: no Kafka, no clock of its own; a batch goes in, verdicts come out.
"""

from math import inf

from acktree.acker.alignment import Pace
from acktree.acker.clock import UNKNOWN_MS, LogClock, TopicClock, Watermark
from acktree.acker.cut import BirthBuckets, Positions
from acktree.acker.expiry import Expiry, Limits
from acktree.acker.table import MAX_ENTRIES, TICK_MS, FinishedTrees, Table, TimedOut
from acktree.schemas.batch_codec import AckBatch, InitBatch, Integers


class Partition:
    """The state of one acker partition, made new from a cut whenever the partition is taken over."""

    def __init__(self, start: Positions, limits: Limits, seed: int, max_entries: int = MAX_ENTRIES) -> None:
        self.table = Table(seed, max_entries)
        self.clock = LogClock(TopicClock(start.inits), TopicClock(start.acks))
        self.pace = Pace()
        self.births = BirthBuckets(self.table.births, start)
        self._expiry = Expiry(limits)
        self._turned_ms = 0

    @property
    def positions(self) -> Positions:
        """Next offsets to fold."""
        return Positions(self.clock.inits.next_offset, self.clock.acks.next_offset)

    @property
    def cut(self) -> Positions:
        """From where a new owner must fold."""
        return self.births.cut(self.positions)

    @property
    def oldest_age_s(self) -> float:
        """Time since the oldest entry was born, 0 if there is none; a reset does not make it younger."""
        born_ms = self.births.oldest_birth_ms
        return max(0, self.clock.time_ms - born_ms) / 1000 if born_ms != UNKNOWN_MS else 0.0

    def oldest_pending(self) -> tuple[float, int]:
        """Return the age in seconds, since its init or last reset, and the id of the oldest pending root.

        (0, 0) if there is none. Cost: a walk through the table, 15 ms at a million roots.
        """
        oldest = self.table.oldest_pending(max(0, self.clock.time_ms) // TICK_MS)
        if oldest is None:
            return 0.0, 0
        root, age_ticks = oldest
        return max(0, age_ticks) * TICK_MS / 1000, root

    def change_limits(self, limits: Limits) -> None:
        """Take over the limits of a newer topology version."""
        self._expiry.change(limits)

    def fold_inits(
        self, batch: InitBatch, append_ms: Integers, next_offset: int, wall_ms: int
    ) -> FinishedTrees:
        """Fold AckInit records appended at ``append_ms``; ``next_offset`` is behind the last of them."""
        ticks, birth = self._born(append_ms, wall_ms)
        verdicts = self.table.fold_inits(batch, ticks, birth)
        self.clock.inits.fold(append_ms, next_offset, wall_ms)
        return verdicts

    def fold_acks(
        self, batch: AckBatch, append_ms: Integers, next_offset: int, wall_ms: int
    ) -> FinishedTrees:
        """Fold Ack records, as ``fold_inits`` does."""
        ticks, birth = self._born(append_ms, wall_ms)
        verdicts = self.table.fold_acks(batch, ticks, birth)
        self.clock.acks.fold(append_ms, next_offset, wall_ms)
        return verdicts

    def observe(self, inits: Watermark, acks: Watermark) -> None:
        """Note where the log ended."""
        self.clock.inits.observe(inits)
        self.clock.acks.observe(acks)

    def expire(self, wall_ms: int) -> TimedOut | None:
        """Return the roots whose time is up, None if it was not time to look."""
        now_ms, limits = self.clock.time_ms, self._expiry.limits
        self._expiry.advance(now_ms)
        if now_ms - self._turned_ms >= min(limits.orphan_ms, limits.life_ms):
            self.table.clear_finished()
            self._turned_ms = now_ms
        outlived = self._outlived(limits.life_ms)
        has_old_orphans = self.table.orphans > 0 and self._outlived(limits.hold_ms) > 0
        if not self._expiry.is_due(outlived > 0 or has_old_orphans):
            return None
        timed_out = self.table.expire(
            now_ms // TICK_MS, limits.message_ticks, limits.orphan_ticks, self.births.oldest, outlived
        )
        if has_old_orphans:
            self._renew_orphans(wall_ms)
        ages = (self.table.oldest_pending_ticks, self.table.oldest_orphan_ticks)
        self._expiry.looked(*(inf if age is None else now_ms - age * TICK_MS for age in ages))
        return timed_out

    def _outlived(self, limit_ms: float) -> int:
        """Return how many birth buckets, from the oldest on, are all older than a limit."""
        return self.births.outlived(int(self.clock.time_ms - limit_ms)) if limit_ms < inf else 0

    def _renew_orphans(self, wall_ms: int) -> None:
        """Let orphans that have held the cut long enough hold it from here on."""
        now_ms, limits = self.clock.time_ms, self._expiry.limits
        birth = self.births.open(wall_ms, self.positions, now_ms)
        old = self._outlived(limits.hold_ms)
        self.table.renew_orphans(now_ms // TICK_MS, limits.hold_ticks, self.births.oldest, old, birth)

    def _born(self, append_ms: Integers, wall_ms: int) -> tuple[Integers, int]:
        """Return the age ticks of a batch's roots, and the birth bucket of its new ones."""
        ages_ms = self.clock.ages_of(append_ms, wall_ms)
        birth = self.births.open(wall_ms, self.positions, int(ages_ms.max()))
        self._expiry.note_records(int(ages_ms.min()))
        return ages_ms // TICK_MS, birth
