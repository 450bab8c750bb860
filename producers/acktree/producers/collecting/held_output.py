"""What a batch has emitted, until its ``execute`` has returned: nothing of a failed one is sent.

Invariant: at most about MAX_HELD_BYTES are held; beyond that they are sent, and the batch cannot be executed
again: with children of two tries in the log no tree of them would ever be done.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from acktree.producers.native.columns import Column, Pairs, Payload, Rows
from acktree.producers.tuples import Tuple

MAX_HELD_BYTES = 64 << 20
CHILD_BYTES = 100
"""What a child costs beside its value."""


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


class HeldOutput:
    """Children in the order in which they were emitted."""

    def __init__(self) -> None:
        self.children: list[HeldChild | HeldRows] = []
        self.held_bytes = 0

    def add(self, child: HeldChild) -> None:
        """Hold a child."""
        self.children.append(child)
        self.held_bytes += CHILD_BYTES + len(child.value or b"")

    def add_rows(self, rows: HeldRows) -> None:
        """Hold columns; they must be copies."""
        self.children.append(rows)
        values = rows.rows.values
        size = getattr(values, "nbytes", None)
        known = sum(len(value) for value in values if value is not None) if size is None else int(size)
        self.held_bytes += CHILD_BYTES * len(rows.rows) + known

    def take(self) -> list[HeldChild | HeldRows]:
        """Return and remove all of them."""
        taken, self.children, self.held_bytes = self.children, [], 0
        return taken


def copied(column: Column) -> Any:
    """Return a column that does not change when the bolt uses its list or array again."""
    if isinstance(column, list):
        return list(column)
    return column.copy() if isinstance(column, np.ndarray) else column
