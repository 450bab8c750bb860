"""The ledger of one source partition: tracks which offsets are emitted, done, failed and due again.

Invariant: frontier <= the smallest offset not done, and a bit in ``done`` is an offset that is done. Repeated
and late results are no-ops, and what is emitted again is so in a later run or attempt. Pure: time, jitter and
results are arguments; nothing here knows Kafka.
"""

from dataclasses import astuple, dataclass, field

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.blocks import BlockRange, Blocks
from acktree.producers.ledger.partitions.done_set import EVERYTHING, first_absent, next_done, set_of
from acktree.producers.ledger.partitions.emission_times import EmissionTimes, FirstEmission
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.retries import FailureOutcome, Replay, Retries
from acktree.producers.ledger.pending_limit import PendingLimit
from acktree.wire.ids import ATTEMPT_MASK, MAX_RUN, is_run_between, next_run, run_at_least
from acktree.wire.state_records import SEVERAL_TASKS, UNKNOWN_EPOCH, LogEpoch

OLDEST_FLOOR_RUNS = 100


@dataclass(slots=True)
class PartitionLedger:
    """State of one slot. ``next_offset`` is the next offset to emit for the first time, exclusive end."""

    frontier: int
    next_offset: int
    floor: int
    policy: RetryPolicy
    block: int = 1
    """The largest number of records per root, in what is emitted from here on."""
    run: int = field(init=False)
    """That of what is emitted from here on. It is committed before, or with what is emitted in it."""
    task: int = SEVERAL_TASKS
    """The task on whose result topic the results are of what is emitted from here on."""
    other_tasks_end: int = 0
    """Results of what was emitted below may be on topics of other tasks."""
    done: BitMap64 = field(default_factory=BitMap64)
    blocks: Blocks = field(default_factory=Blocks)
    retries: Retries = field(default_factory=Retries)
    unwritten: BitMap64 = field(default_factory=BitMap64)
    """What is planned and not written yet: a restart emits it again immediately."""
    command: LiveReplay | None = None
    """The replay command that is under way."""
    changes: int = 0
    """Grows with every change of what a restart must know, beside ``retries``."""
    emitted_before: int = 0
    """Earlier drivers may have emitted what is below: acks of it count before it is emitted again."""
    times: EmissionTimes = field(default_factory=EmissionTimes)
    limit: PendingLimit = field(default_factory=PendingLimit)
    """What holds new records back; replays and commands pass it."""
    epoch: LogEpoch = UNKNOWN_EPOCH
    """Whose log was read, and how far; see its docstring."""
    pending_s: float = 0.0
    """Sum over the records that were completed of the time since their first emission."""

    def __post_init__(self) -> None:
        self.run = self.floor

    @property
    def version(self) -> object:
        """Return what is another one once anything has changed that a restart must know."""
        return self.changes, self.retries.changes, self.limit.allowed

    @property
    def pending(self) -> int:
        """Return how many offsets are emitted and not done."""
        emitted = self.next_offset - self.frontier
        waiting = self.command.unemitted(self._left()) if self.command else 0
        return emitted - self.done.range_cardinality(self.frontier, self.next_offset) - waiting

    def _left(self) -> BitMap64:
        """Return what the command asks for and is not done."""
        return self.command.left(self.frontier, self.done) if self.command else BitMap64()

    def block_size(self, largest: int | None) -> int:
        """Return how many records share a root in what is emitted next, at most ``largest``."""
        return 1 if self.blocks.is_full else min(self.block, largest or self.block)

    def emit(self, end: int, max_ranges: int, now_s: float, size: int = 1) -> list[tuple[int, int]]:
        """Emit up to ``end`` and return the ranges [start, end) to read, those done already left out.

        A range is emitted as blocks cut at its start and at multiples of ``size``.
        """
        ranges: list[tuple[int, int]] = []
        before = self.next_offset
        while self.next_offset < end and len(ranges) < max_ranges and not (size > 1 and self.blocks.is_full):
            start = first_absent(self.done, self.next_offset)
            following = next_done(self.done, start)
            stop = min(end, following if following is not None else end)
            if start < stop:
                ranges.append((start, stop))
                self.blocks.emit(start, stop, size, self.run)
            self.next_offset = max(self.next_offset, min(max(start, stop), end))
        if self.next_offset > before:
            self.changes += 1
            self.times.record(self.next_offset, now_s)
        self._advance()
        return ranges

    def pass_empty(self, end: int) -> int:
        """Finish the next offsets up to ``end`` without an emission: they hold no record; return how many."""
        count = end - self.next_offset - self.done.range_cardinality(self.next_offset, end)
        self.done.add_range(self.next_offset, end)
        self.next_offset = end
        self.changes += 1
        self._advance()
        return count

    def begin_writing(self, offsets: BitMap64) -> None:
        """Record offsets that are planned, and of which nothing is written yet."""
        self.unwritten |= offsets
        self.changes += 1

    def end_writing(self, offsets: BitMap64) -> None:
        """Record that all is written that comes of these, or that they have failed."""
        self.unwritten -= offsets
        self.changes += 1

    def emit_logged(self, emitted: BlockRange, now_s: float) -> None:
        """Record an emission of an earlier driver that its state does not hold yet."""
        if emitted.end > self.next_offset and run_at_least(emitted.run, self.floor):
            self.blocks.emit(*astuple(emitted))
            self.next_offset = emitted.end
            self.times.record(emitted.end, now_s)
            self.times.known_from = emitted.end
            self.changes += 1
            self._advance()

    def acked(self, generations: NDArray[np.int64], offsets: NDArray[np.int64], now_s: float = 0.0) -> int:
        """Mark what is in acked trees as done, whichever emission it was; return how much is newly done."""
        # Life of a record, step 11.
        counted = run_at_least(generations >> 4, self.floor)
        generations, offsets = generations[counted], offsets[counted]
        finished = self.blocks.cover(generations, offsets)
        if self.command is not None:
            is_its_own = run_at_least(generations >> 4, self.command.floor)
            finished -= self.command.offsets
            finished |= set_of(offsets[is_its_own]) & self.command.offsets
        finished.remove_range(0, self.frontier)
        finished.remove_range(self.known_end, EVERYTHING)
        return self._complete(finished - self.done, now_s)

    def _complete(self, offsets: BitMap64, now_s: float) -> int:
        """Finish offsets that are not done, and count how long they took."""
        mine = offsets & self.command.offsets if self.command else BitMap64()
        ages = self.times.ages(offsets - mine, now_s)
        self.limit.complete(ages, now_s)
        ages += self.command.times.ages(mine, now_s) if self.command else ()
        self.pending_s += sum(age_s * count for age_s, count in ages)
        return self._finish(offsets)

    @property
    def known_end(self) -> int:
        """Behind the last offset of which acks may count."""
        return max(self.next_offset, self.emitted_before)

    def knows_run(self, run: int) -> bool:
        """Return whether a run is one of those from the floor to the present one."""
        return is_run_between(run, self.floor, self.run)

    def is_open(self, generation: int, offset: int) -> bool:
        """Return whether a record is emitted and not done, and this emission of it counts."""
        floor = self.command.floor if self.command and offset in self.command.offsets else self.floor
        is_emitted = self.frontier <= offset < self.next_offset and offset not in self.done
        return is_emitted and run_at_least(generation >> 4, floor)

    def _open(self, offsets: BitMap64) -> BitMap64:
        """Return those of the offsets that are emitted and not done."""
        left = offsets - self.done
        left.remove_range(0, self.frontier)
        left.remove_range(self.next_offset, EVERYTHING)
        return left

    def finish(self, start: int, end: int, run: int | None = None) -> int:
        """Mark what is emitted of [start, end) as done, if ``run`` counts; return how many are newly done."""
        span = BitMap64()
        span.add_range(max(start, self.frontier), max(min(end, self.next_offset), self.frontier))
        return self._finish(self._open_of(span, run))

    def complete(self, offsets: BitMap64, run: int, now_s: float) -> int:
        """Mark those of the offsets that an emission in a run counts for as done, as acks do."""
        return self._complete(self._open_of(offsets, run), now_s)

    def _open_of(self, offsets: BitMap64, run: int | None) -> BitMap64:
        """Return those of the offsets that are emitted and not done, and for which a run counts."""
        if run is not None and not run_at_least(run, self.floor):
            return BitMap64()
        if run is not None and self.command is not None and not run_at_least(run, self.command.floor):
            offsets = offsets - self.command.offsets
        return self._open(offsets)

    def _finish(self, offsets: BitMap64) -> int:
        before = len(self.done)
        self.done |= offsets
        newly = len(self.done) - before
        self.changes += newly > 0
        self.retries.discard(offsets)
        self.unwritten -= offsets
        self._advance()
        return newly

    def _advance(self) -> None:
        frontier = min(first_absent(self.done, self.frontier), self.next_offset)
        if frontier > self.frontier:
            self.done.remove_range(self.frontier, frontier)
            self.frontier = frontier
            self.changes += 1

    def resume(self, now_s: float) -> None:
        """Count what is in flight at a restart as emitted at that time."""
        self.times.record(self.next_offset, now_s)
        self.times.known_from = self.next_offset

    def _is_done(self, start: int, end: int) -> bool:
        """Return whether nothing of [start, end) is emitted and not done."""
        start, end = max(start, self.frontier), min(end, self.next_offset)
        return start >= end or self.done.range_cardinality(start, end) == end - start

    def failed(
        self,
        generation: int,
        offset: int,
        now_s: float,
        *,
        counts: bool,
        jitter: float = 0.0,
        after_s: float | None = None,
        is_rejected: bool = False,
        reason: str = "",
    ) -> list[tuple[int, FailureOutcome]]:
        """Record one failed emission; return its records and what it led to, without those it leaves alone.

        ``counts`` is False if it says nothing about the records themselves. ``after_s`` takes the place of
        the back-off. ``is_rejected``: a bolt says that a record of it need not be tried again. It is
        unknown which of several records failed: the failure counts for none of them, and each is emitted
        again alone, without delay after a rejection. Records that are done or have a newer emission are
        left alone.
        """
        # Life of a record, step 11.
        block = self.blocks.find(generation, offset)
        is_alone = len(block) == 1 if block else self._was_alone(generation, offset)
        if is_rejected and not is_alone:
            is_rejected, after_s = False, 0.0
        outcomes: list[tuple[int, FailureOutcome]] = []
        for each in block or (offset,):
            if self.is_open(generation, each):
                outcome = self.retries.fail(
                    *(generation, each, now_s, self.policy),
                    counts=counts and is_alone,
                    jitter=jitter,
                    after_s=after_s,
                    is_rejected=is_rejected,
                    reason=reason,
                )
                if outcome is not FailureOutcome.IGNORED:
                    outcomes.append((each, outcome))
        return outcomes

    def _was_alone(self, generation: int, offset: int) -> bool:
        """Return whether an emission that belongs to no known block certainly had one record.

        A generation counts to 15: the sixteenth replay of a record looks like a first emission.
        """
        is_commanded = self.command is not None and offset in self.command.offsets
        is_replay = bool(generation & ATTEMPT_MASK) or self.retries.is_in_flight(generation, offset)
        return is_replay or is_commanded

    def fail_overdue(self, before_s: float, now_s: float, limit: int) -> int:
        """Fail what was emitted before a time and has no result, at most ``limit`` records.

        A safety net: the control records of such an emission have expired, so no acker can finish it. It says
        nothing about the records, so it does not count as an attempt. Returns how many records are due again.
        """
        late = BitMap64()
        late.add_range(self.frontier, max(self.times.overdue_end(before_s), self.frontier))
        if self.command is not None:
            late -= self.command.offsets
            late |= self.command.offsets if self.command.is_emitted_before(before_s) else BitMap64()
        return self.retries.fail_overdue(self._open(late), before_s, now_s, limit)

    def restore_replay(self, replay: Replay, now_s: float) -> None:
        """Restore an emission of the batch that was planned last as the newest of its record."""
        if self.is_open(replay.generation, replay.offset):
            self.retries.resume(replay, now_s)

    def discard_blocks(self) -> None:
        """Discard the blocks that are done: results of them no longer matter."""
        self.changes += self.blocks.discard(self._is_done)

    def rewind(self, offset: int) -> None:
        """Apply an operator's reset: backwards emits again, forward skips."""
        if offset < self.frontier:
            self.discard_from(offset)
        else:
            self.next_offset = max(self.next_offset, offset)
            self.changes += 1
            self.finish(self.frontier, offset)

    def saw(self, epoch: LogEpoch) -> None:
        """Record whose log was read, unless a later one, or more of it, was read before."""
        if epoch.epoch >= 0 and epoch > self.epoch:
            self.epoch = epoch
            self.changes += 1

    def open_from(self, offset: int) -> int:
        """Return how many offsets from one on are emitted and not done."""
        behind = BitMap64()
        behind.add_range(offset, max(offset, self.next_offset))
        return len(self._open(behind))

    @property
    def end_of_state(self) -> int:
        """Behind the last offset that is emitted or done: after ``renew`` both differ."""
        return max(self.next_offset, self.done.max() + 1) if self.done else self.next_offset

    def begin_run(self) -> None:
        """Begin a run, which has to be committed before anything is emitted in it.

        A floor that is near the wrap of run numbers is renewed: else results of what is in flight since would
        be ignored one day, and nothing would replay it for hours.
        """
        if (next_run(self.run) - self.floor) % MAX_RUN >= OLDEST_FLOOR_RUNS:
            self.renew()
            return
        self.run = next_run(self.run)
        self.changes += 1

    @property
    def is_run_used_up(self) -> bool:
        """Return whether one more replay in this run may have the root id of an earlier emission in it."""
        return self.retries.is_run_used_up(self.run)

    def deal_to(self, task: int) -> None:
        """Give the slot to a task: results of what is emitted from here on are on its result topic."""
        if task != self.task:
            self.task, self.other_tasks_end = task, self.next_offset
            self.changes += 1

    @property
    def result_task(self) -> int:
        """The task on whose result topic the results of all in flight are; SEVERAL_TASKS if on several."""
        return SEVERAL_TASKS if self.frontier < self.other_tasks_end else self.task

    def discard_from(self, offset: int) -> None:
        """Discard all state from an offset on, which is at most the frontier; only a new run counts."""
        assert offset <= self.frontier, "what is not done stays known"
        self.floor = self.run = next_run(self.run)
        self.changes += 1
        self.frontier = self.next_offset = offset
        self.done.clear()
        self._clear_emissions()

    def renew(self) -> None:
        """Emit again all that is not done, in a new run: no result of an earlier one counts."""
        held, known_from = self.first_emission(), self.next_offset
        self.floor = self.run = next_run(self.run)
        self.changes += 1
        self.next_offset = self.frontier
        self._clear_emissions()
        self.times.known_from = known_from
        if held is not None:
            self.times.restore(held)

    def _clear_emissions(self) -> None:
        self.command = None
        self.blocks, self.retries = Blocks(), Retries()
        self.unwritten.clear()
        self.times.clear()
        self.emitted_before = self.other_tasks_end = 0

    def first_emission(self) -> FirstEmission | None:
        """Return the first emission of the record at the frontier, None if it is not emitted.

        A replay command begins a new age.
        """
        if self.frontier >= self.next_offset:
            return None
        if self.command is not None and self.frontier in self.command.offsets:
            return self.command.first_emission(self.frontier)
        return self.times.first(self.frontier)

    def restore_first_emission(self, held: FirstEmission) -> None:
        """Restore when the record at the frontier, which is in flight, was emitted for the first time."""
        is_commanded = self.command is not None and held.offset in self.command.offsets
        (self.command.times if self.command and is_commanded else self.times).restore(held)

    def apply(self, command: LiveReplay) -> None:
        """Reopen the offsets of a replay command, done or not, in a new run; all were emitted before."""
        assert self.can_apply, "one command a slot at a time"
        self.frontier, self.done = command.reopen(self.frontier, self.done)
        self.changes += 1
        self.command = command
        self.retries.discard(command.offsets)
        self.begin_run()
        assert command.floor == self.run, "no earlier emission finishes what a command asks for"

    @property
    def can_apply(self) -> bool:
        """Return whether no replay command is under way."""
        return self.command is None

    def emit_again(self, limit: int, max_ranges: int, now_s: float) -> list[tuple[int, int]]:
        """Emit what the command asks for, with at most ``limit`` of it in flight; return the ranges."""
        ranges = self.command.emit(self._left(), limit, max_ranges, now_s) if self.command else []
        self.changes += len(ranges)
        return ranges

    def end_command(self) -> None:
        """End the command once all that it asked for is done: then it no longer matters who finishes it."""
        if self.command is not None and not self._left():
            self.command = None
            self.changes += 1
