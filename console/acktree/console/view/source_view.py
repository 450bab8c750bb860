"""The state of a spout's records, from what its driver has made durable: commit, results since, open roots.

Invariant: what is called done is done; a result that the driver has not committed yet is counted from the
result topic. Pure: bytes and offsets come in as values.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from acktree.console.view.cluster import CommittedOffset
from acktree.console.view.documents import PendingRecord
from acktree.console.view.first_emissions import Emissions
from acktree.console.view.open_roots import OpenArray
from acktree.schemas.control_records import Absent, Failure, Result
from acktree.schemas.ids import origin_of, origins_of, run_at_least
from acktree.schemas.registry import Slot
from acktree.spark.ledger.done_set import decode_metadata, first_absent

IN_FLIGHT, WAITING, EMITTED, OVERDUE = "in flight", "waiting for replay", "emitted", "overdue"


@dataclass(frozen=True, slots=True)
class OpenEmission:
    """The newest emission of an offset that has no result."""

    root: int
    attempt: int
    init_ms: int
    counted_ms: int


class FailedEmission(NamedTuple):
    """The newest failure of an offset, and when the acker reported it."""

    failure: Failure
    failed_ms: int


@dataclass(slots=True)
class SlotView:
    """One slot: its frontier, what is done above it, the open emissions and failures waiting for a replay.

    Both are by the offset of a root. The root of a first emission stands for a block of at most ``block``
    records; where it ends, only the driver knows. So of a block that was acked since its last commit, just
    the first record is called done.
    """

    slot: Slot
    frontier: int | None
    done: BitMap64 = field(default_factory=BitMap64)
    open: dict[int, OpenEmission] = field(default_factory=dict)
    failed: dict[int, FailedEmission] = field(default_factory=dict)
    next_offset: int | None = None
    block: int = 1
    emissions: dict[int, Emissions] = field(default_factory=dict)
    held_since_ms: int | None = None
    """Since when the spout knows of the record at the frontier; it may be older."""

    @classmethod
    def of_commit(cls, slot: Slot, committed: CommittedOffset | None, block: int = 1) -> "SlotView":
        """Return what a commit says; one that is not the driver's own gives only the group's position."""
        if committed is None:
            return cls(slot, None, block=block)
        ours = decode_metadata(committed.metadata, committed.next_offset)
        return cls(slot, committed.next_offset, ours.done if ours else BitMap64(), block=block)

    def is_done(self, offset: int) -> bool:
        return (self.frontier is not None and offset < self.frontier) or offset in self.done

    def normalize(self) -> None:
        """Advance the frontier over what is done; keep of each offset only the latest report."""
        if self.frontier is not None:
            frontier = first_absent(self.done, self.frontier)
            self.done.remove_range(0, frontier)
            self.frontier = frontier
        for offset in [offset for offset in (*self.open, *self.failed) if self.is_done(offset)]:
            self.open.pop(offset, None)
            self.failed.pop(offset, None)
        for offset in self.open.keys() & self.failed.keys():
            is_newer = self.open[offset].init_ms > self.failed[offset].failed_ms
            (self.failed if is_newer else self.open).pop(offset)

    @property
    def end(self) -> int:
        """Return the offset behind the last one known to be emitted."""
        seen = [self.frontier or 0, self.next_offset or 0]
        seen += [max(part) + 1 for part in (self.open, self.failed) if part]
        seen += [int(self.done.max()) + 1] if self.done else []
        return max(seen)

    @property
    def pending(self) -> int:
        """Return how many offsets are emitted and not done."""
        if self.frontier is None:
            return len({*self.open, *self.failed})
        return self.end - self.frontier - self.done.range_cardinality(self.frontier, self.end)

    def offsets(self) -> Iterator[int]:
        """Yield the pending offsets in order."""
        if self.frontier is None:
            yield from sorted({*self.open, *self.failed})
            return
        offset, end = self.frontier, self.end
        while (offset := first_absent(self.done, offset)) < end:
            yield offset
            offset += 1

    def add_emissions(self, offset: int, found: Emissions) -> None:
        """Add what is known of the emissions of the root that begins at an offset."""
        emission = self.open.get(offset)
        if emission is not None:
            found.latest_ms = max(found.latest_ms, emission.init_ms)
            found.roots.add(emission.root)
        self.emissions[offset] = found

    def oldest(self, now_ms: int, timeout_s: float, limit: int) -> list[PendingRecord]:
        """Return the pending records, the oldest known age first, then those of which no emission is seen."""
        known = {offset for offset in (*self.open, *self.failed, *self.emissions) if not self.is_done(offset)}
        ordered = sorted(known, key=lambda offset: (self._since_ms(offset), offset))
        rest = (offset for offset in self.offsets() if offset not in known)
        chosen = [*ordered[:limit], *islice(rest, limit)]
        return [self.pending_record(offset, now_ms, timeout_s) for offset in chosen[:limit]]

    def _since_ms(self, first: int) -> int | None:
        """Return since when the record is pending at the latest, None if nothing shows that."""
        if (found := self.emissions.get(first)) is not None:
            return found.earliest_ms
        if first in self.open:
            return self.open[first].init_ms
        return self.failed[first].failed_ms if first in self.failed else None

    def _has_root(self, offset: int) -> bool:
        return any(offset in known for known in (self.open, self.failed, self.emissions))

    def _begins_block(self, offset: int) -> bool:
        """Return whether a first emission with this offset is known, which may stand for those behind it."""
        attempts = [known[offset].attempt for known in (self.open, self.emissions) if offset in known]
        if offset in self.failed:
            attempts.append(origin_of(self.failed[offset].failure.root).attempt)
        return 0 in attempts

    def pending_record(self, offset: int, now_ms: int, timeout_s: float) -> PendingRecord:
        """Return one pending offset as the console shows it: with its own root, else that of its block.

        The block's is the last root of a first emission before it.
        """
        before = range(offset - 1, offset - self.block, -1)
        first = offset if self._has_root(offset) else next(filter(self._begins_block, before), -1)
        emission, found = self.open.get(first), self.emissions.get(first)
        since_ms = self._since_ms(first)
        bounds = [since_ms] if since_ms is not None else []
        bounds += [self.held_since_ms] if offset == self.frontier and self.held_since_ms is not None else []
        is_first = found is not None and found.is_first
        age_s = max(0.0, (now_ms - min(bounds)) / 1000) if bounds else None
        root = reason = None
        if first in self.failed:
            failure = self.failed[first].failure
            root, reason, state = failure.root, failure.reason, WAITING
            reason = reason or failure.cause.name.lower().replace("_", " ")
        elif emission is not None:
            late = timeout_s > 0 and now_ms - emission.counted_ms > 1000 * (1.1 * timeout_s + 1)
            root, state = emission.root, OVERDUE if late else IN_FLIGHT
        else:
            state = EMITTED
        attempt = None if root is None else origin_of(root).attempt
        seen = len(found.roots) if found is not None else 0
        latest_ms = found.latest_ms if found is not None else emission.init_ms if emission else None
        return PendingRecord(
            spout=self.slot.spout,
            topic=self.slot.topic,
            partition=self.slot.partition,
            offset=offset,
            slot=self.slot.slot,
            state=state,
            age_s=age_s if is_first else None,
            at_least_s=None if is_first else age_s,
            first_emission_ms=found.earliest_ms if found is not None and is_first else None,
            latest_emission_ms=latest_ms,
            attempts=max(seen, 0 if attempt is None else attempt + 1) or None,
            root=None if root is None else f"{root:016x}",
            attempt=attempt,
            reason=reason,
        )


def add_open(views: Mapping[int, SlotView], table: OpenArray) -> None:
    """Add the open roots of the acker's fold; of one offset the emission with the latest init counts."""
    slots, generations, offsets = origins_of(table["root"])
    for row in range(len(table)):
        view = views.get(int(slots[row]))
        if view is None or view.is_done(offset := int(offsets[row])):
            continue
        begun_ms = int(table["init_ms"][row])
        known = view.open.get(offset)
        if known is None or known.init_ms < begun_ms:
            counted_ms = max(begun_ms, int(table["reset_ms"][row]))
            attempt = int(generations[row]) & 0xF
            view.open[offset] = OpenEmission(int(table["root"][row]), attempt, begun_ms, counted_ms)


def add_results(
    views: Mapping[int, SlotView], results: Iterable[tuple[int, Result | Absent]], floors: Mapping[int, int]
) -> None:
    """Apply what acker and readers sent the spout since its last commit: (append time, record) in log order.

    Emissions below a slot's floor (a rewind) do not count.
    """
    for append_ms, result in results:
        if isinstance(result, Absent):
            view, floor = views.get(result.slot), floors.get(result.slot)
            if view is not None and (
                None in (result.run, floor) or run_at_least(result.run or 0, floor or 0)
            ):
                for first, following in result.spans:
                    view.done.add_range(first, following)
            continue
        slots, generations, offsets = origins_of(result.acked)
        for row in range(len(slots)):
            slot, run = int(slots[row]), int(generations[row]) >> 4
            if slot in views and run_at_least(run, floors.get(slot, run)):
                views[slot].done.add(int(offsets[row]))
        for failure in result.failed:
            origin = origin_of(failure.root)
            if origin.slot in views and run_at_least(origin.run, floors.get(origin.slot, origin.run)):
                views[origin.slot].failed[origin.offset] = FailedEmission(failure, append_ms)
