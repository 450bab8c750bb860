"""The open roots of one acker partition, folded from the control topics as an acker would: in numpy, pure.

Invariant: an init is folded once per root; a root leaves as soon as it is zero or failed after its init. What
timed out stays: only the result topic says so. Cost: a sort of what is open plus each chunk.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from acktree.schemas.control_records import ENTRY, ID, Ack, AckInit
from acktree.schemas.ids import IdArray

OPEN = np.dtype(
    [("root", "<u8"), ("value", "<u8"), ("init_ms", "<i8"), ("reset_ms", "<i8"), ("init_offset", "<i8")]
)
OpenArray = NDArray[np.void]
FOLD_AT_LEAST = 100_000
"""So many rows wait for one sort of the table, or as many as it has."""


class AppendedRecord(NamedTuple):
    """One control record with where and when it was appended."""

    record: AckInit | Ack
    offset: int
    append_ms: int


class OpenRoots:
    """State of the fold: rows of OPEN sorted by root, ``init_ms`` 0: no init yet; and rows to fold in."""

    def __init__(self) -> None:
        self._table: OpenArray = np.empty(0, OPEN)
        self._unfolded: list[OpenArray] = []
        self._failed: dict[int, None] = {}

    def fold(self, appended: Sequence[AppendedRecord]) -> None:
        """Fold control records, those of each topic in log order.

        Small chunks wait until there are as many rows as the table has, so each row is sorted a few times.
        """
        inits = [(each.record, each) for each in appended if isinstance(each.record, AckInit)]
        acks = [(each.record, each) for each in appended if isinstance(each.record, Ack)]
        self._failed.update((fail.root, None) for ack, _ in acks for fail in ack.fails)
        self._unfolded += [_init_rows(inits), _ack_rows(acks), _reset_rows(acks)]
        if sum(map(len, self._unfolded)) > max(FOLD_AT_LEAST, len(self._table)):
            self._fold_rows()

    def _fold_rows(self) -> OpenArray:
        """Fold what waits; return the table."""
        if self._unfolded:
            rows = np.concatenate([self._table, *self._unfolded], dtype=OPEN)
            self._table = self._drop_finished(_fold(rows))
            self._unfolded.clear()
        return self._table

    def _drop_finished(self, table: OpenArray) -> OpenArray:
        begun = table["init_ms"] > 0
        finished = begun & (table["value"] == 0)
        if self._failed:
            failed = np.fromiter(self._failed, np.uint64, len(self._failed))
            finished |= begun & np.isin(table["root"], failed)
        kept: OpenArray = table[~finished]
        return kept

    def pending(self) -> OpenArray:
        """Return the roots that have an init and no result."""
        table = self._fold_rows()
        begun: OpenArray = table[table["init_ms"] > 0]
        return begun

    def orphans(self) -> IdArray:
        """Return the roots that were acked without an init."""
        table = self._fold_rows()
        roots: IdArray = table["root"][table["init_ms"] == 0]
        return roots


def _init_rows(inits: Sequence[tuple[AckInit, AppendedRecord]]) -> OpenArray:
    entries, counts = _join([init.inits for init, _ in inits], ENTRY)
    rows = np.zeros(len(entries), OPEN)
    rows["root"], rows["value"] = entries["root"], entries["value"]
    rows["init_ms"] = np.repeat(np.array([max(at.append_ms, 1) for _, at in inits], np.int64), counts)
    rows["init_offset"] = np.repeat(np.array([at.offset for _, at in inits], np.int64), counts)
    return rows


def _ack_rows(acks: Sequence[tuple[Ack, AppendedRecord]]) -> OpenArray:
    entries, _ = _join([ack.acks for ack, _ in acks], ENTRY)
    rows = np.zeros(len(entries), OPEN)
    rows["root"], rows["value"] = entries["root"], entries["value"]
    return rows


def _reset_rows(acks: Sequence[tuple[Ack, AppendedRecord]]) -> OpenArray:
    roots, counts = _join([ack.resets for ack, _ in acks], ID)
    rows = np.zeros(len(roots), OPEN)
    rows["root"] = roots
    rows["reset_ms"] = np.repeat(np.array([at.append_ms for _, at in acks], np.int64), counts)
    return rows


def _join(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> tuple[NDArray[Any], list[int]]:
    """Return arrays of one type as one, and their lengths; for many small ones faster than numpy's."""
    return np.frombuffer(b"".join(cast(Any, arrays)), dtype), list(map(len, arrays))


def _fold(rows: OpenArray) -> OpenArray:
    """Return one row per root: the values XORed, but only the first init of each root."""
    if not len(rows):
        return rows
    rows = rows[np.argsort(rows["root"], kind="stable")]
    starts = np.flatnonzero(np.r_[True, rows["root"][1:] != rows["root"][:-1]])
    lengths = np.diff(np.r_[starts, len(rows)])
    is_init = rows["init_ms"] > 0
    inits_before: NDArray[np.int64] = np.cumsum(is_init) - is_init
    repeated = is_init & (inits_before > np.repeat(inits_before[starts], lengths))
    for name in ("value", "init_ms", "init_offset"):
        rows[name][repeated] = 0
    folded: OpenArray = rows[starts]
    folded["value"] = np.bitwise_xor.reduceat(rows["value"], starts)
    for name in ("init_ms", "reset_ms", "init_offset"):
        folded[name] = np.maximum.reduceat(rows[name], starts)
    return folded
