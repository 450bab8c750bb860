"""The acker's table against a dict: batches, expiry, renewal of orphans, their bound, late messages."""

from collections import Counter
from random import Random

import numpy as np

from acker.model import TableModel
from acker.tester import entries
from acktree.acker.folding.table import MAX_ENTRIES, FinishedTrees, Table
from acktree.acker.kernels.slots import BUCKETS
from acktree.wire.batch_codec import decode_ack_batch, decode_init_batch
from acktree.wire.codec import encode_ack, encode_ack_init
from acktree.wire.control_records import ID, Ack, AckInit, Fail
from cores.script import Core, Did, same

ROOTS = (1, 2, 3, 4, 5, 6, 7, 8, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
FIRST_TICK, FIRST_BUCKET = 2**32 - 6, BUCKETS - 3
BOUND = 4


class TableScript:
    """A table and its model; each verb is one operation on both."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.limit = BOUND if draw.random() < 0.2 else MAX_ENTRIES
        self.table, self.model = Table(draw.getrandbits(64), self.limit), TableModel(self.limit)
        self.tick, self.bucket = FIRST_TICK, FIRST_BUCKET
        did("limit", self.limit)

    def step(self) -> None:
        draw = self.draw
        self.tick += draw.randint(-2, 4)
        self.bucket += draw.random() < 0.3
        kind = draw.random()
        if kind < 0.35:
            self.inits(1 if draw.random() < 0.7 else 3)
        elif kind < 0.75:
            self.acks(1 if self.limit == BOUND or draw.random() < 0.7 else 3)
        elif kind < 0.9:
            self.expire()
        elif kind < 0.95:
            self.renew()
        else:
            self.did("clear_finished")
            self.table.clear_finished()
            self.model.clear_finished()
        self.compare()

    def pairs(self, most: int) -> list[tuple[int, int]]:
        return [(self.draw.choice(ROOTS), self.draw.randrange(3)) for _ in range(self.draw.randint(0, most))]

    def inits(self, count: int) -> None:
        records = [(self.draw.randrange(4), self.pairs(4)) for _ in range(count)]
        self.did("inits", self.tick, self.bucket, records)
        for task, pairs in records:
            for root, value in pairs:
                self.model.init(root, value, task, self.tick, self.bucket)
        batch = decode_init_batch([encode_ack_init(AckInit(task, 1, entries(p))) for task, p in records])
        self.check(self.table.fold_inits(batch, np.full(count, self.tick), self.bucket))

    def acks(self, count: int) -> None:
        draw = self.draw
        records = [
            (
                [(draw.choice(ROOTS), draw.choice(("", "größer")))] if draw.random() < 0.2 else [],
                self.pairs(4),
                [draw.choice(ROOTS)] if draw.random() < 0.2 else [],
            )
            for _ in range(count)
        ]
        self.did("acks", self.tick, self.bucket, records)
        values = []
        for fails, acks, resets in records:
            self.model.record(fails, acks, resets, self.tick, self.bucket)
            fails = tuple(Fail(*fail) for fail in fails)
            values.append(encode_ack(Ack("bolt", 1, entries(acks), fails, np.array(resets, ID))))
        self.check(self.table.fold_acks(decode_ack_batch(values), np.full(count, self.tick), self.bucket))

    def check(self, finished: FinishedTrees) -> None:
        model = self.model
        acked = [*zip(finished.acked_tasks.tolist(), finished.acked.tolist(), strict=True)]
        same("acked", acked, model.acked)
        same("failed", [(f.spout_task, f.root, f.reason.text) for f in finished.failed], model.failed)
        model.acked, model.failed = [], []

    def expire(self) -> None:
        message, orphan = self.draw.randint(1, 8), self.draw.randint(1, 12)
        oldest, expired = self.bucket - self.draw.randint(0, 3), self.draw.choice((0, 0, 1, 2))
        self.did("expire", self.tick, message, orphan, oldest, expired)
        gone = self.table.expire(self.tick, message, orphan, oldest, expired)
        self.model.expire(self.tick, message, orphan, oldest, expired)
        timed_out = sorted(zip(gone.tasks.tolist(), gone.roots.tolist(), strict=True))
        same("timed out", timed_out, sorted(self.model.timed_out))
        self.model.timed_out = []
        held = self.model.held.values()
        pending = [self.tick - one.tick for one in held if one.init_seen]
        orphans = [self.tick - one.tick for one in held if not one.init_seen]
        same("oldest pending", self.table.oldest_pending_ticks, max(pending, default=None))
        limit = self.draw.randint(1, 6)
        ages = [age for _, age in self.table.oldest_pending(self.tick, limit)]
        same("oldest pending roots", ages, sorted(pending, reverse=True)[:limit])
        same("oldest orphan", self.table.oldest_orphan_ticks, max(orphans, default=None))

    def renew(self) -> None:
        hold, old = self.draw.randint(0, 4), self.draw.randint(0, 3)
        oldest = self.bucket - self.draw.randint(0, 3)
        self.did("renew_orphans", self.tick, hold, oldest, old, self.bucket)
        self.table.renew_orphans(self.tick, hold, oldest, old, self.bucket)
        self.model.renew_orphans(self.tick, hold, oldest, old, self.bucket)

    def compare(self) -> None:
        table, model = self.table, self.model
        counts = (table.duplicated_inits, table.dropped_orphans, table.refused_orphans, table.late)
        expected = (model.duplicated_inits, model.dropped_orphans, model.refused_orphans, model.late)
        same("counters", counts, expected)
        same("size", len(table), len(model.held))
        same("pending", table.pending, sum(held.init_seen for held in model.held.values()))
        for root, held in model.held.items():
            wanted = (held.value, held.init_seen, held.failed, held.task, held.bucket % BUCKETS)
            same(f"entry {root}", table.entry(root), (*wanted, held.tick & 0xFFFFFFFF))
        for bucket, count in Counter(held.bucket % BUCKETS for held in model.held.values()).items():
            same(f"bucket {bucket}", int(table.bucket_counts[bucket]), count)


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to ten operations."""
    script = TableScript(draw, did)
    for _ in range(draw.randint(2, 10)):
        script.step()


CORE = Core(
    run_seed,
    {"acktree.acker.folding.table.LEAST_SLOTS": 8, "acktree.acker.folding.finished.LEAST_PLACES": 8},
)
