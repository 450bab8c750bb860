"""The state of one spout task: the ledgers of its slots.

Invariant: a result changes nothing twice, and counts only if its run is between the slot's floor and the
slot's present run. Pure: the Kafka side (spout_driver) calls it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from acktree.core.reports.breaker import Breaker, Held
from acktree.core.reports.last_error import ERROR_CHARS
from acktree.core.reports.stats import Value
from acktree.producers.ledger.held import Emission, HeldFailure, is_probe_acked, release, take_over
from acktree.producers.ledger.logged_batch import (
    MAX_RANGES_PER_SLOT,
    PlannedBatch,
    Range,
    Replays,
    group_replays,
)
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import FailureOutcome
from acktree.producers.ledger.partitions.room import room_of
from acktree.producers.ledger.quotas import in_turn, quota_of
from acktree.producers.ledger.replays import emit_due, end_back_offs
from acktree.producers.ledger.slot_figures import slot_figures
from acktree.wire.control_records import NEVER, Absent, Cause, FailedTuple, Result
from acktree.wire.ids import is_run_between, origin_of, origins_of

COUNTED = (
    *("emitted", "completed", "failed", "timed_out", "replayed", "dead_lettered", "rejected", "absent"),
    *("overdue", "invalid", "rewinds", "commands", "lost"),
)


class SourceSlot(NamedTuple):
    """The partition of a slot; ``topic_id`` distinguishes a re-created topic from the old one."""

    slot: int
    topic: str
    partition: int
    topic_id: str


class ExhaustedRecord(NamedTuple):
    """A source record whose attempts are used up, or that was rejected, with its last failure.

    ``failing_s`` is how long ago this driver saw it fail first; ``failed_tuple`` is of the tree of ``root``.
    """

    source: SourceSlot
    offset: int
    attempts: int
    cause: Cause
    task: str
    reason: str
    failing_s: float = 0.0
    failed_tuple: FailedTuple | None = None
    root: int = 0


class Effect(NamedTuple):
    """The effect of a result: the number of failed records, and those due as dead letters."""

    failed: int
    exhausted: list[ExhaustedRecord]


@dataclass(slots=True)
class TaskLedger:
    """The ledgers of one spout task by slot; times in seconds of any one monotonic clock."""

    task: int
    sources: dict[int, SourceSlot]
    slots: dict[int, PartitionLedger]
    message_timeout_s: float
    left: set[int] = field(default_factory=set)
    """Slots that the newest version does not read: what was emitted of them is finished."""
    counters: Counter[str] = field(default_factory=Counter)
    breaker: Breaker = field(default_factory=Breaker)
    """That of the spout, which all its tasks share."""
    held: Held[HeldFailure] = field(default_factory=Held)
    _openings_over: int = 0  # when back-offs were ended
    _last_acked_s: float | None = None
    _pending_s: float = 0.0

    @property
    def pending(self) -> int:
        return sum(ledger.pending for ledger in self.slots.values())

    def apply(self, result: Result, now_s: float, jitter: float, age_s: float = 0.0) -> Effect:
        """Apply one result record, as far as it is about slots of this task; ``age_s`` is its age."""
        self._apply_acked(result, now_s)
        failed = 0
        for failure in result.failed:
            origin = origin_of(failure.root)
            ledger = self.slots.get(origin.slot)
            if ledger is None or not ledger.knows_run(origin.run):
                continue
            is_open, is_failed = self.breaker.is_open, failure.cause is Cause.FAILED
            counts = not is_open and (is_failed or self._is_alive(now_s))
            when_ms = failure.retry_after_ms
            outcomes = ledger.failed(
                *origin[1:],
                now_s,
                counts=counts,
                jitter=jitter,
                after_s=when_ms / 1000 - age_s if when_ms >= 0 else None,
                is_rejected=when_ms == NEVER and not is_open,
                reason=(failure.reason or "no reason given")[:ERROR_CHARS] if is_failed else "",
            )
            if not outcomes:
                continue
            self.counters["failed" if is_failed else "timed_out"] += len(outcomes)
            self.breaker.failed(now_s, failure.task, failure.reason or "timed out")
            failed += len(outcomes)
            for offset, outcome in outcomes:
                if outcome is not FailureOutcome.RETRY:
                    emission = Emission(origin.slot, origin.generation, offset)
                    cause = Cause.REJECTED if outcome is FailureOutcome.REJECTED else failure.cause
                    self.held.add(HeldFailure(emission, failure._replace(cause=cause)), now_s)
        return Effect(failed, self.take_exhausted(now_s))

    def take_exhausted(self, now_s: float) -> list[ExhaustedRecord]:
        """Return the records to give up; where the breaker is open they are due again instead.

        Without a breaker that is what has just failed, with one what has been held for its window.
        """
        exhausted: list[ExhaustedRecord] = []
        entries, are_released = take_over(self.held, self.breaker, now_s)
        for entry in entries:
            ledger = self.slots.get(entry.emission.slot)
            if ledger is not None and are_released:
                release(ledger, entry, now_s)
            elif ledger is not None and (record := self._exhausted_record(ledger, entry, now_s)):
                exhausted.append(record)
        return exhausted

    def _exhausted_record(
        self, ledger: PartitionLedger, held: HeldFailure, now_s: float
    ) -> ExhaustedRecord | None:
        """Return a record whose attempts are used up; None if it was done or rewound meanwhile."""
        (slot, generation, offset), failure = held
        if (attempt := ledger.retries.failed_attempt(generation, offset)) is None:
            return None
        self.counters["rejected"] += failure.cause is Cause.REJECTED
        said = (attempt.attempts, failure.cause, failure.task, failure.reason)
        failing_s = now_s - (attempt.first_failed_s or now_s)
        more = (*said, failing_s, failure.failed_tuple, failure.root)
        return ExhaustedRecord(self.sources[slot], offset, *more)

    def _is_alive(self, now_s: float) -> bool:
        """Return whether something was acked within the message timeout; without a timeout, ever."""
        return self._last_acked_s is not None and now_s - self._last_acked_s <= (
            self.message_timeout_s or inf
        )

    def _apply_acked(self, result: Result, now_s: float) -> None:
        slots, generations, offsets = origins_of(result.acked)
        for slot in np.flatnonzero(np.bincount(slots)).tolist():
            ledger = self.slots.get(slot)
            if ledger is None:
                continue
            known = (slots == slot) & is_run_between(generations >> 4, ledger.floor, ledger.run)
            finished = ledger.acked(generations[known], offsets[known], now_s)
            if finished:
                self._last_acked_s = now_s
                self.counters["completed"] += finished
                self.breaker.acked(min(finished, int(known.sum())), now_s)
            if is_probe_acked(self.breaker, slot, generations[known], offsets[known]):
                self.breaker.close(now_s)

    def apply_absent(self, absent: Absent) -> None:
        """Apply the proof that offsets hold no record: they are done."""
        counted = "lost" if absent.is_lost else "absent"
        ledger = self.slots.get(absent.slot)
        if ledger is not None and ledger.knows_run(absent.run):
            for first, following in absent.spans:
                self.counters[counted] += ledger.finish(first, following, absent.run)

    def drop(self, slot: int) -> None:
        """Remove a slot whose topic is gone."""
        dropped = self.slots.pop(slot)
        self.counters["lost"] += dropped.pending
        self._pending_s += dropped.pending_s
        del self.sources[slot]

    def put_back(self, record: ExhaustedRecord, now_s: float) -> None:
        """Make a record due again that was given up, and has no dead letter: the breaker is open."""
        if (ledger := self.slots.get(record.source.slot)) is not None:
            generation = origin_of(record.root).generation
            ledger.retries.put_back(generation, record.offset, now_s, ledger.policy)

    def finish_record(self, record: ExhaustedRecord, counted: str = "dead_lettered") -> None:
        """Mark a record as done that is given up, or which is gone; count it as ``counted``."""
        finished = self.slots[record.source.slot].finish(record.offset, record.offset + 1)
        self.counters[counted] += finished

    def finish_batch(self, batch: PlannedBatch, now_s: float) -> int:
        """Mark all of a batch as done: tracking is off, so a record is done when its batch is.

        Returns how many offsets are newly done.
        """
        finished = 0
        for range_ in (*batch.ranges, *batch.again):
            if (ledger := self.slots.get(range_.slot)) is not None:
                span = BitMap64()
                span.add_range(range_.start, range_.end)
                finished += ledger.complete(span, range_.run, now_s)
        for replays in batch.replays:
            if (ledger := self.slots.get(replays.slot)) is not None:
                finished += ledger.complete(BitMap64(replays.offsets), replays.generation >> 4, now_s)
        self.counters["completed"] += finished
        return finished

    def emit(
        self, ends: Mapping[int, int], limit: int, now_s: float, largest_block: int | None = None
    ) -> list[Range]:
        """Emit at most ``limit`` new offsets below the ends per slot, shared out evenly over the slots.

        Blocks are no larger than ``largest_block``. Only the end of the log cuts a block short; for a
        whole one the slot waits until there is room.
        """
        ranges: list[Range] = []
        available, wanted = self.available(ends), self.wanted(ends)
        for place, slot in enumerate(in_turn(wanted, limit, self.turn(largest_block))):
            ledger, source = self.slots[slot], self.sources[slot]
            start = ledger.next_offset
            quota = min(quota_of(limit, len(wanted) - place), wanted[slot])
            if quota == wanted[slot] < available[slot]:
                ledger.limit.hold_back()
            size = ledger.block_size(largest_block)
            stop = start + quota if quota == available[slot] else max(start, (start + quota) // size * size)
            parts = ledger.emit(stop, MAX_RANGES_PER_SLOT, now_s, size)
            parts = parts or [(ledger.next_offset, ledger.next_offset)]
            ranges += [Range(source.topic, source.partition, slot, ledger.run, *part, size) for part in parts]
            fresh = sum(end - begin for begin, end in parts)
            self.counters["emitted"] += fresh
            limit -= fresh
        return ranges

    def available(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return by slot how many offsets below the ends are not emitted yet."""
        return {slot: max(0, ends.get(slot, 0) - each.next_offset) for slot, each in self.slots.items()}

    def wanted(self, ends: Mapping[int, int]) -> dict[int, int]:
        """Return by slot how many of these its limit allows to be emitted."""
        waiting = self.available(ends).items()
        return {slot: min(count, room_of(self.slots[slot])) if count else 0 for slot, count in waiting}

    def bound(self, max_pending: int, busy_s: float) -> None:
        """Keep the limit of each slot to max pending, 0 for none; ``busy_s`` as ``PendingLimit`` takes it."""
        for slot in self.slots.values():
            slot.limit.bound(max_pending, len(self.slots), slot.block, busy_s)

    def turn(self, largest_block: int | None) -> int:
        """Return a number that grows with what is emitted, by one a block."""
        size = max((ledger.block for ledger in self.slots.values()), default=1)
        return self.counters["emitted"] // min(size, largest_block or size)

    def emit_again(self, limit: int, now_s: float) -> list[Range]:
        """Emit what replay commands ask for, with at most ``limit`` offsets of each slot's in flight."""
        ranges: list[Range] = []
        for slot, ledger in self.slots.items():
            source = self.sources[slot]
            parts = ledger.emit_again(limit, MAX_RANGES_PER_SLOT, now_s)
            ranges += [Range(source.topic, source.partition, slot, ledger.run, *part) for part in parts]
        self.counters["replayed"] += sum(range_.end - range_.start for range_ in ranges)
        return ranges

    def replay_due(self, now_s: float, limit: int, of: Iterable[int] | None = None) -> list[Replays]:
        """Emit again at most ``limit`` records that are due, ``of`` some slots; a breaker ends back-offs."""
        if not self.breaker.is_open and self.breaker.openings > self._openings_over:
            self._openings_over = self.breaker.openings
            end_back_offs(self.slots.values(), now_s)
        replays: list[Replays] = []
        slots = self.slots if of is None else {slot: self.slots[slot] for slot in of}
        for slot, due in emit_due(slots, now_s, limit).items():
            source = self.sources[slot]
            replays += group_replays(source.topic, source.partition, slot, due)
        self.counters["replayed"] += sum(len(group.offsets) for group in replays)
        return replays

    def renew_runs(self) -> None:
        """Begin a run of each slot whose present one is used up."""
        for ledger in self.slots.values():
            if ledger.is_run_used_up:
                ledger.begin_run()

    def fail_overdue(self, before_s: float, now_s: float, limit: int) -> None:
        """Replay what was emitted before a time and has no result."""
        for ledger in self.slots.values():
            self.counters["overdue"] += ledger.fail_overdue(before_s, now_s, limit)

    def fail_in_flight(self, now_s: float) -> None:
        """Replay all that is in flight, whatever its results were."""
        for ledger in self.slots.values():
            self.counters["overdue"] += ledger.fail_overdue(nextafter(now_s, inf), now_s, ledger.pending)

    def figures(self, now_s: float) -> dict[str, Value]:
        """Return what the task reports: counts since the start, and its current state."""
        state: dict[str, Value] = {}
        for slot, ledger in self.slots.items():
            place = f"{self.sources[slot].topic}.{self.sources[slot].partition}"
            state |= slot_figures(place, ledger, now_s)
        counted = {name: self.counters[name] for name in COUNTED}
        pending_s = self._pending_s + sum(ledger.pending_s for ledger in self.slots.values())
        pending = {"pending": self.pending, "pending_s": round(pending_s, 3)}
        pending["pending_limit"] = sum(slot.limit.allowed for slot in self.slots.values())
        return {**counted, **pending, "task": self.task, **state}
