"""Tracks the batch that Spark has begun last, for a Spark that does not say what it has logged: 4.0 and 4.1.

Spark asks for the tasks of a batch, ``partitions(start, end)``, only once ``end`` is logged, and for another
offset only once that batch has ended. A query with a checkpoint begins with ``partitions(end, end)`` of the
last logged offset; if that batch has not ended, Spark runs it again before it asks for an offset.

Invariant: only a batch whose partitions were asked for counts as logged. A returned offset proves nothing:
with the trigger ``availableNow`` Spark 4.0 and 4.1 ask for offsets that they report and never run, and for
the first one before they have read the checkpoint. Pure.
"""

from typing import Any

Json = dict[str, Any]


class BegunBatch:
    """Tracks Spark's calls of a reader; batches are the JSON of their end offsets."""

    def __init__(self) -> None:
        self.end: Json | None = None
        """The batch that Spark began last; it has ended when Spark asks for an offset."""
        self.awaited: Json | None = None
        """The batch that was planned and is not begun: what to return until it is."""

    def planned(self, end: Json) -> None:
        """Record that a batch was planned and is returned to Spark."""
        self.awaited = end

    def begun(self, end: Json) -> None:
        """Record that Spark has asked for the partitions of a batch."""
        self.end = end
        if end == self.awaited:
            self.awaited = None
