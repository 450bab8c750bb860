"""Decides how many records to take, and when to stop, so that a turn of the loop stays short.

Acks, commits, a stop and a rebalance wait for the end of a turn: ten thousand tuples of 10 ms each would hold
them back for longer than the message timeout and the transaction timeout. Invariant: the next turn takes its
intended time if a record takes as long as in the last turn; if records take longer, the turn ends when its
time is up, and the rest waits for the next one.
"""

import math

FIRST_RECORDS = 10
GROWTH = 10


class BatchSizer:
    """Chooses how many records to take: grows at most tenfold per turn, shrinks immediately."""

    def __init__(self, turn_s: float, min_records: int, max_records: int) -> None:
        """A turn should take ``turn_s`` and has ``min_records`` to ``max_records`` records."""
        self._turn_s, self._min_records, self._max_records = turn_s, min_records, max_records
        self.records = max(FIRST_RECORDS, min_records)

    def update(self, records: int, took_s: float) -> None:
        """Update ``records`` from the duration of a turn.

        >>> sizer = BatchSizer(turn_s=0.1, min_records=1, max_records=10_000)
        >>> sizer.update(10, took_s=0.01)
        >>> sizer.records
        100
        >>> sizer.update(100, took_s=2.0)
        >>> sizer.records
        5
        """
        fits = records * self._turn_s / took_s if took_s > 0 else self._max_records
        self.records = int(max(self._min_records, min(fits, self.records * GROWTH, self._max_records)))


class Turn:
    """Decides when to stop executing tuples: at the end of the turn, or for good after a stop."""

    def __init__(self) -> None:
        self.until_s = math.inf
        """By ``world.monotonic_s``; to be checked after each tuple."""
        self.is_stopped = False

    def begin(self, until_s: float) -> None:
        """Begin a turn that ends at a time.

        >>> turn = Turn()
        >>> turn.stop()
        >>> turn.begin(12.5)
        >>> turn.until_s
        -inf
        """
        self.until_s = until_s
        if self.is_stopped:
            self.until_s = -math.inf

    def end(self) -> None:
        """End the turn after the current tuple."""
        self.until_s = -math.inf

    def stop(self) -> None:
        """End the turn after the current tuple; may be called from a signal handler or another thread."""
        self.is_stopped = True
        self.until_s = -math.inf
