"""Columns of records to send: checks them, and produces them row by row. Does not know Kafka."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from acktree.producers.errors import Unwritable
from acktree.wire.header import HEADER

Column = Any
"""An Arrow array of bytes or text, a numpy array of records of fixed size, a sequence of bytes, str and None,
or None for nothing but nulls."""
Payload = bytes | str | None
Pairs = Sequence[tuple[str, Payload]]
NO_TIMESTAMP = 0
"""For librdkafka: use the time of the call."""


class Child(NamedTuple):
    """A value that a function returns with its topic, key, headers or timestamp."""

    value: Any
    topic: str | None = None
    key: Payload = None
    headers: Pairs | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """A record per row; ``own`` are its acktree headers, null for none, after the ``headers`` of all rows."""

    values: Column
    keys: Column = None
    own: Column = None
    headers: Pairs = field(default_factory=list)

    @property
    def columns(self) -> tuple[Column, Column, Column]:
        """The columns, each with a cell per row."""
        return self.values, self.keys, self.own

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[Payload, Payload, Pairs | None]]:
        """Yield each record: value, key, headers."""
        columns = (plain(column, len(self)) for column in self.columns)
        for value, key, header in zip(*columns, strict=True):
            written = self.headers if header is None else [*self.headers, (HEADER, header)]
            yield value, key, written or None


class Produce(Protocol):
    """Produces a record to a topic; without a timestamp it gets the time of the call."""

    def __call__(
        self,
        topic: str,
        value: Payload,
        key: Payload,
        headers: Pairs | None,
        timestamp_ms: int = NO_TIMESTAMP,
        /,
    ) -> None: ...


Delivered = Callable[[], None]
"""Called once a record is in the log, never for one that the broker rejected."""
ProduceConfirmed = Callable[[str, Payload, Payload, Pairs | None, int, Delivered | None], None]
Unwritten = list[tuple[int, Unwritable]]
ProduceRows = Callable[[str, Rows], Unwritten]


def plain(column: Column, count: int) -> Sequence[Any]:
    """Return a column of ``count`` rows as a sequence of Python objects."""
    if column is None:
        return [None] * count
    if hasattr(column, "to_pylist"):
        return column.to_pylist()  # type: ignore[no-any-return]
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "V":
            column = np.ascontiguousarray(column).view((np.void, column.itemsize))
        return column.tolist()  # type: ignore[no-any-return]
    return column  # type: ignore[no-any-return]


def produce_each(
    produce: Callable[[str, Payload, Payload, Pairs | None], None], topic: str, rows: Rows
) -> Unwritten:
    """Produce row by row; return the rows that can never be written."""
    unwritten: Unwritten = []
    for row, (value, key, headers) in enumerate(rows):
        try:
            produce(topic, value, key, headers)
        except Unwritable as error:
            unwritten.append((row, error))
    return unwritten
