"""The acker in plain Python, a dict and ten rules: what the compiled table is compared with."""

from dataclasses import dataclass
from math import inf

BUCKETS = 1 << 14


@dataclass
class Held:
    value: int = 0
    init_seen: bool = False
    failed: bool = False
    task: int = 0
    bucket: int = 0
    tick: int = 0
    was_reset: bool = False
    reason: str = ""


class TableModel:
    def __init__(self, max_entries=inf):
        self.max_entries, self.may_insert = max_entries, True
        self.held = {}
        self.acked, self.failed, self.timed_out = [], [], []
        self.duplicated_inits = self.dropped_orphans = self.refused_orphans = self.late = 0
        self.finished, self.finished_before = set(), set()

    def init(self, root, value, task, tick, bucket):
        held = self.held.setdefault(root, Held(bucket=bucket))
        if held.init_seen:
            self.duplicated_inits += 1
            return
        held.value ^= value
        held.init_seen, held.task = True, task
        held.tick = max(held.tick, tick) if held.was_reset else tick
        self._finish_if_done(root, held)

    def record(self, fails, acks, resets, tick, bucket):
        self._make_room(len(fails) + len(acks) + len(resets), tick)
        for root, reason in fails:
            if (held := self._held(root, tick, bucket)) is None:
                continue
            if not held.failed:
                held.failed, held.reason = True, reason
            self._finish_if_done(root, held)
        for root, value in acks:
            if (held := self._held(root, tick, bucket)) is None:
                continue
            held.value ^= value
            if held.init_seen:
                held.tick = max(held.tick, tick)
            self._finish_if_done(root, held)
        for root in resets:
            if (held := self._held(root, tick, bucket)) is not None:
                held.tick, held.was_reset = max(held.tick, tick), True

    def _held(self, root, tick, bucket):
        """Return the entry of a root, a new one if it may have one."""
        if root in self.held:
            return self.held[root]
        if root in self.finished or root in self.finished_before:
            self.late += 1
            return None
        if not self.may_insert:
            self.refused_orphans += 1
            return None
        return self.held.setdefault(root, Held(tick=tick, bucket=bucket))

    def _make_room(self, rows, now):
        """Drop the oldest half of the orphans, or more, if a record could exceed the bound."""
        if len(self.held) + rows > self.max_entries:
            ages = sorted(
                (now - held.tick for held in self.held.values() if not held.init_seen), reverse=True
            )
            if ages:
                self.expire(now, inf, ages[min(len(ages), max(rows, len(ages) // 2, 1)) - 1] - 1)
        self.may_insert = len(self.held) + rows <= self.max_entries

    def expire(self, now, message_ticks, orphan_ticks, oldest_bucket=0, expired_buckets=0):
        for root, held in list(self.held.items()):
            is_old = now - held.tick > (message_ticks if held.init_seen else orphan_ticks)
            if is_old or (held.bucket - oldest_bucket) % BUCKETS < expired_buckets:
                del self.held[root]
                if held.init_seen:
                    self.timed_out.append((held.task, root))
                    self.finished.add(root)
                else:
                    self.dropped_orphans += 1

    def _finish_if_done(self, root, held):
        if held.init_seen and held.failed:
            self.failed.append((held.task, root, held.reason))
        elif held.init_seen and held.value == 0:
            self.acked.append((held.task, root))
        else:
            return
        self.finished.add(root)
        del self.held[root]

    def renew_orphans(self, now, hold_ticks, oldest_bucket, old_buckets, bucket):
        for held in self.held.values():
            is_old = (held.bucket - oldest_bucket) % BUCKETS < old_buckets
            if not held.init_seen and now - held.tick > hold_ticks and is_old:
                held.bucket = bucket

    def clear_finished(self):
        self.finished, self.finished_before = set(), self.finished
