"""Computes what is pending in source partitions, from spouts' commits and reports and ackers' reports.

Invariant: nothing follows from a missing report. Of the offsets done above a frontier only the number is
known, as the spout reports it. Ages are as reported, by the clock of the process that counts them. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from acktree.console.view.cluster import CommittedOffset
from acktree.console.view.documents import PendingRecord
from acktree.console.view.reports import Process, figure, whole
from acktree.core.reports.last_error import one_line
from acktree.core.reports.stats import ROOT_AGE
from acktree.core.topology.registry import Slot
from acktree.wire.ids import origin_of

IN_FLIGHT, WAITING, EMITTED = "in flight", "waiting for replay", "emitted"
ROOT = re.compile("[0-9a-f]{16}")


class RootAge(NamedTuple):
    """A pending root, and the time since the last message of its tree."""

    root: int
    age_s: float


@dataclass(frozen=True, slots=True)
class SlotView:
    """One source partition, or one task of a spout without topics.

    ``frontier`` is the group's committed offset; ``roots`` are those from there on that ackers report, by
    offset; ``process`` is the spout's process that reports it, None if none does.
    """

    slot: Slot
    frontier: int | None
    roots: Mapping[int, RootAge]
    process: Process | None

    def _figure(self, name: str) -> float | None:
        if self.process is None:
            return None
        return figure(self.process, f"{name}.{self.slot.topic}.{self.slot.partition}")

    def _whole(self, name: str) -> int | None:
        value = self._figure(name)
        return None if value is None else int(value)

    @property
    def next_offset(self) -> int | None:
        """Return the next offset to emit for the first time, None if nobody reports it."""
        reported = self._whole("next")
        return None if reported is None else max(reported, self._held_offset or 0)

    @property
    def pending(self) -> int | None:
        """Return how many offsets are emitted and not done, None if nobody reports that."""
        if not self.slot.topic:
            return None if self.process is None else whole(self.process, "pending")
        reported, left = self._whole("pending"), self._emitted
        return None if reported is None or left is None else min(max(reported, 0), left)

    @property
    def done_above(self) -> int | None:
        """Return how many offsets above the frontier are done, None if nobody reports that."""
        pending, left = self.pending, self._emitted
        return None if pending is None or left is None else left - pending

    @property
    def _emitted(self) -> int | None:
        """Return how many offsets are emitted from the frontier on, done or not."""
        begin, end = self._held_offset, self.next_offset
        return None if begin is None or end is None else end - begin

    @property
    def held_s(self) -> float | None:
        """Return how long the frontier is known to be held, None if nobody reports that."""
        is_of_frontier = not self.slot.topic or self._whole("frontier") == self._held_offset
        held_s = self._figure("held_s") if is_of_frontier else None
        return held_s if self._is_held else None

    @property
    def _is_held(self) -> bool:
        """Return whether something is emitted and not done: the record at the frontier, at the least."""
        return bool(self._emitted if self.slot.topic else self.pending)

    @property
    def _held_offset(self) -> int | None:
        """Return the offset at the frontier: the commit is newer than the report, or the other way round."""
        known = [offset for offset in (self.frontier, self._whole("frontier")) if offset is not None]
        return max(known, default=None) if self.slot.topic else None

    @property
    def held_by(self) -> PendingRecord | None:
        """Return the record at the frontier, if it is emitted."""
        return self._record(self._held_offset) if self._held_offset is not None and self._is_held else None

    def records(self) -> list[PendingRecord]:
        """Return the pending records that are known one by one."""
        held = self.held_by
        found = [self._record(offset) for offset in self.roots if held is None or offset != held.offset]
        return found if held is None else [held, *found]

    def _record(self, offset: int) -> PendingRecord:
        is_held = offset == self._held_offset
        is_reported = is_held and offset == self._whole("frontier")
        age_s = self.held_s if is_reported and self._figure("held_s") else None
        is_first = age_s is not None and self._figure("held_longer") is None
        root, root_age_s = self.roots.get(offset, (None, None))
        attempt = None if root is None else origin_of(root).attempt
        emissions = (self._whole("emissions") or 1) if is_reported else 1
        bounds = [each for each in (age_s, root_age_s) if each is not None]
        state = IN_FLIGHT if is_reported or root is not None else EMITTED
        if is_reported and self._figure("waiting"):
            state = WAITING
        return PendingRecord(
            spout=self.slot.spout,
            topic=self.slot.topic,
            partition=self.slot.partition,
            offset=offset,
            slot=self.slot.slot,
            state=state,
            age_s=age_s if is_first else None,
            at_least_s=None if is_first else max(bounds, default=None),
            first_emission_ms=self._first_emission_ms(age_s) if is_first else None,
            attempts=max(emissions, 0 if attempt is None else attempt + 1),
            root=None if root is None else f"{root:016x}",
            attempt=attempt,
            root_age_s=root_age_s,
            reason=self._text("reason") if is_reported else None,
            next_attempt_s=self._figure("next_s") if is_reported else None,
            idle_s=self._figure("idle_s") if is_reported else None,
        )

    def _text(self, name: str) -> str | None:
        values = self.process.latest.values if self.process else {}
        value = values.get(f"{name}.{self.slot.topic}.{self.slot.partition}")
        return one_line(value) if isinstance(value, str) and value else None

    def _first_emission_ms(self, age_s: float | None) -> int | None:
        if age_s is None or self.process is None:
            return None
        return self.process.latest.time_ms - int(1000 * age_s)


def slot_view(
    slot: Slot,
    committed: CommittedOffset | None,
    roots: Mapping[int, RootAge],
    spouts: Iterable[Process],
) -> SlotView:
    """Return a partition by its commit, its roots by offset and the processes of its spout.

    Of several processes that report of a partition, as after it has moved, the one that is the furthest
    counts.
    """
    frontier = committed.next_offset if committed else None
    left = {at: root for at, root in roots.items() if at >= (frontier or 0)}
    return SlotView(slot, frontier, left, _reporter(slot, spouts))


def _reporter(slot: Slot, spouts: Iterable[Process]) -> Process | None:
    name = f"frontier.{slot.topic}.{slot.partition}" if slot.topic else "task"
    said = [(value, each) for each in spouts if (value := figure(each, name)) is not None]
    mine = [each for each in said if slot.topic or each[0] == slot.partition]
    return max(mine, key=lambda each: (each[0], each[1].latest.time_ms), default=(0, None))[1]


def reported_roots(process: Process) -> dict[int, float]:
    """Return the pending roots that an acker reports, with their ages."""
    found: dict[int, float] = {}
    for name in process.latest.values:
        root = name.removeprefix(ROOT_AGE)
        age_s = figure(process, name) if name.startswith(ROOT_AGE) and ROOT.fullmatch(root) else None
        if age_s is not None:
            found[int(root, 16)] = age_s
    return found


def open_roots(ackers: Iterable[Process]) -> dict[int, dict[int, RootAge]]:
    """Return by slot and offset the roots that ackers report; of one that two report the newer report counts.

    Of the emissions of one record it is the newest.
    """
    ages: dict[int, float] = {}
    for acker in sorted(ackers, key=lambda process: process.latest.time_ms):
        ages |= reported_roots(acker)
    found: dict[int, dict[int, RootAge]] = {}
    for root, age_s in ages.items():
        origin = origin_of(root)
        of_slot = found.setdefault(origin.slot, {})
        if origin.offset not in of_slot or age_s < of_slot[origin.offset].age_s:
            of_slot[origin.offset] = RootAge(root, age_s)
    return found


def oldest_pending(
    views: Sequence[SlotView], limit: int, older_than_s: float | None = None
) -> list[PendingRecord]:
    """Return the pending records that are known one by one, the oldest first; age unknown comes last.

    With ``older_than_s`` only those that are known to be older.
    """
    found = [record for view in views for record in view.records()]
    if older_than_s is not None:
        found = [each for each in found if is_older(each, older_than_s)]
    return sorted(found, key=_by_age)[:limit]


def _by_age(record: PendingRecord) -> tuple[float, str, int, int]:
    age_s = record.known_age_s
    return -1.0 * (-1.0 if age_s is None else age_s), record.topic, record.partition, record.offset


def is_older(record: PendingRecord, than_s: float) -> bool:
    """Return whether a record is known to be older than this."""
    age_s = record.known_age_s
    return age_s is not None and age_s > than_s


def is_retried(record: PendingRecord, within_s: float) -> bool:
    """Return whether a failed record is still retried: it waits for its time, or was due only recently."""
    return record.idle_s is not None and record.idle_s <= within_s


def state_text(record: PendingRecord) -> str:
    """Return the state of a record, and of one that failed why, and when it is emitted again."""
    text = record.state
    if record.next_attempt_s is not None:
        text += f", next attempt in {record.next_attempt_s:.0f} s"
    return f"{text}: {record.reason}" if record.reason else text


def trace_command(topology: str, record: PendingRecord) -> str:
    """Return the command that shows the tree of a record."""
    where = f"{record.topic} {record.partition} {record.offset}" if record.topic else f"--root {record.root}"
    return f"acktree trace --topology {topology} {where}"
