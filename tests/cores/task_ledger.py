"""A spout task against single records of two slots: shared limits, results of any run, dead letters."""

from collections import Counter
from random import Random

import numpy as np

from acktree.producers.ledger.logged_batch import MAX_RANGES_PER_SLOT
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import FailureOutcome
from acktree.producers.ledger.task import ExhaustedRecord, SourceSlot, TaskLedger
from acktree.wire.control_records import Absent, Cause, Failure, Result, Span
from acktree.wire.ids import generation_of, next_run, root_id
from cores.retry_model import POLICY
from cores.script import Core, Did, same
from cores.slot_model import SlotModel

FOREIGN = 7
"""A slot of another task."""
TIMEOUT_S = 10.0
MAX_RUN = 255


class TaskScript:
    """A task of two slots; ``roots`` are the emissions (slot, generation, first offset) so far."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.now_s, self.acked_s = 0.0, None
        self.runs = {slot: draw.choice((1, 100, 254)) for slot in (0, 1)}
        self.size, self.counted = draw.choice((1, 1, 3)), Counter[str]()
        slots = {slot: PartitionLedger(0, 0, run, POLICY, self.size) for slot, run in self.runs.items()}
        sources = {slot: SourceSlot(slot, "t", slot, "id") for slot in slots}
        self.task = TaskLedger(0, sources, slots, TIMEOUT_S)
        self.models = {slot: SlotModel(0, run) for slot, run in self.runs.items()}
        self.roots: list[tuple[int, int, int]] = [(FOREIGN, generation_of(self.runs[0], 0), 1)]
        self.exhausted: list[ExhaustedRecord] = []
        self.ends = dict.fromkeys(slots, 0)
        self.emit()

    def step(self) -> None:
        kind = self.draw.random()
        self.now_s += self.draw.choice((0, 0, 1, 5, 20))
        if kind < 0.2:
            self.emit()
        elif kind < 0.6:
            self.apply()
        elif kind < 0.75:
            self.replay()
        elif kind < 0.85:
            self.absent()
        elif kind < 0.92:
            self.rewind()
        elif self.exhausted:
            self.finish_record()
        self.compare()

    def emit(self) -> None:
        for slot in self.ends:
            self.ends[slot] += self.draw.choice((0, 1, 4))
        limit = self.draw.choice((0, 1, 5, 30))
        self.did("emit", self.ends, limit, self.now_s)
        ranges = self.task.emit(self.ends, limit, self.now_s)
        waiting = {slot: max(0, self.ends[slot] - model.next) for slot, model in self.models.items()}
        turn = self.counted["emitted"] // self.size
        order = (1, 0) if turn % 2 else (0, 1)
        even = (limit + 1) // 2
        for number, slot in enumerate(sorted(order, key=lambda slot: min(waiting[slot], even))):
            model, quota = self.models[slot], limit if number else even
            end = model.next + min(quota, waiting[slot])
            if quota < waiting[slot]:
                end = max(model.next, end - end % self.size)
            parts = model.emit(end, MAX_RANGES_PER_SLOT, self.now_s, self.runs[slot], self.size)
            mine = [(each.start, each.end) for each in ranges if each.slot == slot]
            same(f"ranges of slot {slot}", mine, parts or [(model.next, model.next)])
            fresh = sum(stop - start for start, stop in parts)
            limit -= fresh
            self.counted["emitted"] += fresh
            firsts = sorted({model.blocks.first(o) for start, stop in parts for o in range(start, stop)})
            self.roots += [(slot, generation_of(self.runs[slot], 0), first) for first in firsts]

    def apply(self) -> None:
        """Apply one result of some roots, each acked or failed."""
        roots = [self.draw.choice(self.roots) for _ in range(self.draw.choice((1, 1, 2, 3)))]
        if self.draw.random() < 0.1:
            roots.append(self.stray())
        acked = [root for root in roots if self.draw.random() < 0.5]
        causes = {root: self.draw.choice((*Cause,)) for root in roots if root not in acked}
        failures = [Failure(root_id(*root), cause, "bolt", "no") for root, cause in causes.items()]
        self.did("apply", acked, "failed", *causes.items(), self.now_s)
        ids = np.array([root_id(*root) for root in acked], np.uint64)
        effect = self.task.apply(Result(0, ids, failures), self.now_s, 0.0)
        self.check_acked(acked)
        failed, exhausted = 0, []
        for root, cause in causes.items():
            for offset, outcome in self.fail(root, cause):
                failed += 1
                if outcome is FailureOutcome.EXHAUSTED:
                    exhausted.append((root[0], offset))
        same("failed", effect.failed, failed)
        same("exhausted", [(each.source.slot, each.offset) for each in effect.exhausted], exhausted)
        self.exhausted += effect.exhausted

    def stray(self) -> tuple[int, int, int]:
        """Return a root of a run that is over, or of a driver that this one does not know."""
        slot, _, first = self.draw.choice(self.roots)
        run = (self.runs.get(slot, 1) + self.draw.choice((-130, -2, 1, 2)) - 1) % MAX_RUN + 1
        return slot, generation_of(run, 0), first

    def is_between(self, run: int, slot: int) -> bool:
        """Return whether a run is one of those from the floor of a slot to its current run."""
        floor = self.models[slot].floor
        while run != floor:
            if floor == self.runs[slot]:
                return False
            floor = floor % MAX_RUN + 1
        return True

    def check_acked(self, acked: list[tuple[int, int, int]]) -> None:
        before = {slot: set(model.done) for slot, model in self.models.items()}
        for slot, generation, first in acked:
            model = self.models.get(slot)
            if model is not None and self.is_between(generation // 16, slot):
                model.acked(generation, first)
        newly = {slot: model.done - before[slot] for slot, model in self.models.items()}
        self.counted["completed"] += sum(map(len, newly.values()))
        if any(newly.values()):
            self.acked_s = self.now_s

    def fail(self, root: tuple[int, int, int], cause: Cause) -> list[tuple[int, FailureOutcome]]:
        slot, generation, first = root
        model = self.models.get(slot)
        if model is None or not self.is_between(generation // 16, slot):
            return []
        is_alive = self.acked_s is not None and self.now_s - self.acked_s <= TIMEOUT_S
        outcomes = model.failed(generation, first, self.now_s, cause is Cause.FAILED or is_alive)
        self.counted["failed" if cause is Cause.FAILED else "timed_out"] += len(outcomes)
        return outcomes

    def replay(self) -> None:
        for slot, model in self.models.items():
            if model.retries.full_run == self.runs[slot]:
                self.runs[slot] = next_run(self.runs[slot])
        self.task.renew_runs()
        limit = self.draw.choice((1, 9))
        self.did("replay_due", self.now_s, limit)
        emitted = sorted(
            (group.slot, group.generation, offset)
            for group in self.task.replay_due(self.now_s, limit)
            for offset in group.offsets
        )
        expected = []
        by_failing = sorted(self.models, key=lambda slot: len(self.models[slot].retries.records))
        for place, slot in enumerate(by_failing):
            model = self.models[slot]
            quota = limit if place else (limit + 1) // 2
            due = model.retries.emit_due(self.now_s, self.runs[slot], quota)
            limit -= len(due)
            expected += [(slot, generation, offset) for offset, generation, _ in due]
        self.roots += expected
        same("replayed", emitted, sorted(expected))
        self.counted["replayed"] += len(expected)

    def absent(self) -> None:
        slot, first = self.draw.choice((0, 1, FOREIGN)), self.draw.randrange(8)
        span, run = (
            Span(first, first + self.draw.randint(1, 3)),
            self.draw.choice((self.runs.get(slot, 1), 1, 200)),
        )
        self.did("absent", slot, span, run)
        self.task.apply_absent(Absent(slot, run, [span]))
        model = self.models.get(slot)
        if model is not None and self.is_between(run, slot):
            self.counted["absent"] += model.finish(range(*span), run)

    def rewind(self) -> None:
        slot, offset = self.draw.choice((0, 1)), self.draw.randrange(6)
        model = self.models[slot]
        if offset < model.frontier:
            self.runs[slot] = next_run(self.runs[slot])
        self.did("rewind", slot, offset, self.runs[slot])
        self.task.slots[slot].rewind(offset)
        model.rewind(offset, self.runs[slot])

    def finish_record(self) -> None:
        record = self.exhausted.pop()
        self.did("finish_record", record.source.slot, record.offset)
        self.task.finish_record(record)
        newly = self.models[record.source.slot].finish([record.offset])
        self.counted["dead_lettered"] += newly

    def compare(self) -> None:
        task = self.task
        same("counters", {name: n for name, n in task.counters.items() if n}, dict(+self.counted))
        same("pending", task.pending, sum(len(model.open) for model in self.models.values()))
        for slot, model in self.models.items():
            ledger = task.slots[slot]
            same(f"run of slot {slot}", ledger.run, self.runs[slot])
            same(f"slot {slot}", (ledger.frontier, ledger.next_offset), (model.frontier, model.next))


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to twelve operations."""
    script = TaskScript(draw, did)
    for _ in range(draw.randint(2, 12)):
        script.step()


CORE = Core(run_seed)
