"""The acker in plain Python, a dict and ten rules: what the compiled table is compared with."""

from dataclasses import dataclass


@dataclass
class Held:
    value: int = 0
    init_seen: bool = False
    failed: bool = False
    task: int = 0
    bucket: int = 0
    tick: int = 0
    reason: str = ""


class TableModel:
    def __init__(self):
        self.held = {}
        self.acked, self.failed, self.timed_out = [], [], []
        self.duplicated_inits = self.dropped_orphans = self.late = 0
        self.finished = set()

    def init(self, root, value, task, tick, bucket):
        held = self.held.setdefault(root, Held(bucket=bucket))
        if held.init_seen:
            self.duplicated_inits += 1
            return
        held.value ^= value
        held.init_seen, held.task, held.tick = True, task, tick
        self._finish_if_done(root, held)

    def record(self, fails, acks, resets, tick, bucket):
        for root, reason in fails:
            if self._is_late(root):
                continue
            held = self.held.setdefault(root, Held(tick=tick, bucket=bucket))
            if not held.failed:
                held.failed, held.reason = True, reason
            self._finish_if_done(root, held)
        for root, value in acks:
            if self._is_late(root):
                continue
            held = self.held.setdefault(root, Held(tick=tick, bucket=bucket))
            held.value ^= value
            self._finish_if_done(root, held)
        for root in resets:
            if self._is_late(root):
                continue
            held = self.held.setdefault(root, Held(tick=tick, bucket=bucket))
            held.tick = max(held.tick, tick)

    def expire(self, now, message_ticks, orphan_ticks):
        for root, held in list(self.held.items()):
            if now - held.tick > (message_ticks if held.init_seen else orphan_ticks):
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

    def _is_late(self, root):
        is_late = root in self.finished and root not in self.held
        self.late += is_late
        return is_late
