"""One spout task's state: the ledgers of its slots, and its run.

Invariant: a verdict changes nothing twice, and counts only if its run is between the slot's floor and the
run now. Pure: the Kafka side (spout_driver) feeds it and asks it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from acktree.schemas.codec import Absent, Cause, Failure, Result, Span
from acktree.schemas.ids import is_run_between, origin_of, origins_of
from acktree.schemas.stats import Value
from acktree.spark.ledger.done_set import runs
from acktree.spark.ledger.partition import PartitionLedger
from acktree.spark.ledger.result_cut import Emission, Opened
from acktree.spark.ledger.retries import Replay, Verdict
from acktree.spark.runtime.logged_batch import (
    MAX_RANGES_PER_SLOT,
    MAX_STRETCHES_PER_SLOT,
    Attempts,
    Batch,
    EmittedBlocks,
    Progress,
    Range,
    Replays,
    group_attempts,
    group_replays,
)

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
    "commands",
    "lost",
    "crowded",
)


class SourcePartition(NamedTuple):
    """Where a slot's records stand; ``topic_id`` tells a re-created topic from the old one."""

    slot: int
    topic: str
    partition: int
    topic_id: str


class DeadLetter(NamedTuple):
    """A source record whose attempts are used up, with what its last failure said.

    ``failing_s`` is how long ago this driver saw it fail first.
    """

    source: SourcePartition
    offset: int
    attempts: int
    cause: Cause
    task: str
    reason: str
    failing_s: float = 0.0


class Effect(NamedTuple):
    """What a record of a result topic did: highest offset done per slot, failures opened, letters due."""

    highest: dict[int, int]
    opened: list[Opened]
    letters: list[DeadLetter]


