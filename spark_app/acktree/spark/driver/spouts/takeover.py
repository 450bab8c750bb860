"""What a spout task looks like when a driver takes over: from the state, the group's offsets and the logged
batch, and what a batch must hold for it.

Invariant: what the logged batch has emitted stays in flight and is not emitted again, unless an operator has
moved the group meanwhile, the group's offset is gone, or the checkpoint is an older one; the emissions of a
run below the floor do not count. A missing offset proves nothing: what the logged batch knows to be done
decides then, never startingOffsets. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from acktree.core.topology.registry import Published
from acktree.core.topology.retry_policy import RetryPolicy, retry_policy
from acktree.spark.driver.group_offsets import CommittedOffset
from acktree.spark.ledger.logged_batch import (
    MAX_ATTEMPT_SPANS,
    EmittedBlocks,
    Frontier,
    PlannedBatch,
    Range,
)
from acktree.spark.ledger.partitions.emission_times import FirstEmission
from acktree.spark.ledger.partitions.live_replay import LiveReplay
from acktree.spark.ledger.partitions.partition import PartitionLedger
from acktree.spark.ledger.partitions.retries import Replay
from acktree.spark.ledger.task import SourceSlot, TaskLedger
from acktree.wire.ids import MAX_RUN, is_run_between, run_at_least

OLDEST_FLOOR_RUNS = 100


def is_too_old(floor: int, run: int) -> bool:
    """Return whether all in flight must be emitted again: a floor this old is near the wrap of run numbers.

    Else results of what is in flight since would be ignored one day, and nothing would replay it for hours.
    """
    return (run - floor) % MAX_RUN >= OLDEST_FLOOR_RUNS


def raised(floor: int, run: int) -> int:
    """Return a floor that is near enough to a run for serial-number arithmetic, of a slot that is not read.

    >>> raised(3, 90), raised(3, 240), raised(250, 4)
    (3, 139, 250)
    """
    behind = (run - floor) % MAX_RUN
    return floor if behind <= OLDEST_FLOOR_RUNS else (run - OLDEST_FLOOR_RUNS - 1) % MAX_RUN + 1


def empty_batch(version: int, tasks: Iterable[TaskLedger]) -> PlannedBatch:
    """Return an empty batch with the position of every slot."""
    ranges: list[Range] = []
    for task in tasks:
        for slot, source in task.sources.items():
            at = task.slots[slot].next_offset
            ranges.append(Range(source.topic, source.partition, slot, task.run, at, at))
    return PlannedBatch(version, tuple(ranges), frontiers=_frontiers(tasks))


def with_state(
    batch: PlannedBatch, tasks: Collection[TaskLedger], wall_ms: Callable[[float], int]
) -> PlannedBatch:
    """Return a planned batch with what a start cannot learn elsewhere; ``wall_ms`` converts times."""
    return replace(
        batch,
        progress=tuple(entry for task in tasks for entry in task.progress()),
        attempts=tuple(entry for task in tasks for entry in task.attempts(MAX_ATTEMPT_SPANS // len(tasks))),
        blocks=tuple(entry for task in tasks for entry in task.blocks()),
        frontiers=_frontiers(tasks, wall_ms),
    )


def _frontiers(
    tasks: Iterable[TaskLedger], wall_ms: Callable[[float], int] | None = None
) -> tuple[Frontier, ...]:
    ledgers = (ledger for task in tasks for ledger in task.slots.items())
    return tuple(_frontier(slot, ledger, wall_ms) for slot, ledger in ledgers)


def _frontier(slot: int, ledger: PartitionLedger, wall_ms: Callable[[float], int] | None) -> Frontier:
    held = ledger.first_emission()
    if held is None or wall_ms is None:
        return Frontier(slot, ledger.frontier)
    return Frontier(slot, ledger.frontier, wall_ms(held.time_s), held.is_first)


def if_newest(logged: PlannedBatch | None, number: int, seen_by: int) -> PlannedBatch | None:
    """Return the last batch of a checkpoint, None if that is an older one.

    The newest one ends with batch ``number``, which the driver of term ``seen_by`` has seen logged, or with
    a later one of that driver, which no commit knows of yet: then all results that it had read are read
    again. Of any other checkpoint results may be behind the result position that nobody reads again.
    """
    if logged is None or number in (0, logged.number):
        return logged
    return logged if logged.number > number and logged.term == seen_by else None


def known_frontiers(logged: PlannedBatch | None) -> dict[int, int]:
    """Return by slot below which offset all is done, as a logged batch says."""
    return {each.slot: each.offset for each in logged.frontiers} if logged else {}


def split_by_slot(batch: PlannedBatch) -> dict[int, PlannedBatch]:
    """Return by slot what a logged batch says of it, so that no slot looks through that of all."""
    found: dict[int, dict[str, Any]] = {}
    for name in ("ranges", "replays", "attempts", "blocks", "frontiers"):
        for entry in getattr(batch, name):
            found.setdefault(entry.slot, {}).setdefault(name, []).append(entry)
    whole = PlannedBatch(batch.version, (), progress=batch.progress)
    return {slot: replace(whole, **entries) for slot, entries in found.items()}


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is durable of a spout: offsets by slot, floors by slot, commands by slot, the last batch.

    ``starts`` is where slots without a committed offset begin, ``ends`` where the logs end: what is there
    may have been emitted by earlier drivers.
    """

    committed: Mapping[int, CommittedOffset]
    starts: Mapping[int, int]
    floors: Mapping[int, int]
    commands: Mapping[int, LiveReplay]
    logged: PlannedBatch | None
    ends: Mapping[int, int] = field(default_factory=dict)
    time_s: Callable[[int], float] | None = None
    """Converts wall-clock milliseconds to the ledgers' seconds; None where ages do not matter."""

    def task(
        self,
        published: Published,
        spout: str,
        run: int,
        task: int,
        sources: Iterable[SourceSlot],
        now_s: float,
    ) -> TaskLedger:
        """Return a task's ledgers in a new run."""
        table = published.spouts[spout]
        policy = retry_policy(published, spout)
        by_slot = {source.slot: source for source in sources}
        parts = split_by_slot(self.logged) if self.logged else {}
        slots = {
            slot: replace(self, logged=parts.get(slot)).slot(slot, run, policy, now_s, table.block)
            for slot in by_slot
        }
        return TaskLedger(task, run, by_slot, slots, published.message_timeout_s)

    def slot(self, slot: int, run: int, policy: RetryPolicy, now_s: float, block: int = 1) -> PartitionLedger:
        """Return the ledger of one slot in a new run; what is new is emitted in blocks of that size."""
        committed = self.committed.get(slot)
        is_ours = committed is None or committed.ours is not None
        floor = self.floors.get(slot, run) if is_ours else run
        floor = run if is_too_old(floor, run) else floor
        frontier = committed.next_offset if committed else self.starts[slot]
        emitted = self._emitted(slot, frontier) if committed else []
        is_in_flight = bool(emitted) and all(is_run_between(each.run, floor, run) for each in emitted)
        known = emitted[0].end if is_in_flight else frontier
        ledger = PartitionLedger(frontier, max(frontier, known), floor, policy, block)
        if committed is not None:
            ledger.done = committed.done()
        ledger.resume(now_s)
        if not is_in_flight:  # all above the frontier is emitted again, except what acks say is done
            ledger.emitted_before = ledger.times.known_from = self.ends.get(slot, 0)
        if committed is None:
            self._void_command(ledger, slot)
            return ledger
        for block_range in self.logged.blocks if self.logged and is_in_flight else ():
            if block_range.slot == slot and is_run_between(block_range.run, floor, run):
                ledger.blocks.emit(block_range.start, block_range.end, block_range.size, block_range.run)
        if is_ours:
            self._restore_command(ledger, slot, now_s)
            self._restore_age(ledger, slot)
        for attempts in self.logged.attempts if self.logged else ():
            for offset in chain(*(range(*span) for span in attempts.spans)) if attempts.slot == slot else ():
                ledger.restore_replay(Replay(offset, attempts.generation, attempts.attempts), now_s)
        for replays in self.logged.replays if self.logged else ():
            for offset in replays.offsets if replays.slot == slot else ():
                ledger.restore_replay(Replay(offset, replays.generation, replays.attempts), now_s)
        return ledger

    def _restore_age(self, ledger: PartitionLedger, slot: int) -> None:
        """Restore since when the record at the frontier is emitted, if that is in flight."""
        if self.logged is None or self.time_s is None or ledger.frontier >= ledger.next_offset:
            return
        for each in self.logged.frontiers:
            if (each.slot, each.offset) == (slot, ledger.frontier) and each.emitted_ms:
                time_s = self.time_s(each.emitted_ms)
                ledger.restore_first_emission(FirstEmission(each.offset, time_s, each.is_first))

    def _emitted(self, slot: int, frontier: int) -> list[Range | EmittedBlocks]:
        """Return the last range of a slot, and all that is emitted and may not be done.

        A driver without a checkpoint that has emitted nothing may have raised the floor above some of it.
        """
        last = self._last_range(slot)
        blocks = self.logged.blocks if self.logged and last else ()
        return [*([last] if last else []), *(b for b in blocks if b.slot == slot and b.end > frontier)]

    def _last_range(self, slot: int) -> Range | None:
        ranges = [range_ for range_ in self.logged.ranges if range_.slot == slot] if self.logged else []
        return ranges[-1] if ranges else None

    def _command_of(self, slot: int, ledger: PartitionLedger) -> LiveReplay | None:
        command = self.commands.get(slot)
        return command if command and run_at_least(command.floor, ledger.floor) else None

    def _restore_command(self, ledger: PartitionLedger, slot: int, now_s: float) -> None:
        if (command := self._command_of(slot, ledger)) is None:
            return
        if ledger.next_offset == ledger.frontier:
            self._void_command(ledger, slot)
            return
        last = self._last_range(slot)
        progress = {entry[:2]: entry.next_offset for entry in self.logged.progress} if self.logged else {}
        emitted = progress.get((command.task, command.position))
        if emitted is None and last is not None and run_at_least(last.run, command.floor):
            return  # the driver that planned that batch knew that the command had ended
        if emitted is not None:
            command.resume(emitted, now_s)
        ledger.command = command

    def _void_command(self, ledger: PartitionLedger, slot: int) -> None:
        """Void all emissions before a command: what it opened is emitted again with all the rest."""
        if (command := self._command_of(slot, ledger)) is not None:
            ledger.floor, ledger.void = command.floor, command
