"""How many records to take at once, so that a turn of the loop stays short however slow the bolt is.

Acks, commits, a stop and a rebalance wait for the end of a turn: ten thousand tuples of 10 ms each would hold
them back for longer than the message timeout and the transaction timeout. Invariant: the next turn takes as
long as it should if a record takes as long as in the last one. Pure.
"""

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
