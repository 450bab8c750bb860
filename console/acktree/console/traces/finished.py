"""Selects from result records which finished trees are exported, and which of the acked were slow.

Invariant: omitted trees are counted. Limits count by log time, so a backlog is treated as if it came live.
Pure.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Message as Record
from numpy.typing import NDArray

from acktree.console.view.records.tree import At
from acktree.console.view.records.tree_reader import at_of
from acktree.wire.codec import decode_result_record
from acktree.wire.control_records import Result
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import IdArray, mix, origin_of

MINUTE_MS = 60_000
KEPT_MINUTES = 100
ACKED = "acked"


@dataclass(frozen=True, slots=True)
class FinishedRoot:
    """A root with its result; ``kind`` is acked, or a cause such as failed or timed out."""

    root: int
    kind: str
    acker: int
    task: str | None
    reason: str | None
    at: At


@dataclass(frozen=True, slots=True)
class AckedRoots:
    """The acked roots of one result record."""

    acker: int
    roots: IdArray
    at: At


def read_result(record: Record) -> tuple[list[FinishedRoot], AckedRoots | None]:
    """Return the failed roots and the acked ones in a record of a result topic; nothing for other records."""
    try:
        result = decode_result_record(record.value() or b"")
    except MalformedRecord:
        return [], None
    if not isinstance(result, Result):
        return [], None
    at = at_of(record)
    failed = [
        FinishedRoot(
            each.root,
            each.cause.name.lower().replace("_", " "),
            result.acker,
            each.task or None,
            each.reason or None,
            at,
        )
        for each in result.failed
    ]
    return failed, AckedRoots(result.acker, result.acked, at) if len(result.acked) else None


class Selection:
    """Chooses a fixed sample of source records, and limits their trees per minute."""

    def __init__(self, sample: float = 1.0, per_minute: int = 600) -> None:
        self.omitted: Counter[tuple[str, str]] = Counter()
        """How many were left out, by kind and reason: sample or limit."""
        self._below, self._per_minute = int(sample * 2**64), per_minute
        self._minutes: Counter[int] = Counter()

    def takes(self, finished: FinishedRoot) -> bool:
        """Return whether a tree is exported; all emissions of a record are in the sample, or none."""
        origin = origin_of(finished.root)
        if mix(origin.slot << 40 | origin.offset) >= self._below:
            self.omitted[finished.kind, "sample"] += 1
            return False
        minute = finished.at.time_ms // MINUTE_MS
        if self._minutes[minute] >= self._per_minute:
            self.omitted[finished.kind, "limit"] += 1
            return False
        self._minutes[minute] += 1
        while len(self._minutes) > KEPT_MINUTES:
            del self._minutes[min(self._minutes)]
        return True


class RecentInits:
    """The append times of recent inits by root: an acked root that is not among them was slow."""

    def __init__(self, slow_s: float) -> None:
        self.slow_ms = round(1000 * slow_s)
        self._chunks: list[tuple[int, IdArray]] = []

    def add(self, roots: IdArray, time_ms: int) -> None:
        """Add the roots of an init record."""
        self._chunks.append((time_ms, roots))

    def drop_before(self, time_ms: int) -> None:
        """Forget inits that are older."""
        self._chunks = [chunk for chunk in self._chunks if chunk[0] >= time_ms]

    def slow_of(self, acked: Iterable[AckedRoots]) -> list[FinishedRoot]:
        """Return the acked roots whose init is older than the threshold; all later ones were added."""
        roots = np.concatenate([np.empty(0, np.uint64), *(roots for _, roots in self._chunks)])
        times = np.repeat([time_ms for time_ms, _ in self._chunks], [len(roots) for _, roots in self._chunks])
        order: NDArray[np.int64] = np.argsort(roots, kind="stable")
        roots, times = roots[order], times[order].astype(np.int64)
        slow = []
        for each in acked:
            rows = np.searchsorted(roots, each.roots)
            known = np.zeros(len(each.roots), bool)
            if len(roots):
                rows = np.minimum(rows, len(roots) - 1)
                is_recent = each.at.time_ms - times[rows] <= self.slow_ms
                known = (roots[rows] == each.roots) & is_recent
            slow += [
                FinishedRoot(root, ACKED, each.acker, None, None, each.at)
                for root in each.roots[~known].tolist()
            ]
        return slow
