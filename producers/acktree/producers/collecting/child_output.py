"""Writes a collector's children: one that its topic never accepts fails its parents, other errors are fatal.

Invariant: a fatal error is kept, so a bolt that swallows it acks nothing afterwards. Does not know Kafka.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from acktree.producers.collecting.arithmetic.transaction_limit import TransactionLimit
from acktree.producers.collecting.counters import Counters
from acktree.producers.collecting.repeated_lines import RepeatedLines
from acktree.producers.collecting.traces import about, named
from acktree.producers.columns import (
    Produce,
    ProduceRows,
    Rows,
    Unwritten,
    produce_each,
)
from acktree.producers.errors import OutputTooSlow, Unwritable, reason_of
from acktree.producers.tuples import Tuple

ProduceCall = tuple[Any, ...]
"""The arguments of a call of ``produce``."""


class ChildOutput:
    """The children of one collector; ``produce`` takes (topic, value, key, headers, timestamp_ms)."""

    def __init__(
        self, counters: Counters, produce: Produce, produce_rows: ProduceRows | None, lines: RepeatedLines
    ) -> None:
        self.produce = produce
        self.held: list[ProduceCall] | None = None
        """What is kept instead of produced, if it is a list."""
        self.limit: TransactionLimit | None = None
        """Of the transactions in which they are written, if that is so."""
        self._produce_rows = produce_rows or partial(produce_each, produce)
        self._counters, self._lines = counters, lines
        self._fatal_error: Exception | None = None

    @property
    def has_limit(self) -> bool:
        """Whether the output of one tuple is limited at present."""
        return self.limit is not None and self.limit.tuple_bytes < math.inf

    def check_size(self, size: int) -> None:
        """Raise OutputTooSlow if so much output of one tuple, or batch, would not pass."""
        if self.limit is not None and size > self.limit.tuple_bytes:
            raise OutputTooSlow(
                f"its output of {size / 1e6:.1f} MB does not pass within {self.limit.about()}"
            )

    def write(self, parents: tuple[Tuple, ...], calls: Sequence[ProduceCall]) -> None:
        """Count children as emitted, and produce or hold them."""
        self._counters.emitted += len(calls)
        if self.held is None:
            self.write_counted(self.produce, parents, calls)
        else:
            self.held += calls

    def write_counted(
        self, produce: Produce, parents: tuple[Tuple, ...], calls: Iterable[ProduceCall]
    ) -> None:
        """Produce children; one that its topic never accepts is no longer counted, and fails its parents."""
        for call in calls:
            try:
                produce(*call)
            except Unwritable as error:
                self._counters.emitted -= 1
                self.record_unwritable(parents, error)
            except Exception as error:
                self.raise_fatal(error)

    def write_rows(self, topic: str, rows: Rows) -> Unwritten:
        """Produce columns; return the rows that can never be written."""
        try:
            return self._produce_rows(topic, rows)
        except Exception as error:
            self.raise_fatal(error)

    def record_unwritable(self, parents: tuple[Tuple, ...], error: Unwritable) -> None:
        """Log and count a child that can never be written: its parents will fail when the bolt acks them.

        They do not fail now, because the bolt may hold them for long, emit for them again and ack them.
        """
        self._counters.unwritable += 1
        if not self._lines.counts(kind := (type(error), "unwritable")):
            whose = f"{len(parents)} tuples, first {named(parents[0])}" if parents else "none, not replayed"
            extra = about(parents[0], "unwritable") if parents else {"action": "unwritable"}
            text = f"a child was not written: {error}; parents: {whose}"
            self._lines.write_first(kind, logging.ERROR, text, extra)
        for parent in parents:
            parent._fault = parent._fault or reason_of(error)

    def raise_fatal(self, error: Exception) -> NoReturn:
        """Raise an error that no tuple caused, and keep it: a bolt that swallows it must not ack."""
        self._fatal_error = self._fatal_error or error
        raise error

    def check(self) -> None:
        """Raise the first fatal error, if there was one."""
        if self._fatal_error is not None:
            raise self._fatal_error
