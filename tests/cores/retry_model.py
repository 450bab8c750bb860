"""What failed of one slot, as one dict of records; each knows when it is due, there is no queue.

It is the model of ``Retries``, alone and inside a ledger.
"""

from dataclasses import dataclass

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.retries import FailureOutcome

POLICY = RetryPolicy(initial_s=1, max_s=4, max_attempts=3)


@dataclass
class FailedRecord:
    """Its newest emission; ``emissions`` goes on counting where the generation's four bits wrap around."""

    generation: int
    emissions: int
    attempts: int
    emitted_s: float
    in_run: int
    in_flight: bool = True
    due_s: float | None = None


class RetriesModel:
    def __init__(self, in_a_run=16):
        self.in_a_run = in_a_run
        self.records: dict[int, FailedRecord] = {}
        self.full_run = None
        self.round: list[tuple[int, int]] = []
        """Offsets and generations of what was due when it began and is not emitted yet."""

    def fail(self, generation, offset, now_s, counts):
        record = self.records.get(offset)
        if record is None:
            emitted = generation % self.in_a_run
            record = FailedRecord(generation, emitted, emitted, now_s, emitted)
            self.records[offset] = record
        if record.generation != generation or not record.in_flight:
            return FailureOutcome.IGNORED
        record.in_flight = False
        record.attempts += counts
        if record.attempts >= POLICY.max_attempts:
            return FailureOutcome.EXHAUSTED
        failures = record.attempts if counts else record.emissions + 1
        record.due_s = now_s + min(4, 2 ** (failures - 1))
        return FailureOutcome.RETRY

    def emit_due(self, now_s, run, limit):
        taken = []
        while len(taken) < limit:
            waiting = {(o, r.generation): r.due_s for o, r in self.records.items() if r.due_s is not None}
            self.round = [each for each in self.round if each in waiting]
            self.round = self.round or sorted(each for each, due_s in waiting.items() if due_s <= now_s)
            if not self.round:
                break
            offset, _ = self.round.pop(0)
            record = self.records[offset]
            is_new_run = record.generation != 0 and record.generation // 16 != run
            record.in_run = 0 if is_new_run else record.in_run + 1
            if record.in_run == self.in_a_run - 1:
                self.full_run = run
            record.emissions += 1
            record.generation = run * 16 + record.emissions % 16
            record.in_flight, record.due_s, record.emitted_s = True, None, now_s
            taken.append((offset, record.generation, record.attempts))
        return taken

    def end_back_offs(self, now_s):
        self.round = []
        for record in self.records.values():
            record.due_s = now_s if record.due_s is not None else None

    def fail_overdue(self, offsets, before_s, now_s, limit):
        late = [offset for offset, r in self.records.items() if r.in_flight and r.emitted_s < before_s]
        late += sorted(set(offsets) - set(self.records))
        for offset in late[:limit]:
            record = self.records.setdefault(offset, FailedRecord(0, 0, 0, before_s, 0))
            record.in_flight, record.due_s = False, now_s
        return len(late[:limit])

    def resume(self, offset, generation, attempts, now_s):
        """Take an emission for the newest of its record, one more than those that are known."""
        known = self.records.get(offset)
        emissions = known.emissions + 1 if known else generation % self.in_a_run
        self.records[offset] = FailedRecord(generation, emissions, attempts, now_s, emissions)

    def discard(self, offsets):
        self.records = {o: record for o, record in self.records.items() if o not in offsets}
