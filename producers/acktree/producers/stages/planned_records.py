"""The records that a stage has planned and not written: each waits, or is in the hands of its code.

Invariant: an offset is in the hands of the code once at a time. One that is planned again while it is there
waits until that has ended, and only its newest root counts as written. A record keeps the anchor that it was
planned with: one whose offset has a newer plan is not executed, because the log may hold another one there.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from acktree.producers.tuples import Hand, Place, Record, place_of, size_of
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import ANCHOR, read_headers
from acktree.wire.ids import IdArray, origins_of
from acktree.wire.trace_context import has_context

ANCHOR_BYTES = ANCHOR.itemsize
_ROOT_AT = ANCHOR.fields["root"][1] if ANCHOR.fields else 0
ROOT_IN_ANCHOR = slice(_ROOT_AT, _ROOT_AT + 8)

Offset = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class PlannedRecords:
    """The records and their anchors; also the intake of the execution that takes them."""

    def __init__(self) -> None:
        self._waiting: deque[_Planned] = deque()
        self._anchors: dict[Offset, bytes] = {}
        """Of the newest plan of each record that is not written."""
        self._taken: dict[Offset, _Planned] = {}
        self.held_bytes = 0
        """The size of the records that wait or are taken."""
        self.hands: dict[Place, Hand] = {}
        self.has_seen_traces = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(
        self, version: int, roots: IdArray, records: Sequence[Record], *, is_first: bool = False
    ) -> list[tuple[Record, MalformedRecord]]:
        """Add records planned under a version of the topology, each with its root.

        ``is_first``: they go in front of those that wait. Return those whose headers cannot be read, and why:
        they do not wait for the code, but have to fail.
        """
        rows = np.zeros(len(records), ANCHOR)
        rows["version"], rows["root"] = version, roots
        packed = rows.tobytes()
        unreadable: list[tuple[Record, MalformedRecord]] = []
        added: list[_Planned] = []
        for number, record in enumerate(records):
            offset, at = _offset_of(record), number * ANCHOR_BYTES
            anchor = self._anchors[offset] = packed[at : at + ANCHOR_BYTES]
            try:
                headers = read_headers(record)
            except MalformedRecord as error:
                unreadable.append((record, error))
                continue
            self.has_seen_traces = self.has_seen_traces or has_context(headers)
            added.append(_Planned(offset, record, anchor))
        self.held_bytes += sum(size_of(each.record) for each in added)
        if is_first:
            self._waiting.extendleft(reversed(added))
        else:
            self._waiting.extend(added)
        return unreadable

    def take(self, limit: int) -> list[Record]:
        """Return up to ``limit`` records that the code does not have, the earliest first."""
        taken: list[Record] = []
        left: list[_Planned] = []
        while self._waiting and len(taken) < limit:
            planned = self._waiting.popleft()
            if self._anchors.get(planned.offset) != planned.anchor:
                self.held_bytes -= size_of(planned.record)
            elif planned.offset in self._taken:
                left.append(planned)
            else:
                self._taken[planned.offset] = planned
                taken.append(planned.record)
        self._waiting.extendleft(reversed(left))
        return taken

    def put_back(self, records: Sequence[Record]) -> None:
        """Let records wait that were taken and are not executed."""
        self._waiting.extendleft(self._taken.pop(_offset_of(record)) for record in reversed(records))

    def hand(self, topic: str, partition: int) -> Hand:
        """Return the tuples of one partition that are in hand."""
        return self.hands.setdefault((topic, partition), {})

    def single_anchors(self, records: Sequence[Record]) -> list[bytes]:
        """Return the anchor of each record, as ``Intake`` does of tuples."""
        return [self._taken[_offset_of(record)].anchor for record in records]

    def anchors_of(self, record: Record) -> bytes:
        """Return the anchor of a record that is taken, or that was just added."""
        offset = _offset_of(record)
        taken = self._taken.get(offset)
        return self._anchors[offset] if taken is None else taken.anchor

    def finish(self, roots: IdArray, place_of_slot: Callable[[int], Place | None]) -> dict[int, list[int]]:
        """Take what is written or has failed away; return by slot the offsets whose newest root it is."""
        finished: dict[int, list[int]] = {}
        slots, _, offsets = origins_of(roots)
        for root, slot, at in zip(roots.tolist(), slots.tolist(), offsets.tolist(), strict=True):
            if (place := place_of_slot(slot)) is None:
                continue
            offset = *place, at
            if (taken := self._taken.pop(offset, None)) is not None:
                self.held_bytes -= size_of(taken.record)
            known = self._anchors.get(offset)
            if known is not None and int.from_bytes(known[ROOT_IN_ANCHOR], "little") == root:
                del self._anchors[offset]
                finished.setdefault(slot, []).append(at)
        return finished

    def keep(self, is_planned: Callable[[Place, int], bool], places: Iterable[Place]) -> None:
        """Release what waits of partitions that were rewound, or are no longer read."""
        rewound = frozenset(places)
        for offset in [each for each in self._anchors if each[:2] in rewound]:
            if not is_planned(offset[:2], offset[2]):
                del self._anchors[offset]
        gone = [each for each in self._waiting if each.offset not in self._anchors]
        self.held_bytes -= sum(size_of(each.record) for each in gone)
        self._waiting = deque(each for each in self._waiting if each.offset in self._anchors)


class _Planned(NamedTuple):
    offset: Offset
    record: Record
    anchor: bytes


def _offset_of(record: Record) -> Offset:
    return *place_of(record), record.offset() or 0
