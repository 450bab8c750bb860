"""Retries against a dict of records: failures, back-off, rounds of replays, overdue emissions, full runs."""

from random import Random

from pyroaring import BitMap64

from acktree.producers.ledger.partitions.retries import Replay, Retries
from acktree.wire.ids import generation_of
from cores.retry_model import POLICY, RetriesModel
from cores.script import Core, Did, same

OFFSETS = range(4)
IN_A_RUN = 4
"""Emissions of a record in a run, for 16: short scripts use up a run, too."""


class RetriesScript:
    """Some records, and what is known of their emissions."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.retries, self.model = Retries(), RetriesModel(IN_A_RUN)
        self.now_s, self.run = 0, draw.randint(1, 254)
        self.offsets = [*OFFSETS]
        for offset in OFFSETS:
            if draw.random() < 0.3:
                self.resume(offset)

    def resume(self, offset: int) -> None:
        """Begin with an emission of the batch that a driver before has planned."""
        replay = Replay(offset, generation_of(self.run, self.draw.choice((1, 2))), self.draw.choice((1, 2)))
        self.did("resume", *replay)
        self.retries.resume(replay, self.now_s)
        self.model.resume(offset, replay.generation, replay.attempts, self.now_s)

    def step(self) -> None:
        kind = self.draw.random()
        self.now_s += self.draw.choice((0, 0, 1, 2, 5))
        if kind < 0.45:
            self.fail()
        elif kind < 0.8:
            self.emit_due()
        elif kind < 0.85:
            self.did("end_back_offs", self.now_s)
            self.retries.end_back_offs(self.now_s)
            self.model.end_back_offs(self.now_s)
        elif kind < 0.92:
            self.fail_overdue()
        else:
            self.discard()
        same("attempts", [*self.retries.attempts], [*self.model.records])
        same("used up", self.retries.is_run_used_up(self.run), self.model.full_run == self.run)

    def fail(self) -> None:
        offset, counts = self.draw.choice(self.offsets), self.draw.random() < 0.5
        known = self.model.records.get(offset)
        generation = generation_of(self.run, self.draw.choice((0, 0, 1, 15)))
        if known is not None and known.generation and self.draw.random() < 0.8:
            generation = known.generation
        self.did("fail", generation, offset, self.now_s, counts)
        outcome = self.retries.fail(generation, offset, self.now_s, POLICY, counts=counts, jitter=0)
        same("outcome", outcome, self.model.fail(generation, offset, self.now_s, counts))

    def emit_due(self) -> None:
        if self.model.full_run == self.run:
            self.run += 1
        limit = self.draw.choice((1, 2, 9))
        self.did("emit_due", self.now_s, self.run, limit)
        replays = self.retries.emit_due(self.now_s, self.run, limit)
        same("replays", replays, self.model.emit_due(self.now_s, self.run, limit))

    def fail_overdue(self) -> None:
        late = [offset for offset in self.offsets if self.draw.random() < 0.5]
        before_s, limit = self.now_s - self.draw.randint(0, 3), self.draw.choice((1, 9))
        self.did("fail_overdue", late, before_s, self.now_s, limit)
        count = self.retries.fail_overdue(BitMap64(late), before_s, self.now_s, limit)
        same("overdue", count, self.model.fail_overdue(late, before_s, self.now_s, limit))

    def discard(self) -> None:
        """Let a record be done: it never fails again."""
        if len(self.offsets) > 1:
            done = self.offsets.pop(self.draw.randrange(len(self.offsets)))
            others = range(10, 10 + self.draw.choice((0, 9)))
            self.did("done", done, *others)
            self.retries.discard(BitMap64([done, *others]))
            self.model.discard({done, *others})


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to sixteen operations."""
    script = RetriesScript(draw, did)
    for _ in range(draw.randint(3, 16)):
        script.step()


CORE = Core(run_seed, {"acktree.producers.ledger.partitions.retries.ATTEMPT_MASK": IN_A_RUN - 1})
