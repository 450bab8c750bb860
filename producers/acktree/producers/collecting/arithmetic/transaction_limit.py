"""How much output a transaction may have, so that it passes to the broker within its timeout.

Invariant: after output that did not pass, less may be in a transaction than before, and at most what passes
in a part of the time at the measured rate. Pure.
"""

import math
from typing import NamedTuple

MAX_BYTES = 16 << 20
CHECKED_BYTES = 1 << 18
"""A transaction with so much output is committed only once that has passed; the limit is never smaller."""
TARGET = 1 / 2
"""Which part of the time that it has the output of a transaction should take."""
GROWTH = 1.25
"""By what factor the limit grows with each full transaction that has passed in that time."""
ALL = 1 << 30


class Passage(NamedTuple):
    """How much of some output the broker has confirmed, as a fraction, and in which time."""

    confirmed: float
    took_s: float

    @property
    def is_whole(self) -> bool:
        """Whether all of it was confirmed."""
        return self.confirmed == 1.0

    def rate(self, size: int) -> float:
        """Return how many bytes passed in a second, of output of this size."""
        return size * self.confirmed / max(self.took_s, 1e-3)


class TransactionLimit:
    """The limits of the next transaction, by how the last ones have passed."""

    def __init__(self, timeout_s: float, max_bytes: int = MAX_BYTES) -> None:
        """Begin with ``max_bytes``; ``timeout_s`` is the time that output has to pass.

        >>> limit = TransactionLimit(10.0, 16_000_000)
        >>> limit.update(30_000_000, Passage(confirmed=1 / 3, took_s=10.0), tuples=60)  # 1 MB/s
        >>> limit.bytes, limit.tuple_bytes, limit.tuples
        (5000000, 10000000.0, 10)
        >>> limit.update(4_000_000, Passage(confirmed=1.0, took_s=0.1), tuples=8)
        >>> limit.bytes, limit.tuples
        (6250000, 20)
        """
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self.bytes = max_bytes
        self.tuple_bytes = math.inf
        """How much of one tuple passes in all the time; unlimited unless some output has just not passed."""
        self.tuples = ALL
        """How many tuples make as much output, by those whose output did not pass."""

    def update(self, size: int, passage: Passage, tuples: int = 1) -> None:
        """Change the limits after the output of some tuples, of this size."""
        fits = passage.rate(size) * self._timeout_s
        if not passage.is_whole:
            self.bytes = int(max(CHECKED_BYTES, min(self.bytes / 2, fits * TARGET)))
            self.tuples = max(1, tuples * self.bytes // size)
            self.tuple_bytes = fits
        elif passage.took_s > self._timeout_s * TARGET:
            self.bytes = int(max(CHECKED_BYTES, min(self.bytes, fits * TARGET)))
        else:
            self.allow_more_tuples()
            if 2 * size >= self.bytes:
                self.bytes = int(min(self._max_bytes, self.bytes * GROWTH))

    def allow_more_tuples(self) -> None:
        """Allow twice as many tuples: those before had little output, or theirs has passed soon."""
        self.tuples = min(ALL, 2 * self.tuples)

    def about(self) -> str:
        """Return the time that output has, and how fast it passed when some did not.

        >>> limit = TransactionLimit(10.0)
        >>> limit.update(30_000_000, Passage(confirmed=1 / 3, took_s=10.0))
        >>> limit.about()
        '10 s (1.0 MB/s)'
        """
        return f"{self._timeout_s:g} s ({self.tuple_bytes / self._timeout_s / 1e6:.1f} MB/s)"
