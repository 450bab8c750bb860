"""What failed of one slot, as one dict of blocks; each knows when it is due, there is no queue.

It is the model of ``Retries``, alone and inside a ledger.
"""

from dataclasses import dataclass

from acktree.schemas.retry_policy import RetryPolicy
from acktree.spark.ledger.retries import FailureOutcome

POLICY = RetryPolicy(initial_s=1, max_s=4, max_attempts=3)


@dataclass
class FailedBlock:
    """Its newest emission; ``emissions`` goes on counting where the generation's four bits wrap around."""

    generation: int
    emissions: int
    attempts: int
    emitted_s: float
    in_run: int
    attempts_before: int
    in_flight: bool = True
    due_s: float | None = None


class RetriesModel:
    def __init__(self, in_a_run=16):
        self.in_a_run = in_a_run
        self.blocks: dict[int, FailedBlock] = {}
        self.answered = []
        self.full_run = None
        self.round: list[tuple[int, int]] = []
        """First offsets and generations of what was due when it began and is not emitted yet."""

    def fail(self, generation, first, now_s, counts):
        block = self.blocks.get(first)
        if block is None:
            emitted = generation % self.in_a_run
            block = self.blocks[first] = FailedBlock(generation, emitted, emitted, now_s, emitted, emitted)
        elif 0 < block.generation < generation and not block.in_flight:
            self.answered.append((first, block.generation))
            is_new_run = generation // 16 != block.generation // 16
            more = (generation - block.generation) % self.in_a_run or self.in_a_run
            block.emissions, block.in_run = block.emissions + more, -1 if is_new_run else block.in_run
            block.in_run += more
            if block.in_run >= self.in_a_run - 1:
                self.full_run = generation // 16
            block.generation, block.in_flight, block.due_s = generation, True, None
            block.attempts_before = block.attempts
        if block.generation != generation or not block.in_flight:
            return FailureOutcome.IGNORED
        block.in_flight = False
        block.attempts += counts
        if block.attempts >= POLICY.max_attempts:
            return FailureOutcome.EXHAUSTED
        block.due_s = now_s + {0: 1, 1: 1, 2: 2}[block.attempts]
        return FailureOutcome.RETRY

    def emit_due(self, now_s, run, limit, name_of):
        """``name_of`` says by which offset what is left of a block goes on, None if nothing is left."""
        taken = []
        while len(taken) < limit:
            waiting = {(o, b.generation): b.due_s for o, b in self.blocks.items() if b.due_s is not None}
            self.round = [each for each in self.round if each in waiting]
            self.round = self.round or sorted(each for each, due_s in waiting.items() if due_s <= now_s)
            if not self.round:
                break
            first, _ = self.round.pop(0)
            block = self.blocks.pop(first)
            name = name_of(first)
            if name is None:
                continue
            self.answered.append((first, block.generation))
            is_new_run = block.generation != 0 and block.generation // 16 != run
            block.in_run = 0 if is_new_run else block.in_run + 1
            if block.in_run == self.in_a_run - 1:
                self.full_run = run
            block.emissions += 1
            block.generation = run * 16 + block.emissions % 16
            block.in_flight, block.due_s, block.emitted_s = True, None, now_s
            block.attempts_before = block.attempts
            self.blocks[name] = block
            taken.append((name, block.generation, block.attempts))
        return taken

    def end_back_offs(self, now_s):
        self.round = []
        for block in self.blocks.values():
            block.due_s = now_s if block.due_s is not None else None

    def fail_overdue(self, blocks, before_s, now_s, limit):
        late = [first for first, b in self.blocks.items() if b.in_flight and b.emitted_s < before_s]
        for first, end in blocks:
            if not any(offset in self.blocks for offset in range(first, end)):
                late.append(first)
        for first in late[:limit]:
            block = self.blocks.setdefault(first, FailedBlock(0, 0, 0, before_s, 0, 0))
            block.in_flight, block.due_s = False, now_s
        return len(late[:limit])

    def restore(self, first, generation, attempts, now_s):
        emitted = generation % self.in_a_run
        self.blocks[first] = FailedBlock(generation, emitted, attempts, now_s, emitted, attempts)

    def uncounted(self):
        return [
            (first, block.generation, block.attempts_before)
            for first, block in self.blocks.items()
            if block.attempts_before != block.generation % self.in_a_run
        ]

    def pop_answered(self):
        answered, self.answered = self.answered, []
        return answered

    def discard(self, is_over):
        self.blocks = {first: block for first, block in self.blocks.items() if not is_over(first)}
