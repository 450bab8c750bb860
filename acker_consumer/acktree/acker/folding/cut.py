"""The cut: the positions from which a new owner of an acker partition must fold to rebuild this state.

Each entry belongs to the bucket in which it was created, and each bucket has the positions on both topics at
which it was opened. The cut is the positions of the oldest bucket with an entry left, else the current ones.
Invariant: the cut lies at or below the first record of every entry, and goes back only with the log. Pure.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from acktree.acker.folding.clock import UNKNOWN_MS
from acktree.acker.kernels.slots import BUCKETS, BucketCounts

BUCKET_MS = 250


class Positions(NamedTuple):
    """Next offsets on T.ack-init and T.ack."""

    inits: int
    acks: int


@dataclass(slots=True)
class Bucket:
    number: int
    opened_ms: int
    positions: Positions
    newest_entry_ms: int = UNKNOWN_MS


class CutBuckets:
    """The buckets in use, oldest first; ``counts`` is the table's: entries by bucket number modulo BUCKETS.

    When all buckets are in use, the newest stays open: the cut is coarser, never wrong.
    """

    def __init__(self, counts: BucketCounts, start: Positions) -> None:
        self._counts = counts
        self._buckets = deque([Bucket(0, UNKNOWN_MS, start)])

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def oldest(self) -> int:
        return self._buckets[0].number

    def open(self, wall_ms: int, positions: Positions, latest_ms: int) -> int:
        """Return the bucket for entries that the records from ``positions`` on create.

        Args:
            wall_ms: any clock of the process; a bucket stays open for BUCKET_MS of it.
            latest_ms: log time of the youngest record about to be folded.
        """
        self._drop_empty()
        newest = self._buckets[-1]
        if self._is_empty(newest):
            newest.opened_ms, newest.positions = wall_ms, positions
        elif abs(wall_ms - newest.opened_ms) >= BUCKET_MS and len(self) < BUCKETS - 1:
            newest = Bucket(newest.number + 1, wall_ms, positions)
            self._buckets.append(newest)
        newest.newest_entry_ms = max(newest.newest_entry_ms, latest_ms)
        return newest.number

    def go_back(self, positions: Positions) -> None:
        """Let no bucket be opened behind these positions, as the log has lost its end."""
        for bucket in self._buckets:
            bucket.positions = Positions(*map(min, bucket.positions, positions))

    def cut(self, positions: Positions) -> Positions:
        """Return the cut, given the current positions."""
        # Life of an ack, step 12.
        self._drop_empty()
        oldest = self._buckets[0]
        return positions if self._is_empty(oldest) else oldest.positions

    @property
    def oldest_entry_ms(self) -> int:
        """Log time by which the oldest entry was created; UNKNOWN_MS if there is no entry."""
        self._drop_empty()
        return UNKNOWN_MS if self._is_empty(self._buckets[0]) else self._buckets[0].newest_entry_ms

    def count_older(self, before_ms: int) -> int:
        """Return how many buckets, from the oldest on, have only entries created before a log time."""
        count = 0
        for bucket in self._buckets:
            if bucket.newest_entry_ms >= before_ms:
                break
            count += 1
        return count

    def _is_empty(self, bucket: Bucket) -> bool:
        return not self._counts[bucket.number % BUCKETS]

    def _drop_empty(self) -> None:
        while len(self._buckets) > 1 and self._is_empty(self._buckets[0]):
            self._buckets.popleft()
