"""The ledger of one source partition: which offsets are emitted, done, failed and due again.

Invariant: frontier <= the smallest offset not done, and a bit in ``done`` is an offset that is done. Repeated
and late results are no-ops. Results are about blocks, named by their first offsets; what is done is kept by
offset. Pure: time, jitter and results are arguments; nothing here knows Kafka.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.schemas.ids import run_at_least
from acktree.schemas.retry_policy import RetryPolicy
from acktree.spark.ledger.blocks import Blocks
from acktree.spark.ledger.commands import Commands
from acktree.spark.ledger.done_set import EVERYTHING, first_absent, next_done
from acktree.spark.ledger.emission_times import EmissionTimes
from acktree.spark.ledger.live_replay import LiveReplay
from acktree.spark.ledger.retries import FailureOutcome, Replay, Retries, name_of_rest
from acktree.spark.runtime.logged_batch import MAX_BLOCK_RANGES_PER_SLOT


@dataclass(slots=True)
class PartitionLedger:
    """State of one slot. ``next_offset`` is the next offset to emit for the first time, exclusive end."""

    frontier: int
    next_offset: int
    floor: int
    policy: RetryPolicy
    block: int = 1
    """The largest number of records per root, in what is emitted from here on."""
    done: BitMap64 = field(default_factory=BitMap64)
    blocks: Blocks = field(default_factory=Blocks)
    retries: Retries = field(default_factory=Retries)
    commands: Commands = field(default_factory=Commands)
    committed_done: BitMap64 = field(default_factory=BitMap64)
    """The part of ``done`` that commits hold: all later commits must hold it, too."""
    changes: int = 0
    """Grows with every change of ``frontier`` or ``done``."""
    emitted_before: int = 0
    """Earlier drivers may have emitted what is below: acks of it count before it is emitted again."""
    times: EmissionTimes = field(default_factory=EmissionTimes)

    @property
    def command(self) -> LiveReplay | None:
        """Return the replay command that is under way."""
        return self.commands.live

    @property
    def pending(self) -> int:
        """Return how many offsets are emitted and not done."""
        emitted = self.next_offset - self.frontier
        waiting = self.command.unemitted(self._left()) if self.command else 0
        return emitted - self.done.range_cardinality(self.frontier, self.next_offset) - waiting

    def _left(self) -> BitMap64:
        """Return what the live command asks for and is not done."""
        return self.command.left(self.frontier, self.done) if self.command else BitMap64()

    def emit(
        self, end: int, max_ranges: int, now_s: float, run: int = 0, size: int = 1
    ) -> list[tuple[int, int]]:
        """Emit up to ``end`` and return the ranges [start, end) to read, those done already left out.

        A range is emitted in ``run``, as blocks cut at its start and at multiples of ``size``.
        """
        assert run or size == 1, "which run blocks are of decides which acks finish them"
        ranges: list[tuple[int, int]] = []
        before = self.next_offset
        while self.next_offset < end and len(ranges) < max_ranges:
            start = first_absent(self.done, self.next_offset)
            following = next_done(self.done, start)
            stop = min(end, following if following is not None else end)
            if start < stop:
                ranges.append((start, stop))
                self.blocks.emit(start, stop, size, run)
            self.next_offset = max(self.next_offset, min(max(start, stop), end))
        if self.next_offset > before:
            self.commands.void.clear()
            self.times.record(self.next_offset, now_s)
        self._advance()
        return ranges

    def acked(self, generations: NDArray[np.int64], firsts: NDArray[np.int64]) -> int:
        """Mark blocks as done, whichever emission was acked; return how many offsets are newly done."""
        # Life of a record, step 11.
        wanted = (firsts > self.frontier - self._largest) & (firsts < self.known_end)
        runs_of = generations >> 4
        finished = BitMap64()
        for run in np.flatnonzero(np.bincount(runs_of[wanted])).tolist():
            finished |= self._cover(firsts[wanted & (runs_of == run)], run)
        finished.remove_range(0, self.frontier)
        finished.remove_range(self.known_end, EVERYTHING)
        return self._finish(finished)

    @property
    def known_end(self) -> int:
        """Behind the last offset that was emitted, by this driver or one before it."""
        return max(self.next_offset, self.emitted_before)

    @property
    def _largest(self) -> int:
        return max(self.blocks.largest, self.commands.largest_block)

    def last_of(self, first: int) -> int:
        """Return an upper bound of the last emitted offset of the block that begins there."""
        return min(first + self._largest, self.known_end) - 1

    def _cover(self, firsts: NDArray[np.int64], run: int) -> BitMap64:
        """Return the offsets that were in the trees of roots of a run, as far as it counts for them."""
        if not run_at_least(run, self.floor):
            return BitMap64()
        covered, others = self.commands.cover(firsts, run)
        return covered | (self.blocks.cover(others, run) - self.commands.offsets())

    def left_of(self, generation: int, first: int) -> BitMap64:
        """Return what is not done of an emission's block, nothing if the emission no longer counts."""
        return self._emission(generation, first)[1]

    def _emission(self, generation: int, first: int) -> tuple[Retries, BitMap64]:
        """Return where an emission's attempts are counted, and what is not done of its block."""
        run = generation >> 4
        if not run_at_least(run, self.floor):
            return self.retries, BitMap64()
        if (commanded := self.commands.emission(first, run)) is not None:
            retries, block = commanded
            return retries, self._open(block)
        return self.retries, BitMap64() if self.blocks.is_older(first, run) else self._left_at(first)

    def _open(self, offsets: BitMap64) -> BitMap64:
        """Return those of the offsets that are emitted and not done."""
        left = offsets - self.done
        left.remove_range(0, self.frontier)
        left.remove_range(self.next_offset, EVERYTHING)
        return left

    def _left_at(self, first: int) -> BitMap64:
        """Return what is not done of the block there, but for what commands ask for."""
        block = BitMap64()
        block.add_range(first, self.blocks.end_of(first))
        return self._open(block - self.commands.offsets())

    def finish(self, start: int, end: int, run: int | None = None) -> int:
        """Mark every emitted offset of [start, end) as done; return how many are newly done.

        With ``run`` only those for which an emission in that run counts.
        """
        span = BitMap64()
        span.add_range(max(start, self.frontier), max(min(end, self.next_offset), self.frontier))
        return self.finish_all(span, run)

    def finish_all(self, offsets: BitMap64, run: int | None = None) -> int:
        """Mark those of the offsets that are emitted as done, as ``finish`` does."""
        if run is not None and not run_at_least(run, self.floor):
            return 0
        if run is not None and self.command is not None and not run_at_least(run, self.command.floor):
            offsets = offsets - self.command.offsets
        return self._finish(self._open(offsets))

    def _finish(self, offsets: BitMap64) -> int:
        before = len(self.done)
        self.done |= offsets
        newly = len(self.done) - before
        self.changes += newly > 0
        self._discard_retries()
        self._advance()
        return newly

    def _discard_retries(self) -> None:
        """Discard the attempts of blocks of which nothing is left."""
        if self.retries.attempts:
            gone = self.done | self.commands.offsets()
            self.retries.discard(lambda o: (o < self.frontier or o in gone) and not self._left_at(o))
        self.commands.discard_retries(self._is_done)

    def _advance(self) -> None:
        frontier = min(first_absent(self.done, self.frontier), self.next_offset)
        if frontier > self.frontier:
            self.done.remove_range(self.frontier, frontier)
            self.committed_done.remove_range(self.frontier, frontier)
            self.frontier = frontier
            self.changes += 1

    def resume(self, now_s: float) -> None:
        """Count what is in flight at a restart as emitted at that time."""
        self.times.record(self.next_offset, now_s)

    def _is_done(self, start: int, end: int) -> bool:
        """Return whether nothing of [start, end) is emitted and not done."""
        start, end = max(start, self.frontier), min(end, self.next_offset)
        return start >= end or self.done.range_cardinality(start, end) == end - start

    def failed(
        self,
        generation: int,
        first: int,
        now_s: float,
        *,
        counts: bool,
        jitter: float = 0.0,
        after_s: float | None = None,
        is_rejected: bool = False,
    ) -> FailureOutcome:
        """Record one failed emission; ``counts`` is False if it says nothing about the records themselves.

        ``after_s`` takes the place of the back-off. ``is_rejected``: a bolt says that a record of it need not
        be tried again. Of a block of several nobody knows which: it is emitted again in halves. Of a
        command's block, or with MAX_BLOCK_RANGES_PER_SLOT, that is a failure like others. Ignored unless
        something of the block is open and the generation its newest.
        """
        # Life of a record, step 11.
        retries, left = self._emission(generation, first)
        if not left:
            return FailureOutcome.IGNORED
        is_own = retries is self.retries
        is_alone = self.blocks.end_of(first) - first == 1 if is_own else self.commands.largest_block == 1
        may_halve = is_own and len(self.blocks.ranges) < MAX_BLOCK_RANGES_PER_SLOT
        if self.commands.known:
            first = retries.name_of(first, left)
        if is_rejected and (is_alone or may_halve):
            return retries.reject(generation, first, now_s, is_alone=is_alone)
        return retries.fail(
            generation, first, now_s, self.policy, counts=counts, jitter=jitter, after_s=after_s
        )

    def _halve(self, first: int) -> int | None:
        """Cut a block where half of what is left of it begins, and return that; None for one record."""
        left = self._left_at(first)
        if len(left) < 2:
            return None
        self.blocks.cut_at(middle := int(left[len(left) // 2]))
        return middle

    def find_attempt(self, generation: int, first: int) -> tuple[Retries, int] | None:
        """Return where the failures of an emission that has failed are known, and by which offset.

        None where nothing of its block is open, or it is not the newest emission of it.
        """
        retries, left = self._emission(generation, first)
        name = retries.name_of(first, left) if left else first
        return (retries, name) if left and retries.has_failed(generation, name) else None

    def emit_due(self, now_s: float, run: int, limit: int) -> list[Replay]:
        """Emit what is due again, at most ``limit`` blocks; what was done or rewound meanwhile falls away."""
        name = partial(name_of_rest, self._left_at, self.commands.offsets())
        taken = self.retries.emit_due(now_s, run, limit, name, self._halve)
        return taken + self.commands.emit_due(now_s, run, limit - len(taken), self._open)

    def pop_answered(self) -> list[tuple[int, int]]:
        """Return the failed emissions (first offset, generation) that were replayed since the last call."""
        return [failed for retries in self._all_retries() for failed in retries.pop_answered()]

    def is_run_used_up(self, run: int) -> bool:
        """Return whether one more replay in a run may have the root id of an earlier emission in it."""
        return any(retries.is_run_used_up(run) for retries in self._all_retries())

    def _all_retries(self) -> list[Retries]:
        return [self.retries, *self.commands.retries]

    def fail_overdue(self, before_s: float, now_s: float, limit: int) -> int:
        """Fail what was emitted before a time and has no result, at most ``limit`` blocks.

        A safety net: the control records of such an emission have expired, so no acker can finish it. It says
        nothing about the records, so it does not count as an attempt. Returns how many blocks are due again.
        """
        late = BitMap64()
        late.add_range(self.frontier, max(self.times.overdue_end(before_s), self.frontier))
        late = self._open(late) - self.commands.offsets()
        count = self.commands.fail_overdue(self.frontier, self.done, before_s, now_s, limit)
        return count + self.retries.fail_overdue(self.blocks.split(late), before_s, now_s, limit - count)

    def restore_replay(self, replay: Replay, now_s: float) -> None:
        """Restore an emission of a written batch as the newest of its block."""
        retries, left = self._emission(replay.generation, replay.offset)
        if left:
            retries.restore(replay, now_s)

    def uncounted(self) -> list[Replay]:
        """Return the newest emissions whose generation does not say how many attempts had counted."""
        return [replay for retries in self._all_retries() for replay in retries.uncounted()]

    def discard_blocks(self, reach: int) -> None:
        """Discard the blocks that are done; what is done below ``reach`` is committed.

        What is committed as done stays done: results of those blocks no longer matter.
        """
        self.blocks.discard(lambda start, end: end <= max(reach, self.frontier) and self._is_done(start, end))

    def rewind(self, offset: int, run: int) -> None:
        """Apply an operator's reset: backwards makes ``run`` the floor and emits again, forward skips."""
        if offset < self.frontier:
            self.emit_anew(offset, run)
        else:
            self.next_offset = max(self.next_offset, offset)
            self.finish(self.frontier, offset)

    def open_from(self, offset: int) -> int:
        """Return how many offsets from one on are emitted and not done."""
        behind = BitMap64()
        behind.add_range(offset, max(offset, self.next_offset))
        return len(self._open(behind))

    def emit_anew(self, offset: int, run: int) -> None:
        """Discard all state from an offset on, which is at most the frontier; ``run`` becomes the floor."""
        assert offset <= self.frontier, "what is not done stays known"
        self.frontier = self.next_offset = offset
        self.floor = run
        self.changes += 1
        self.done.clear()
        self.committed_done.clear()
        self._clear_emissions()

    def renew(self, run: int) -> None:
        """Emit again all that is not done, with ``run`` as the floor: the runs of its emissions are old."""
        self.next_offset = self.frontier
        self.floor = run
        self._clear_emissions()

    def _clear_emissions(self) -> None:
        self.commands = Commands()
        self.blocks, self.retries = Blocks(), Retries()
        self.times.clear()
        self.emitted_before = 0

    def held_s(self, now_s: float) -> float:
        """Return how long ago the record at the frontier was emitted (or resumed), 0 if none is."""
        return self.times.age_s(self.frontier, now_s) if self.frontier < self.next_offset else 0.0

    def apply(self, command: LiveReplay) -> None:
        """Reopen the offsets of a replay command, done or not; all were emitted before."""
        assert self.command is None, "one command a slot at a time"
        _, self.committed_done = command.reopen(self.frontier, self.committed_done)
        self.frontier, self.done = command.reopen(self.frontier, self.done)
        self.changes += 1
        self.commands.live = command
        self._discard_retries()

    def emit_again(self, limit: int, max_ranges: int, now_s: float) -> list[tuple[int, int]]:
        """Emit what the live command asks for, with at most ``limit`` of it in flight; return the ranges."""
        return self.command.emit_within(self._left(), limit, max_ranges, now_s) if self.command else []

    def end_command(self) -> None:
        """End the live command once all that it asked for is done."""
        self.commands.end(is_done=not self._left(), blocks=self.blocks, frontier=self.frontier)
