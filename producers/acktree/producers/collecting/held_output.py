"""Holds what a tuple or a batch emits until its ``execute`` returns: nothing of a failed one is sent.

Invariant: a batch that may be sent in parts holds about MAX_HELD_BYTES; beyond that they are sent, and it
cannot be executed again: trees with children of two tries in the log would never be done.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from acktree.producers.collecting.child_output import ChildOutput, ProduceCall
from acktree.producers.collecting.counters import Counters
from acktree.producers.columns import NO_TIMESTAMP, Column, Pairs, Payload, Rows
from acktree.producers.errors import OutputTooSlow
from acktree.producers.tuples import Tuple

MAX_HELD_BYTES = 64 << 20
CHILD_BYTES = 100
"""What a child costs beside its value."""


def size_of(value: Payload, key: Payload) -> int:
    """Return about how many bytes a child takes."""
    return CHILD_BYTES + len(value or b"") + len(key or b"")


class HeldChild(NamedTuple):
    """A child that was emitted alone, as it was given; in a batch with its topic and all its headers."""

    parents: tuple[Tuple, ...]
    value: Payload
    topic: str | None
    key: Payload
    headers: Pairs | None
    timestamp_ms: int | None


class HeldRows(NamedTuple):
    """Children that were emitted as columns, one of each of the ``parents``."""

    parents: Sequence[Tuple]
    topic: str
    rows: Rows


class TupleOutput:
    """Takes what is produced while a tuple is executed, and produces it when that has returned, or never."""

    def __init__(self, children: ChildOutput, counters: Counters) -> None:
        self._children, self._counters = children, counters
        children.held = []

    def send(self, tup: Tuple) -> None:
        """Produce what is held of a tuple, which fails if some of it can never be written."""
        if held := self._children.held:
            self._children.held = []
            if self._children.has_limit and not self._passes(tup, held):
                return
            self._children.write_counted(self._children.produce, (tup,), held)

    def _passes(self, tup: Tuple, held: Sequence[ProduceCall]) -> bool:
        """Return whether what is held is likely to pass in a transaction; else the tuple fails."""
        try:
            self._children.check_size(sum(size_of(value, key) for _, value, key, *_ in held))
        except OutputTooSlow as error:
            self._counters.emitted -= len(held)
            self._children.record_unwritable((tup,), error)
            return False
        return True

    def discard(self) -> None:
        """Forget what is held."""
        self._counters.emitted -= len(self._children.held or ())
        self._children.held = []


class HeldOutput:
    """Takes what a collector produces, from the beginning on, and produces it in that order or not at all."""

    def __init__(self, children: ChildOutput, counters: Counters) -> None:
        self.parents: tuple[Tuple, ...] = ()
        """The tuples that the next child descends from."""
        self.held_bytes = 0
        self._held: list[HeldChild | HeldRows] = []
        self._children, self._counters, self._emitted_before = children, counters, 0
        self._produce, children.produce = children.produce, self._hold

    def begin(self) -> None:
        """Begin with a tuple or batch."""
        self._emitted_before = self._counters.emitted

    def _hold(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Pairs | None,
        timestamp_ms: int = NO_TIMESTAMP,
        /,
    ) -> None:
        """Hold a child that the collector would produce."""
        self._held.append(HeldChild(self.parents, value, topic, key, headers, timestamp_ms))
        self.held_bytes += CHILD_BYTES + len(value or b"")

    def add_rows(self, rows: HeldRows) -> None:
        """Hold columns; they must be copies."""
        self._held.append(rows)
        values = rows.rows.values
        size = getattr(values, "nbytes", None)
        known = sum(len(value) for value in values if value is not None) if size is None else int(size)
        self.held_bytes += CHILD_BYTES * len(rows.rows) + known

    def send(self) -> None:
        """Produce what is held; the parents of what can never be written fail."""
        held, self._held, self.held_bytes = self._held, [], 0
        for child in held:
            if isinstance(child, HeldRows):
                for row, unwritable in self._children.write_rows(child.topic, child.rows):
                    self._counters.emitted -= 1
                    self._children.record_unwritable((child.parents[row],), unwritable)
                continue
            parents, value, topic, key, headers, timestamp_ms = child
            call = (topic, value, key, headers, timestamp_ms or NO_TIMESTAMP)
            self._children.write_counted(self._produce, parents, (call,))

    def check_size(self) -> None:
        """Raise OutputTooSlow if what is held is not likely to pass in one transaction."""
        self._children.check_size(self.held_bytes)

    def discard(self, *, was_sent: bool = False) -> None:
        """Forget what is held; unless some of it was sent, nothing was emitted."""
        self._held, self.held_bytes = [], 0
        if not was_sent:
            self._counters.emitted = self._emitted_before


def copied(column: Column) -> Any:
    """Return a column that does not change when the bolt uses its list or array again."""
    if isinstance(column, list):
        return list(column)
    return column.copy() if isinstance(column, np.ndarray) else column
