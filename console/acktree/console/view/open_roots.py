"""The open roots of one acker partition, folded from the control topics as an acker would: in numpy, pure.

Invariant: an init is folded once per root; a root leaves as soon as it is zero or failed after its init. What
timed out stays: only the result topic says so. Cost: a sort of what is open plus each chunk.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acktree.schemas.control_records import Ack, AckInit
from acktree.schemas.ids import IdArray

OPEN = np.dtype(
    [("root", "<u8"), ("value", "<u8"), ("init_ms", "<i8"), ("reset_ms", "<i8"), ("init_offset", "<i8")]
)
OpenArray = NDArray[np.void]


class AppendedRecord(NamedTuple):
    """One control record with where and when it was appended."""

    record: AckInit | Ack
    offset: int
    append_ms: int


class OpenRoots:
    """State of the fold: ``table`` is an (n,) array of OPEN sorted by root; ``init_ms`` 0: no init yet."""

    def __init__(self) -> None:
        self.table: OpenArray = np.empty(0, OPEN)
        self._failed: dict[int, None] = {}

    def fold(self, appended: Sequence[AppendedRecord]) -> None:
        """Fold control records, those of each topic in log order."""
        if not appended:
            return
        fresh = np.concatenate([self.table, *map(self._rows, appended)])
        self.table = self._drop_finished(_fold(fresh))

    def _rows(self, appended: AppendedRecord) -> OpenArray:
        record = appended.record
        if isinstance(record, AckInit):
            rows = np.zeros(len(record.inits), OPEN)
            rows["root"], rows["value"] = record.inits["root"], record.inits["value"]
            rows["init_ms"], rows["init_offset"] = max(appended.append_ms, 1), appended.offset
            return rows
        self._failed.update(dict.fromkeys(fail.root for fail in record.fails))
        rows = np.zeros(len(record.acks) + len(record.resets), OPEN)
        rows["root"][: len(record.acks)] = record.acks["root"]
        rows["value"][: len(record.acks)] = record.acks["value"]
        rows["root"][len(record.acks) :] = record.resets
        rows["reset_ms"][len(record.acks) :] = appended.append_ms
        return rows

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
        begun: OpenArray = self.table[self.table["init_ms"] > 0]
        return begun

    def orphans(self) -> IdArray:
        """Return the roots that were acked without an init."""
        roots: IdArray = self.table["root"][self.table["init_ms"] == 0]
        return roots


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
