"""One spout task's state: the ledgers of its slots, and its run.

Invariant: a verdict changes nothing twice. Pure: the Kafka side (spout_driver) feeds it and asks it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from acktree.schemas.codec import Absent, Cause, Result
from acktree.schemas.ids import origin_of, origins_of
from acktree.schemas.stats import Value
from acktree.spark.batch import MAX_RANGES_PER_SLOT, Range, Replays, group_replays
from acktree.spark.ledger import PartitionLedger, Verdict
from acktree.spark.result_cut import Place

COUNTED = (
    "emitted",
    "completed",
    "failed",
    "timed_out",
    "replayed",
    "dead_lettered",
    "absent",
    "overdue",
    "set_aside",
    "rewinds",
)


class SourcePartition(NamedTuple):
    """Where a slot's records stand; ``topic_id`` tells a re-created topic from the old one."""

    slot: int
    topic: str
    partition: int
    topic_id: str


class DeadLetter(NamedTuple):
    """A source record whose attempts are used up, with what its last failure said."""

    source: SourcePartition
    offset: int
    attempts: int
    cause: Cause
    task: str
    reason: str


class Effect(NamedTuple):
    """What a record of a result topic did: highest offset done per slot, failures opened, letters due."""

    highest: dict[int, int]
    opened: list[Place]
    letters: list[DeadLetter]


@dataclass(slots=True)
class TaskLedger:
    """Ledgers by slot of one spout task; times in seconds of any one monotonic clock."""

    task: int
    run: int
    sources: Mapping[int, SourcePartition]
    slots: dict[int, PartitionLedger]
    message_timeout_s: float
    counters: Counter[str] = field(default_factory=Counter)
    _last_acked_s: float | None = None

    @property
    def pending(self) -> int:
        return sum(ledger.pending for ledger in self.slots.values())

    def take(self, result: Result, now_s: float, jitter: float) -> Effect:
        """Apply one result record, as far as it is about slots of this task."""
        highest = self._take_acked(result, now_s)
        opened: list[Place] = []
        letters: list[DeadLetter] = []
        for failure in result.failed:
            origin = origin_of(failure.root)
            ledger = self.slots.get(origin.slot)
            if ledger is None:
                continue
            counts = failure.cause is Cause.FAILED or self._is_alive(now_s)
            verdict = ledger.failed(origin.generation, origin.offset, now_s, counts=counts, jitter=jitter)
            if verdict is Verdict.IGNORED:
                continue
            self.counters["failed" if failure.cause is Cause.FAILED else "timed_out"] += 1
            opened.append((origin.slot, origin.offset))
            if verdict is Verdict.EXHAUSTED:
                attempts = ledger.retries[origin.offset].attempts
                place = (self.sources[origin.slot], origin.offset, attempts)
                letters.append(DeadLetter(*place, failure.cause, failure.task, failure.reason))
        return Effect(highest, opened, letters)

    def _is_alive(self, now_s: float) -> bool:
        """Tell whether something was acked within the message timeout; 0 is none, so ever."""
        return self._last_acked_s is not None and now_s - self._last_acked_s <= (
            self.message_timeout_s or inf
        )

    def _take_acked(self, result: Result, now_s: float) -> dict[int, int]:
        slots, generations, offsets = origins_of(result.acked)
        highest: dict[int, int] = {}
        for slot in np.unique(slots).tolist():
            ledger = self.slots.get(slot)
            if ledger is None:
                continue
            mine = slots == slot
            finished = ledger.acked(generations[mine], offsets[mine])
            if finished:
                self._last_acked_s = now_s
                self.counters["completed"] += finished
            highest[slot] = min(int(offsets[mine].max()), ledger.next_offset - 1)
        return highest

    def take_absent(self, absent: Absent) -> Effect:
        """Apply the proof that offsets hold no record: they are done."""
        highest: dict[int, int] = {}
        if (ledger := self.slots.get(absent.slot)) is not None:
            for first, following in absent.spans:
                self.counters["absent"] += ledger.finish(first, following)
                highest[absent.slot] = max(
                    highest.get(absent.slot, 0), min(following, ledger.next_offset) - 1
                )
        return Effect(highest, [], [])

    def bury(self, letter: DeadLetter) -> None:
        """Note that a dead letter is written: its record is done."""
        finished = self.slots[letter.source.slot].finish(letter.offset, letter.offset + 1)
        self.counters["dead_lettered"] += finished

    def finish_batch(self, ranges: Iterable[Range]) -> None:
        """Note that all of a batch is done: tracking is off, a record is done when its batch is."""
        for range_ in ranges:
            if (ledger := self.slots.get(range_.slot)) is not None:
                self.counters["completed"] += ledger.finish(range_.start, range_.end)

    def emit(self, ends: Mapping[int, int], most: int, now_s: float) -> list[Range]:
        """Emit at most ``most`` new offsets below the ends per slot, shared out evenly over the slots."""
        ranges: list[Range] = []
        waiting = sorted(self.slots, key=lambda slot: ends.get(slot, 0) - self.slots[slot].next_offset)
        for place, slot in enumerate(waiting):
            ledger, source = self.slots[slot], self.sources[slot]
            start = ledger.next_offset
            share = max(0, min(most // (len(waiting) - place), ends.get(slot, 0) - start))
            parts = ledger.emit(start + share, MAX_RANGES_PER_SLOT, now_s)
            parts = parts or [(ledger.next_offset, ledger.next_offset)]
            ranges += [Range(source.topic, source.partition, slot, self.run, *part) for part in parts]
            fresh = sum(end - begin for begin, end in parts)
            self.counters["emitted"] += fresh
            most -= fresh
        return ranges

    def replay_due(self, now_s: float, most: int) -> list[Replays]:
        """Emit again what is due, at most ``most`` offsets."""
        replays: list[Replays] = []
        for slot, ledger in self.slots.items():
            due = ledger.take_due(now_s, self.run, most)
            most -= len(due)
            self.counters["replayed"] += len(due)
            source = self.sources[slot]
            replays += group_replays(source.topic, source.partition, slot, due)
        return replays

    def fail_overdue(self, before_s: float, now_s: float, most: int) -> None:
        """Replay what was emitted before a time and never got a verdict."""
        for ledger in self.slots.values():
            self.counters["overdue"] += ledger.fail_overdue(before_s, now_s, most)

    def figures(self) -> dict[str, Value]:
        """Return what the task reports of itself: counts since the start, and where it stands."""
        frontiers = {
            f"frontier.{self.sources[slot].topic}.{self.sources[slot].partition}": ledger.frontier
            for slot, ledger in self.slots.items()
        }
        counted = {name: self.counters[name] for name in COUNTED}
        return {**counted, "pending": self.pending, "run": self.run, **frontiers}

    def is_open(self, slot: int, offset: int) -> bool:
        return slot in self.slots and self.slots[slot].is_open(offset)
