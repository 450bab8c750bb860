"""Everything pure of a spout task and all it makes durable, beside a model of single records.

The model knows which records each root stands for. Results are in a log and are read later, some of them
twice; a restart knows the committed state, the last batch and that log alone.
"""

import json
from typing import NamedTuple

import numpy as np

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.logged_batch import NUMBER_BITS, PlannedBatch
from acktree.producers.ledger.partitions.blocks import block_firsts
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.slot_states import emit_logged, ledger_of, state_of
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.wire.control_records import (
    BACK_OFF,
    NEVER,
    Absent,
    Cause,
    Failure,
    Result,
    Span,
)
from acktree.wire.ids import generation_of, next_run, origin_of, root_id
from acktree.wire.state_records import decode_slot_state, encode_slot_state

POLICY = RetryPolicy(initial_s=1, max_s=60, max_attempts=3)
LOG_END = 120
ABSENT = frozenset(offset for offset in range(LOG_END) if offset % 7 == 3 or 40 <= offset < 52)
"""Offsets that hold no record: reading past them proves it."""
POISON = frozenset(offset for offset in range(LOG_END) if offset % 8 == 5)
"""Records that bolts reject."""
A_DAY_S = 86_400.0


class Stored(NamedTuple):
    """What a commit makes durable."""

    slot: bytes
    batch: int
    planned: int
    position: int


