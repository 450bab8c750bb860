"""Goodput over time under Storm's rule and ours: a model of one bolt that is slow for two minutes.

`python docs/diagrams.py` draws it.

Under Storm's rule a record fails the message timeout after its emission, and is emitted again behind its own
old copy; a fixed number may be pending. Under ours a record that waits unread does not age, and what may be
pending follows the bolt by the class that spouts use. Half of what the bolt can do arrives. What is acked in
time is goodput, once a record.
"""

from collections import deque

from acktree.producers.ledger.pending_limit import PendingLimit

STEP_S, BIN_S, END_S = 0.1, 5.0, 600.0
ARRIVING, CAPACITY, SLOW = 100, 200, 20
SLOW_FROM_S, SLOW_TO_S = 60.0, 180.0
TIMEOUT_S = 30.0
MAX_PENDING = 10_000
LEFT, TOP, WIDTH, HEIGHT = 52.0, 60.0, 440.0, 170.0
MOST = 250.0


def capacity(time_s: float) -> float:
    return SLOW if SLOW_FROM_S <= time_s < SLOW_TO_S else CAPACITY


class Spout:
    """Emits records in order; ``emitted_s`` is when each one that is pending was emitted last."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, int]] = deque()
        self.emitted_s: dict[int, float] = {}
        self.next = 0

    def emit(self, record: int, now_s: float) -> None:
        self.emitted_s.pop(record, None)
        self.emitted_s[record] = now_s
        self.queue.append((now_s, record))

    def emit_new(self, count: int, now_s: float) -> None:
        for record in range(self.next, self.next + max(0, count)):
            self.emit(record, now_s)
        self.next += max(0, count)

    def take(self, now_s: float) -> tuple[float, bool]:
        """Execute the first copy; return how long it took, and whether it finished its record."""
        emitted_s, record = self.queue.popleft()
        is_newest = self.emitted_s.get(record) == emitted_s
        if is_newest:
            del self.emitted_s[record]
        return now_s - emitted_s, is_newest


class Storms(Spout):
    """A fixed max pending, and a timeout from emission."""

    def turn(self, waiting: int, now_s: float) -> None:
        while self.emitted_s and next(iter(self.emitted_s.values())) < now_s - TIMEOUT_S:
            self.emit(next(iter(self.emitted_s)), now_s)
        self.emit_new(min(waiting, MAX_PENDING - len(self.emitted_s)), now_s)

    def done(self, times: list[tuple[float, int]], now_s: float) -> None:
        pass


class Ours(Spout):
    """A limit that follows the bolt, and no timeout while a record waits unread."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = PendingLimit()

    def turn(self, waiting: int, now_s: float) -> None:
        self.limit.bound(MAX_PENDING, busy_s=STEP_S)
        room = self.limit.allowed - len(self.emitted_s)
        if waiting > room:
            self.limit.hold_back()
        self.emit_new(min(waiting, room), now_s)

    def done(self, times: list[tuple[float, int]], now_s: float) -> None:
        self.limit.complete(times, now_s)


def goodput(spout: Storms | Ours) -> list[float]:
    """Return how much is done a second, a number for each bin."""
    bins = [0.0] * int(END_S / BIN_S)
    budget = 0.0
    for step in range(round(END_S / STEP_S)):
        now_s = step * STEP_S
        spout.turn(int(ARRIVING * now_s) - spout.next, now_s)
        budget = min(budget, 1.0) + capacity(now_s) * STEP_S
        times: list[tuple[float, int]] = []
        while budget >= 1 and spout.queue:
            budget -= 1
            took_s, is_done = spout.take(now_s)
            bins[int(now_s / BIN_S)] += is_done / BIN_S
            if is_done:
                times.append((took_s, 1))
        spout.done(times, now_s)
    return bins


def points(per_s: list[float]) -> str:
    """Return the points of a curve, by one number for each bin."""
    return " ".join(
        f"{LEFT + WIDTH * (place + 0.5) / len(per_s):.1f},{TOP + HEIGHT * (1 - value / MOST):.1f}"
        for place, value in enumerate(per_s)
    )


def parts() -> list[str]:
    """Return the curves, their names and both axes as elements of SVG."""
    able = [capacity(BIN_S * (place + 0.5)) for place in range(int(END_S / BIN_S))]
    curves = (("able", able, 20), ("ours", goodput(Ours()), 230), ("storm", goodput(Storms()), 345))
    names = {"able": "what the bolt can do", "ours": "acktree", "storm": "Storm's rule"}
    lines = [f'<path class="axis" d="M{LEFT:g} {TOP + HEIGHT:g}h{WIDTH:g}"/>']
    for kind, per_s, x in curves:
        lines.append(f'<polyline class="curve {kind}" points="{points(per_s)}"/>')
        lines.append(f'<path class="curve {kind}" d="M{x} 51h24"/>')
        lines.append(f'<text class="small" x="{x + 32}" y="56">{names[kind]}</text>')
    for at in range(0, 601, 120):
        place = LEFT + WIDTH * at / END_S
        lines.append(f'<text class="small dim middle" x="{place:g}" y="{TOP + HEIGHT + 20:g}">{at} s</text>')
    for at in (0, 100, 200):
        y = TOP + HEIGHT * (1 - at / MOST) + 4
        lines.append(f'<text class="small dim end" x="{LEFT - 8:g}" y="{y:g}">{at}</text>')
    return lines


if __name__ == "__main__":
    print("\n".join(parts()))
