"""The ledger of a partition against single records: emissions, acks, failures, replays, rewinds."""

from random import Random

import numpy as np

from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.wire.ids import generation_of, next_run
from cores.retry_model import POLICY
from cores.script import Core, Did, holds, same
from cores.slot_model import SlotModel


class LedgerScript:
    """A ledger and its model; ``roots`` are the emissions (generation, first offset) so far."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        start, self.run = draw.choice((0, 0, 65_530)), draw.choice((1, 100, 253))
        self.size, self.now_s = draw.choice((1, 1, 3, 5)), 0.0
        self.before_s = -1.0
        self.ledger = PartitionLedger(start, start, self.run, POLICY)
        self.model = SlotModel(start, self.run)
        self.roots: list[tuple[int, int]] = []
        if draw.random() < 0.2:
            self.done_before(start)
        if draw.random() < 0.2:
            self.emitted_before(start)
        self.emit()

    def done_before(self, start: int) -> None:
        """Begin with what a commit holds above its frontier."""
        done = {start + above for above in (1, 2, 5) if self.draw.random() < 0.6}
        self.did("done", *done)
        self.ledger.done.update(done)
        self.model.done |= done

    def emitted_before(self, start: int) -> None:
        """Begin as after a lost checkpoint: an earlier run has emitted the same offsets one by one."""
        end = start + 6
        self.roots = [(generation_of(self.run, 0), offset) for offset in range(start, end)]
        self.ledger.emitted_before = self.model.emitted_before = end
        self.begin_run()
        self.did("emitted before", end)

    def begin_run(self) -> None:
        self.run = next_run(self.run)
        self.ledger.begin_run()

    def step(self) -> None:
        kind = self.draw.random()
        self.now_s += self.draw.choice((0, 0, 1, 5))
        if kind < 0.2:
            self.emit()
        elif kind < 0.5:
            self.ack()
        elif kind < 0.7:
            self.fail()
        elif kind < 0.82:
            self.replay()
        elif kind < 0.9:
            self.finish()
        elif kind < 0.95:
            self.fail_overdue()
        else:
            self.rewind()
        self.compare()

    def emit(self) -> None:
        end = self.model.next + self.draw.choice((1, 2, 4, 9))
        max_ranges = self.draw.choice((1, 2, 9))
        self.did("emit", end, max_ranges, self.now_s, self.run, self.size)
        ranges = self.ledger.emit(end, max_ranges, self.now_s, self.size)
        same("ranges", ranges, self.model.emit(end, max_ranges, self.now_s, self.run, self.size))
        generation = generation_of(self.run, 0)
        for start, stop in ranges:
            firsts = {self.model.blocks.first(offset) for offset in range(start, stop)}
            self.roots += [(generation, first) for first in sorted(firsts)]

    def ack(self) -> None:
        roots = [self.draw.choice(self.roots or [(16, 0)]) for _ in range(self.draw.choice((1, 1, 2, 4)))]
        self.did("acked", roots)
        columns = np.array(roots, np.int64).T
        finished = self.ledger.acked(columns[0], columns[1])
        same(
            "newly done",
            finished,
            sum(self.model.acked(*root) for root in roots),
        )

    def fail(self) -> None:
        if not self.roots:
            return
        (generation, first), counts = self.draw.choice(self.roots[-6:]), self.draw.random() < 0.6
        self.did("failed", generation, first, self.now_s, counts)
        outcomes = self.ledger.failed(generation, first, self.now_s, counts=counts)
        same("outcomes", outcomes, self.model.failed(generation, first, self.now_s, counts))

    def replay(self) -> None:
        if self.model.retries.full_run == self.run:
            self.begin_run()
        limit = self.draw.choice((1, 9))
        self.did("emit_due", self.now_s, self.run, limit)
        replays = self.ledger.retries.emit_due(self.now_s, self.run, limit)
        same("replays", replays, self.model.retries.emit_due(self.now_s, self.run, limit))
        self.roots += [(replay.generation, replay.offset) for replay in replays]

    def finish(self) -> None:
        start = self.model.start + self.draw.randrange(9)
        end, run = start + self.draw.randint(0, 4), self.draw.choice((None, self.run, self.model.floor, 1))
        self.did("finish", start, end, run)
        same("newly done", self.ledger.finish(start, end, run), self.model.finish(range(start, end), run))

    def fail_overdue(self) -> None:
        self.before_s = max(self.before_s, self.now_s - self.draw.choice((0, 1, 5)))
        times, limit = (self.before_s, self.now_s), self.draw.choice((1, 9))
        self.did("fail_overdue", *times, limit)
        same("overdue", self.ledger.fail_overdue(*times, limit), self.model.fail_overdue(*times, limit))

    def rewind(self) -> None:
        offset = self.model.start + self.draw.randrange(12)
        if offset < self.model.frontier:
            self.run = next_run(self.run)
        self.did("rewind", offset, self.run)
        self.ledger.rewind(offset)
        self.model.rewind(offset, self.run)

    def compare(self) -> None:
        ledger, model = self.ledger, self.model
        if self.draw.random() < 0.2:
            self.did("discard_blocks")
            ledger.discard_blocks()
        frontier = model.frontier
        state = (ledger.frontier, ledger.next_offset, ledger.floor, ledger.pending)
        same("state", state, (frontier, model.next, model.floor, len(model.open)))
        holds("attempts are of open records", ledger.retries.attempts.keys() <= model.open)
        same("done", {*ledger.done}, {offset for offset in model.done if offset >= frontier})
        same("run", ledger.run, self.run)
        same("used up", ledger.is_run_used_up, model.retries.full_run == self.run)


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to fourteen operations."""
    script = LedgerScript(draw, did)
    for _ in range(draw.randint(2, 14)):
        script.step()


CORE = Core(run_seed)