class SpoutModel:
    """One slot, driven verb by verb; ``check`` holds after each of them, ``end`` ends everything.

    Its floors are plain numbers: it takes fewer runs than half of those that go round.
    """

    __test__ = False
    absent = ABSENT
    policy = POLICY

    def __init__(self) -> None:
        self.now_s, self.block, self.log_end = 0.0, 5, 0
        self.roots: dict[tuple[int, int], frozenset[int]] = {}
        self.finished: set[tuple[int, int]] = set()
        self.done: set[int] = set()
        self.proven: set[int] = set()
        """Offsets of which the log says that they hold no record: whoever reads that may call them done."""
        self.floors = [1] * LOG_END
        self.log: list[Result | Absent] = []
        self.logged: PlannedBatch | None = None
        self.all_logged: list[PlannedBatch] = []
        """The last batches of all checkpoints there ever were: an operator may restore any of them."""
        self.number = self.seen = self.planned = 0
        """Numbers of the newest batch, of the last known to be logged, and of that planned on the state."""
        self.given: int | None = None
        """The batch that Spark was given and that it has not named."""
        self.batches_logged = 0
        self.dead_letters: list[int] = []
        self.commands = self.results_read = 0
        self.waiting: int | None = None
        """Where in the log a command waits."""
        self._open(PartitionLedger(0, 0, 1, self.policy, 5))
        self.commit()

    def _open(self, led: PartitionLedger) -> None:
        self.led = led
        source = SourceSlot(0, "t", 0, "id")
        self.task = TaskLedger(0, {0: source}, {0: led}, 30.0)

    def _plan(self, limit: int, seconds: float) -> PlannedBatch:
        self.now_s += seconds
        self.known = set(range(self.led.frontier)) | set(self.led.done)
        self.task.renew_runs()
        state = self._state(self.number + 1)
        replays = self.task.replay_due(self.now_s, 1_000)
        again = self.task.emit_again(20, self.now_s)
        fresh = self.task.emit({0: self.log_end}, limit, self.now_s)
        batch = PlannedBatch(1, tuple(fresh), tuple(replays), tuple(again), number=self.number + 1)
        if batch.records:
            self.stored = state
            self.number = self.given = self.planned = self.number + 1
        again_from_json = PlannedBatch.from_json(json.loads(json.dumps(batch.to_json())))
        assert again_from_json == batch
        return again_from_json

    @property
    def run(self) -> int:
        return self.led.run

    def _read_batch(self, batch: PlannedBatch) -> None:
        """Do what the batch's tasks do: make roots, report what is absent."""
        emitted: dict[tuple[int, int], set[int]] = {}
        for each in (*batch.ranges, *batch.again):
            offsets = np.arange(each.start, each.end)
            firsts = block_firsts(offsets, each.start, each.block).tolist()
            for first, offset in zip(firsts, offsets.tolist(), strict=True):
                emitted.setdefault((generation_of(each.run, 0), first), set()).add(offset)
        for group in batch.replays:
            for offset in group.offsets:
                assert offset not in self.known, "only what is not done is replayed"
                emitted[group.generation, offset] = {offset}
        commanded = {offset for each in batch.again for offset in range(each.start, each.end)}
        for run in sorted({generation >> 4 for generation, _ in emitted}):
            of_run = {o for (generation, _), mine in emitted.items() if generation >> 4 == run for o in mine}
            if absent := sorted(of_run & self.absent):
                self.log.append(Absent(0, run, [Span(offset, offset + 1) for offset in absent]))
                self.proven.update(absent)
                self.done.update(absent)
        for root, mine in emitted.items():
            if held := frozenset(mine - self.absent):
                assert root[1] in commanded or not held & self.known, "done and emitted"
                assert root not in self.roots, "a root id that was used before"
                self.roots[root] = held

    def asked(self) -> None:
        """Be asked for a batch by Spark, which names the last one it has logged."""
        if self.logged is not None and self.logged.number == self.given:
            self.seen, self.planned, self.given = self.given, 0, None
        self.read()

    def batch(self, more: int, limit: int, seconds: float) -> None:
        """Be asked, plan a batch if there is something to emit, and run it."""
        self.log_end = min(LOG_END, self.log_end + more)
        self.asked()
        batch = self._plan(limit, seconds)
        if batch.records:
            self.logged = batch
            self.all_logged.append(batch)
            self.batches_logged += 1
            self._read_batch(batch)

    def open_roots(self) -> list[tuple[int, int]]:
        """Return the roots (generation, first offset) without a result."""
        return sorted(root for root in self.roots if root not in self.finished)

    def finish(self, root: tuple[int, int], is_good: bool) -> None:
        """Let the acker write its result."""
        self.finished.add(root)
        root_id_ = root_id(0, *root)
        if is_good:
            self.log.append(Result(0, np.array([root_id_], np.uint64)))
            run = root[0] >> 4
            self.done.update(o for o in self.roots[root] if run >= self.floors[o])
        else:
            self.log.append(Result(0, np.array([], np.uint64), [Failure(root_id_, Cause.FAILED, "b", "no")]))

    def says_when(self, root: tuple[int, int], retry_after_ms: int) -> None:
        """Let the acker write the two records of a failure that says when to retry; NEVER needs a poison."""
        if retry_after_ms == NEVER and not self.roots[root] & POISON:
            return
        self.finished.add(root)
        for retry in (retry_after_ms, BACK_OFF):
            self.log.append(Result(0, failed=[Failure(root_id(0, *root), Cause.FAILED, "b", "no", retry)]))

    def send_again(self, place: int) -> None:
        """Let an acker that was cut off write one of its results a second time."""
        if isinstance(result := self.log[place], Result):
            self.log.append(result)

    def read(self) -> None:
        """Read the result topic to its end; Spark has named what it has logged before."""
        if self.given is not None and self.logged is not None and self.logged.number == self.given:
            self.asked()
        if self.given is None:
            self.planned = 0
        for place in range(self.results_read, len(self.log)):
            record = self.log[place]
            if isinstance(record, Absent):
                self.task.apply_absent(record)
                continue
            for exhausted in self.task.apply(record, self.now_s, 0.0).exhausted:
                origin = origin_of(record.failed[0].root)
                assert self.roots[origin.generation, origin.offset] == {exhausted.offset}, "one of several"
                assert exhausted.cause is not Cause.REJECTED or exhausted.offset in POISON, "an innocent"
                self.done.add(exhausted.offset)
                self.dead_letters.append(exhausted.offset)
                self.task.finish_record(exhausted)
        self.results_read = len(self.log)
        self.led.end_command()
        if self.led.can_apply:
            self.waiting = None

    @property
    def position(self) -> int:
        """Return the result position that is committed."""
        return self.stored.position

    def _state(self, planned: int) -> Stored:
        self.led.end_command()
        self.led.discard_blocks()
        slot = encode_slot_state(state_of(self.led, self.now_s))
        position = self.results_read if self.waiting is None else min(self.waiting, self.results_read)
        return Stored(slot, self.seen, planned, position)

    def commit(self) -> None:
        """Commit all that has changed; nothing while Spark has not named the batch that it was given."""
        if self.given is None:
            self.stored = self._state(self.planned)

    def restart(
        self, keeps: bool, unlogged: bool, block: int, runs: int = 1, older: int | None = None
    ) -> None:
        """Start a driver that was killed again, with its checkpoint or without; ``runs`` drivers at once.

        ``older`` is the number of a checkpoint that is restored.
        Where the first batch was logged and not finished, Spark asks for the initial offset before.
        """
        if unlogged:
            self.asked()
            self._plan(10, 0.0)
        if not keeps:
            self.logged, self.batches_logged = None, 0
        if older is not None and self.all_logged:
            self.logged, self.batches_logged = self.all_logged[older % len(self.all_logged)], 2
        self.block = block
        for _ in range(runs):
            if keeps and self.batches_logged == 1:
                self._take_over(None)
                self.commit()
            self._take_over(self.logged)
            self.commit()

    def _take_over(self, logged: PlannedBatch | None) -> None:
        slot, self.seen, self.planned, self.results_read = self.stored
        self.given, self.waiting = None, None
        self.number = (self.number >> NUMBER_BITS) + 1 << NUMBER_BITS
        self._open(ledger_of(decode_slot_state(slot), self.policy, self.now_s, self.block))
        if logged is not None and logged.number in (self.seen, self.planned):
            if logged.number == self.planned:
                emit_logged([self.task], logged, self.now_s)
                self.seen, self.planned = logged.number, 0
        else:
            self.led.emitted_before = self.log_end
        self.led.begin_run()
        assert self.run > 1, "runs have gone round"

    def rewind(self, offset: int) -> None:
        """Let an operator commit another offset, at most the next one to emit."""
        self.read()
        offset = min(offset, self.led.next_offset)
        is_back = offset < self.led.frontier
        self.led.rewind(offset)
        if is_back:
            self.done = set(range(offset)) | self.proven
            self.floors[offset:] = [self.run] * (LOG_END - offset)
        self.done |= set(range(offset))
        self.commit()

    def command(self, first: int, length: int) -> None:
        """Let an operator replay some offsets, and the driver apply it if it can."""
        self.read()
        self.commands += 1
        asked, end = [Span(first, first + length), Span(first + 20, first + 25)], self.led.next_offset
        live = LiveReplay.of(0, self.commands, next_run(self.run), asked, end)
        if not self.led.can_apply:
            self.waiting = self.results_read if self.waiting is None else self.waiting
        if not self.led.can_apply or not live.offsets:
            return
        self.led.apply(live)
        self.done -= set(live.offsets) - self.proven
        for offset in live.offsets:
            self.floors[offset] = self.run
        self.commit()

    def check(self) -> None:
        """Check that what the ledger calls done is done."""
        assert set(range(self.led.frontier)) | set(self.led.done) <= self.done

    def end(self) -> None:
        """Let each emission without a result be acked: everything ends, nothing waits forever."""
        for _ in range(60):
            if self.is_quiet():
                break
            self.batch(0, 200, 1_000.0)
            for root in self.open_roots():
                self.finish(root, True)
            self.read()
            self.commit()
            self.check()
        assert self.is_quiet(), (self.led, self.position, len(self.log))

    def is_quiet(self) -> bool:
        """Return whether every record is done, and every result behind the committed position."""
        ends = (self.led.frontier, self.led.next_offset, self.log_end, self.position, self.led.pending)
        return ends == (self.log_end, self.log_end, self.log_end, len(self.log), 0)
