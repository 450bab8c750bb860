"""One source partition, record by record: which are done, and in which block and run each was emitted.

It has no frontier to keep and no ranges to cut: all is derived from two plain collections each time.
"""

from acktree.producers.ledger.partitions.retries import FailureOutcome
from cores.blocks import BlocksModel
from cores.retry_model import RetriesModel

MAX_RUN = 255


def is_older(run, than):
    """Return whether a run is one of the 127 before another, on a ring of 255."""
    return run != than and (than - run) % MAX_RUN < 128


class SlotModel:
    def __init__(self, start, run):
        self.start = self.next = start
        self.floor = run
        self.emitted_before = 0
        self.done = set()
        self.blocks, self.retries = BlocksModel(), RetriesModel()
        self.emitted_s = {}

    @property
    def frontier(self):
        offset = self.start
        while offset in self.done and offset < self.next:
            offset += 1
        return offset

    @property
    def open(self):
        return {offset for offset in range(self.start, self.next) if offset not in self.done}

    def counts(self, run):
        return not is_older(run, self.floor)

    def emit(self, end, max_ranges, now_s, run, size):
        """Return the ranges of what is not done from the next offset on."""
        ranges = []
        while self.next < end and len(ranges) < max_ranges:
            if self.next in self.done:
                self.next += 1
                continue
            start = self.next
            while self.next < end and self.next not in self.done:
                self.emitted_s[self.next] = now_s
                self.next += 1
            ranges.append((start, self.next))
            self.blocks.emit(start, self.next, size, run)
        return ranges

    def acked(self, generation, first):
        """Finish the tree of one root; return how many records are newly done."""
        if not self.counts(generation // 16):
            return 0
        known = range(self.start, max(self.next, self.emitted_before))
        return self._finish(
            {offset for offset in self.blocks.cover(generation, first) if offset in known} - self.done
        )

    def finish(self, offsets, run=None):
        if run is not None and not self.counts(run):
            return 0
        return self._finish(self.open & set(offsets))

    def _finish(self, newly):
        self.done |= newly
        self.retries.discard(newly)
        return len(newly)

    def left(self, generation, first):
        """Return what is not done of an emission's tree, nothing if the emission no longer counts."""
        return self.open & self.blocks.cover(generation, first) if self.counts(generation // 16) else set()

    def failed(self, generation, first, now_s, counts):
        """Fail each record of a root's tree alone; it counts where the root is known to be of one record."""
        block = self.blocks.find(generation, first)
        is_alone = len(block) == 1 if block else generation % 16 > 0
        outcomes = [
            (offset, self.retries.fail(generation, offset, now_s, counts and is_alone))
            for offset in sorted(self.left(generation, first))
        ]
        return [each for each in outcomes if each[1] is not FailureOutcome.IGNORED]

    def fail_overdue(self, before_s, now_s, limit):
        late = {o for o in self.open if all(s < before_s for p, s in self.emitted_s.items() if p <= o)}
        return self.retries.fail_overdue(late, before_s, now_s, limit)

    def rewind(self, offset, run):
        if offset < self.frontier:
            self.start = self.next = offset
            self.floor, self.emitted_before = run, 0
            self.done, self.emitted_s = set(), {}
            self.blocks, self.retries = BlocksModel(), RetriesModel()
        else:
            self.next = max(self.next, offset)
            self.finish(range(self.start, offset))
