"""How many records to take at once, and when to stop, so that a turn of the loop stays short.

Acks, commits, a stop and a rebalance wait for the end of a turn: ten thousand tuples of 10 ms each would hold
them back for longer than the message timeout and the transaction timeout. Invariant: the next turn takes as
long as it should if a record takes as long as in the last one; where they take longer, the turn ends when its
time is up, and the rest waits for the next one.
"""

import math

FIRST_RECORDS = 10
GROWTH = 10


class Pace:
    """Grows tenfold a turn at most, from FIRST_RECORDS; shrinks at once."""

    def __init__(self, turn_s: float, least: int, most: int) -> None:
        """A turn should take ``turn_s``, and has from ``least`` to ``most`` records."""
        self._turn_s, self._least, self._most = turn_s, least, most
        self.records = max(FIRST_RECORDS, least)

    def note(self, records: int, took_s: float) -> None:
        """Learn how long a turn of so many records took.

        >>> pace = Pace(turn_s=0.1, least=1, most=10_000)
        >>> pace.note(10, took_s=0.01)
        >>> pace.records
        100
        >>> pace.note(100, took_s=2.0)
        >>> pace.records
        5
        """
        fits = records * self._turn_s / took_s if took_s > 0 else self._most
        self.records = int(max(self._least, min(fits, self.records * GROWTH, self._most)))


class Turn:
    """When the tuples of a turn are to wait for the next one: at a time, or from a stop on for ever."""

    def __init__(self) -> None:
        self.until_s = math.inf
        """By ``time.monotonic``; whoever executes tuples looks after each of them."""
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

    def stop(self) -> None:
        """End the turn with the tuple that is executed; may be called from a signal handler or a thread."""
        self.is_stopped = True
        self.until_s = -math.inf
