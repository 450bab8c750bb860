"""A tester with verbs for one acker partition: append records, fold them, crash, look at the results.

Records go through their bytes: encoded as a producer does, decoded as the acker does. No Kafka.
"""

from math import inf

import numpy as np

from acktree.acker.folding.clock import Watermark
from acktree.acker.folding.cut import Positions
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.partition import Partition
from acktree.acker.folding.reasons import Reason
from acktree.acker.folding.table import Entry, FinishedTrees, TimedOut
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ENTRY, ID, Ack, AckInit, Fail

SEED = 0x9E3779B97F4A7C15
OFF = AgeLimits(inf, inf, inf)
START_MS = 1_000_000


def entries(pairs):
    return np.array(list(pairs), ENTRY)


def xor(*edges):
    value = 0
    for edge in edges:
        value ^= edge
    return value


class Tester:
    """Two logs, a wall clock, and the partition that folds them; results survive a crash."""

    __test__ = False

    def __init__(self, limits=OFF, max_entries=1 << 26, eager=True, seed=SEED):
        self.limits, self.max_entries, self.eager, self.seed = limits, max_entries, eager, seed
        self.now_ms = START_MS
        self.init_log, self.ack_log = [], []
        self.acked, self.failed, self.timed_out = [], [], []
        self.partition = self._fresh(Positions(0, 0))

    def _fresh(self, start):
        return Partition(start, self.limits, self.seed, self.max_entries)

    # What is appended to the log.

    def init(self, root, *edges, task=0):
        return self.init_record([(root, xor(*edges))], task)

    def init_edges(self, roots):
        """Append one record of inits, each a root and its edges."""
        return self.init_record([(root, xor(*edges)) for root, *edges in roots])

    def init_record(self, pairs, task=0):
        self.init_log.append((self.now_ms, encode_ack_init(AckInit(task, 1, entries(pairs)))))
        return self._maybe()

    def ack(self, root, *edges):
        return self.ack_record(acks=[(root, xor(*edges))])

    def fail(self, root, reason="broken", task="bolt-0"):
        return self.ack_record(fails=[(root, reason)], task=task)

    def fail_with_retry(self, root, retry_after_ms, reason="broken", task="bolt-0"):
        """Append a fail that says when its record is emitted again."""
        return self.ack_record(fails=[(root, reason, retry_after_ms)], task=task)

    def reset(self, root):
        return self.ack_record(resets=[root])

    def ack_record(self, acks=(), fails=(), resets=(), task="bolt-0"):
        record = Ack(task, 1, entries(acks), tuple(Fail(*fail) for fail in fails), np.array(resets, ID))
        self.ack_log.append((self.now_ms, encode_ack(record)))
        return self._maybe()

    def _maybe(self):
        if self.eager:
            self.fold_all()
        return self

    # What the acker does.

    def fold_all(self):
        return self.fold(len(self.init_log), len(self.ack_log))

    def fold(self, inits, acks):
        """Fold up to these offsets, inits first."""
        start = self.partition.positions.inits
        if chunk := self.init_log[start:inits]:
            times, values = zip(*chunk, strict=True)
            batch = decode_init_batch(values)
            assert not batch.faults.any()
            self._record(self.partition.fold_inits(batch, np.array(times), start + len(chunk), self.now_ms))
        start = self.partition.positions.acks
        if chunk := self.ack_log[start:acks]:
            times, values = zip(*chunk, strict=True)
            batch = decode_ack_batch(values)
            assert not batch.faults.any()
            self._record(self.partition.fold_acks(batch, np.array(times), start + len(chunk), self.now_ms))
        return self

    def observe(self):
        """Learn where both logs end."""
        wall = self.now_ms
        self.partition.observe(Watermark(wall, len(self.init_log)), Watermark(wall, len(self.ack_log)))
        return self

    def expire(self):
        if (timed_out := self.partition.expire(self.now_ms)) is not None:
            self._record(timed_out)
        return self

    def wait(self, ms, step_ms=100):
        """Let time pass, caught up, looking for timeouts as the service does."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(end, self.now_ms + step_ms)
            self.observe().expire()
        return self

    def crash(self, start):
        """Lose all state and start again at a cut."""
        self.partition = self._fresh(start)
        return self._maybe()

    def entry(self, root) -> Entry | None:
        return self.partition.table.entry(root)

    def _record(self, results: FinishedTrees | TimedOut):
        if isinstance(results, TimedOut):
            pairs = zip(results.tasks.tolist(), results.roots.tolist(), strict=True)
            self.timed_out += pairs
        else:
            self.acked += zip(results.acked_tasks.tolist(), results.acked.tolist(), strict=True)
            self.failed += [(f.spout_task, f.root, f.reason) for f in results.failed]


def because(text="broken", task="bolt-0"):
    return Reason(task, text)