@dataclass(slots=True)
class TaskLedger:
    """Ledgers by slot of one spout task; times in seconds of any one monotonic clock."""

    task: int
    run: int
    sources: dict[int, SourcePartition]
    slots: dict[int, PartitionLedger]
    message_timeout_s: float
    counters: Counter[str] = field(default_factory=Counter)
    pending_s: float = 0.0
    crowded: set[int] = field(default_factory=set)
    """Slots that emit nothing new though there is something: they have MAX_STRETCHES_PER_SLOT in flight."""
    _last_acked_s: float | None = None
    _looked_s: float | None = None

    @property
    def pending(self) -> int:
        return sum(ledger.pending for ledger in self.slots.values())

    def take(self, result: Result, now_s: float, jitter: float) -> Effect:
        """Apply one result record, as far as it is about slots of this task."""
        highest = self._take_acked(result, now_s)
        opened: list[Opened] = []
        letters: list[DeadLetter] = []
        for failure in result.failed:
            origin = origin_of(failure.root)
            ledger = self.slots.get(origin.slot)
            if ledger is None or not is_run_between(origin.run, ledger.floor, self.run):
                continue
            counts = failure.cause is Cause.FAILED or self._is_alive(now_s)
            emission = Emission(*origin)
            verdict = ledger.failed(*emission[1:], now_s, counts=counts, jitter=jitter)
            if verdict is Verdict.IGNORED:
                continue
            name = "failed" if failure.cause is Cause.FAILED else "timed_out"
            self.counters[name] += len(ledger.left_of(*emission[1:]))
            opened.append(Opened(emission, ledger.last_of(emission.first)))
            if verdict is Verdict.EXHAUSTED:
                letters += self._letters(ledger, *origin, failure, now_s)
        return Effect(highest, opened, letters)

    def _letters(
        self,
        ledger: PartitionLedger,
        slot: int,
        generation: int,
        first: int,
        failure: Failure,
        now_s: float,
    ) -> list[DeadLetter]:
        """Return a letter for each record of a block whose attempts are used up."""
        attempt = ledger.attempts_of(generation, first)
        said = (attempt.attempts, failure.cause, failure.task, failure.reason)
        failing_s = now_s - (attempt.first_failed_s or now_s)
        left = ledger.left_of(generation, first)
        return [DeadLetter(self.sources[slot], offset, *said, failing_s) for offset in left]

    def _is_alive(self, now_s: float) -> bool:
        """Tell whether something was acked within the message timeout; 0 is none, so ever."""
        return self._last_acked_s is not None and now_s - self._last_acked_s <= (
            self.message_timeout_s or inf
        )

    def _take_acked(self, result: Result, now_s: float) -> dict[int, int]:
        slots, generations, offsets = origins_of(result.acked)
        highest: dict[int, int] = {}
        for slot in np.flatnonzero(np.bincount(slots)).tolist():
            ledger = self.slots.get(slot)
            if ledger is None:
                continue
            mine = slots == slot
            known = mine & is_run_between(generations >> 4, ledger.floor, self.run)
            finished = ledger.acked(generations[known], offsets[known])
            if finished:
                self._last_acked_s = now_s
                self.counters["completed"] += finished
            highest[slot] = ledger.last_of(int(offsets[mine].max()))
        return highest

    def take_absent(self, absent: Absent) -> Effect:
        """Apply the proof that offsets hold no record: they are done."""
        highest: dict[int, int] = {}
        ledger = self.slots.get(absent.slot)
        if ledger is not None and (absent.run is None or is_run_between(absent.run, ledger.floor, self.run)):
            for first, following in absent.spans:
                self.counters["absent"] += ledger.finish(first, following, absent.run)
                highest[absent.slot] = max(
                    highest.get(absent.slot, 0), min(following, ledger.next_offset) - 1
                )
        return Effect(highest, [], [])

    def drop(self, slot: int) -> None:
        """Forget a slot whose topic is gone."""
        self.counters["lost"] += self.slots.pop(slot).pending
        self.crowded.discard(slot)
        del self.sources[slot]

    def bury(self, letter: DeadLetter, counted: str = "dead_lettered") -> None:
        """Note that a dead letter is written, or that its record is gone: it is done, and ``counted`` so."""
        finished = self.slots[letter.source.slot].finish(letter.offset, letter.offset + 1)
        self.counters[counted] += finished

    def finish_batch(self, batch: Batch) -> int:
        """Note that all of a batch is done: tracking is off, a record is done when its batch is.

        Returns how many offsets are newly done.
        """
        finished = 0
        for range_ in (*batch.ranges, *batch.again):
            if (ledger := self.slots.get(range_.slot)) is not None:
                finished += ledger.finish(range_.start, range_.end, range_.run)
        for replays in batch.replays:
            if (ledger := self.slots.get(replays.slot)) is not None:
                offsets = BitMap64([offset for offset, _ in replays.emitted()])
                finished += ledger.finish_all(offsets, replays.generation >> 4)
        self.counters["completed"] += finished
        return finished

    def emit(
        self, ends: Mapping[int, int], most: int, now_s: float, largest_block: int | None = None
    ) -> list[Range]:
        """Emit at most ``most`` new offsets below the ends per slot, shared out evenly over the slots.

        Blocks are no larger than ``largest_block``. A block is cut short by the end of the log alone; for
        a whole one the slot waits until there is room.
        """
        ranges: list[Range] = []
        waiting = sorted(self.slots, key=lambda slot: ends.get(slot, 0) - self.slots[slot].next_offset)
        for place, slot in enumerate(waiting):
            ledger, source = self.slots[slot], self.sources[slot]
            start = ledger.next_offset
            there = max(0, ends.get(slot, 0) - start)
            share = min(most // (len(waiting) - place), there)
            size = min(ledger.block, largest_block or ledger.block)
            stop = start + share if share == there else max(start, (start + share) // size * size)
            most_parts = min(MAX_RANGES_PER_SLOT, MAX_STRETCHES_PER_SLOT - len(ledger.blocks.stretches))
            self._note_crowd(slot, is_crowded=there > 0 >= most_parts)
            parts = ledger.emit(stop, most_parts, now_s, self.run, size)
            parts = parts or [(ledger.next_offset, ledger.next_offset)]
            ranges += [Range(source.topic, source.partition, slot, self.run, *part, size) for part in parts]
            fresh = sum(end - begin for begin, end in parts)
            self.counters["emitted"] += fresh
            most -= fresh
        return ranges

    def _note_crowd(self, slot: int, *, is_crowded: bool) -> None:
        self.counters["crowded"] += is_crowded
        (self.crowded.add if is_crowded else self.crowded.discard)(slot)

    def emit_again(self, most: int, now_s: float) -> list[Range]:
        """Emit what replay commands ask for, with at most ``most`` offsets of each slot's in flight."""
        ranges: list[Range] = []
        for slot, ledger in self.slots.items():
            source = self.sources[slot]
            parts = ledger.emit_again(most, MAX_RANGES_PER_SLOT, now_s)
            size = ledger.command.block if ledger.command else 1
            ranges += [Range(source.topic, source.partition, slot, self.run, *part, size) for part in parts]
        self.counters["replayed"] += sum(range_.end - range_.start for range_ in ranges)
        return ranges

    def attempts(self, most_spans: int) -> list[Attempts]:
        """Return what a restart could not learn from generations; at most ``most_spans`` spans of offsets."""
        told: list[Attempts] = []
        for slot, ledger in self.slots.items():
            told += group_attempts(slot, ledger.uncounted(), most_spans)
            most_spans -= sum(len(each.spans) for each in told if each.slot == slot)
        return told

    def progress(self) -> list[Progress]:
        """Return how far each command that matters is emitted."""
        commands = [command for ledger in self.slots.values() for command in ledger.commands.known]
        return [Progress(each.task, each.position, each.next_offset, each.block) for each in commands]

    def blocks(self) -> list[EmittedBlocks]:
        """Return where the blocks of what is in flight begin and end, which a restart could not learn."""
        return [
            EmittedBlocks(slot, each.start, each.end, each.size, each.run)
            for slot, ledger in self.slots.items()
            for each in ledger.blocks.stretches
        ]

    def replay_due(self, now_s: float, most: int) -> list[Replays]:
        """Emit again what is due, at most ``most`` blocks."""
        replays: list[Replays] = []
        for slot, ledger in self.slots.items():
            due = ledger.take_due(now_s, self.run, most)
            most -= len(due)
            source = self.sources[slot]
            spans_of = partial(_spans_left, ledger)
            replays += group_replays(source.topic, source.partition, slot, due, spans_of)
        self.counters["replayed"] += sum(group.records for group in replays)
        return replays

    def take_answered(self) -> list[Emission]:
        """Return the failed emissions that were replayed since asked last."""
        return [
            Emission(slot, generation, first)
            for slot, ledger in self.slots.items()
            for first, generation in ledger.take_answered()
        ]

    @property
    def is_run_used_up(self) -> bool:
        """Tell whether one more replay in this run may have the root id of an earlier emission in it."""
        return any(ledger.is_run_used_up(self.run) for ledger in self.slots.values())

    def fail_overdue(self, before_s: float, now_s: float, most: int) -> None:
        """Replay what was emitted before a time and never got a verdict."""
        for ledger in self.slots.values():
            self.counters["overdue"] += ledger.fail_overdue(before_s, now_s, most)

    def look(self, now_s: float) -> None:
        """Add up the time records are pending; divided by those completed: the complete latency (Little)."""
        if self._looked_s is not None:
            self.pending_s += self.pending * (now_s - self._looked_s)
        self._looked_s = now_s

    def figures(self, now_s: float) -> dict[str, Value]:
        """Return what the task reports of itself: counts since the start, and where it stands."""
        stands: dict[str, Value] = {}
        for slot, ledger in self.slots.items():
            place = f"{self.sources[slot].topic}.{self.sources[slot].partition}"
            stands[f"frontier.{place}"] = ledger.frontier
            stands[f"next.{place}"] = ledger.next_offset
            stands[f"held_s.{place}"] = round(ledger.held_s(now_s), 3)
        counted = {name: self.counters[name] for name in COUNTED}
        about = {"pending": self.pending, "pending_s": round(self.pending_s, 3)}
        return {**counted, **about, "task": self.task, "run": self.run, **stands}

    def is_open(self, emission: Emission) -> bool:
        """Tell whether something that an emission stands for is not done."""
        ledger = self.slots.get(emission.slot)
        return ledger is not None and bool(ledger.left_of(emission.generation, emission.first))


def _spans_left(ledger: PartitionLedger, replay: Replay) -> tuple[Span, ...]:
    """Return what is to be emitted of a block; nothing where that is its first record alone."""
    left = ledger.left_of(replay.generation, replay.offset)
    if len(left) == 1 and replay.offset in left:
        return ()
    return tuple(Span(*run) for run in runs(left, 0, len(left)))
