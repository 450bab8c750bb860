"""What a spout task looks like when a driver takes over: from the group's offsets, claim and logged batch.

Invariant: what the logged batch has emitted stays in flight and is not emitted again, unless an operator has
moved the group meanwhile; the emissions of a run below the floor do not count. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from acktree.producers.claim import Claim
from acktree.schemas.ids import MAX_RUN, run_at_least
from acktree.schemas.registry import Published
from acktree.spark.batch import Batch, Range
from acktree.spark.group_offsets import Committed
from acktree.spark.ledger import PartitionLedger
from acktree.spark.live_replay import LiveReplay
from acktree.spark.retries import Replay, RetryPolicy
from acktree.spark.task_ledger import SourcePartition, TaskLedger

OLDEST_FLOOR_RUNS = 100


def raised(floor: int, run: int) -> int:
    """Return a floor that is near enough to a run for serial-number arithmetic.

    >>> raised(3, 90), raised(3, 240), raised(250, 4)
    (3, 139, 250)
    """
    behind = (run - floor) % MAX_RUN
    return floor if behind <= OLDEST_FLOOR_RUNS else (run - OLDEST_FLOOR_RUNS - 1) % MAX_RUN + 1


@dataclass(frozen=True, slots=True)
class Takeover:
    """What is durable of a spout: offsets by slot, floors by slot, live commands by slot, the last batch.

    ``starts`` is where slots without a committed offset begin.
    """

    committed: Mapping[int, Committed]
    starts: Mapping[int, int]
    floors: Mapping[int, int]
    commands: Mapping[int, LiveReplay]
    logged: Batch | None

    def task(
        self,
        published: Published,
        spout: str,
        claim: Claim,
        task: int,
        sources: Iterable[SourcePartition],
        now_s: float,
    ) -> TaskLedger:
        """Return a task's ledgers and write the floors of its slots into its claim."""
        table = published.spouts[spout]
        policy = RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts)
        by_slot = {source.slot: source for source in sources}
        slots = {slot: self.slot(slot, claim.run, policy, now_s, table.block) for slot in by_slot}
        claim.floors |= {slot: ledger.floor for slot, ledger in slots.items()}
        return TaskLedger(task, claim.run, by_slot, slots, published.message_timeout_s)

    def slot(self, slot: int, run: int, policy: RetryPolicy, now_s: float, block: int = 1) -> PartitionLedger:
        """Return the ledger of one slot in a new run; what it emits anew is in blocks of that size."""
        stands = self.committed.get(slot)
        is_ours = stands is None or stands.ours is not None
        floor = raised(self.floors.get(slot, run), run) if is_ours else run
        frontier = stands.next_offset if stands else self.starts[slot]
        last = self._last_range(slot)
        known = last.end if last is not None and run_at_least(last.run, floor) else frontier
        ledger = PartitionLedger(frontier, max(frontier, known), floor, policy, block)
        if stands is not None:
            ledger.done = stands.done()
        ledger.resume(now_s)
        for stretch in self.logged.blocks if self.logged else ():
            if stretch.slot == slot and run_at_least(stretch.run, floor):
                ledger.blocks.emit(stretch.start, stretch.end, stretch.size, stretch.run)
        if is_ours:
            self._restore_command(ledger, slot, now_s)
        for told in self.logged.attempts if self.logged else ():
            for offset in chain(*(range(*span) for span in told.spans)) if told.slot == slot else ():
                ledger.restore_replay(Replay(offset, told.generation, told.attempts), now_s)
        for replays in self.logged.replays if self.logged else ():
            for offset in replays.offsets if replays.slot == slot else ():
                ledger.restore_replay(Replay(offset, replays.generation, replays.attempts), now_s)
        return ledger

    def _last_range(self, slot: int) -> Range | None:
        ranges = [range_ for range_ in self.logged.ranges if range_.slot == slot] if self.logged else []
        return ranges[-1] if ranges else None

    def _restore_command(self, ledger: PartitionLedger, slot: int, now_s: float) -> None:
        command = self.commands.get(slot)
        if command is None:
            return
        if ledger.next_offset == ledger.frontier:  # all of it is emitted anew, and older emissions are void
            ledger.floor = command.floor if run_at_least(command.floor, ledger.floor) else ledger.floor
            return
        command.block = ledger.block
        for progress in self.logged.progress if self.logged else ():
            if (progress.task, progress.position) == (command.task, command.position):
                command.resume(progress.next_offset, progress.block, now_s)
        ledger.command = command
