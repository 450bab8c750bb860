"""The limit of what a spout has pending, in a model of time alone: a bolt takes records in their order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from acktree.producers.ledger.pending_limit import FIRST_LIMIT, FIRST_SHARE, TARGET_S, PendingLimit

STEP_S = 0.1
WRITE_S = 0.3
"""How long it takes from emission until a bolt can read a record."""
ALWAYS = 10**9


@dataclass
class Model:
    """A spout that emits once in ``cadence_s``, and its bolt, which does ``rate(time)`` records a second.

    The bolt works once in ``cycle_s``, and holds ``held`` of a hundred records for an hour.
    """

    rate: Callable[[float], float]
    most: int = 100_000
    cadence_s: float = 1.0
    cycle_s: float = STEP_S
    held: int = 0
    arriving: Callable[[float], float] = lambda time_s: ALWAYS
    limit: PendingLimit = field(default_factory=PendingLimit)
    queue: deque[list[float]] = field(default_factory=deque)
    holds: deque[tuple[float, float]] = field(default_factory=deque)
    pending: int = 0
    done: int = 0
    time_s: float = 0.0
    waiting: float = 0.0
    _budget: float = 0.0
    _taken: int = 0

    @property
    def queued(self) -> int:
        return int(sum(count for _, count in self.queue))

    def run(self, seconds: float) -> int:
        """Return how many records were done in so many seconds."""
        before = self.done
        for _ in range(round(seconds / STEP_S)):
            self.time_s = round(self.time_s + STEP_S, 3)
            self.waiting += self.arriving(self.time_s) * STEP_S
            if self._is_at(self.cadence_s):
                self._emit()
            self._budget += self.rate(self.time_s) * STEP_S
            if self._is_at(self.cycle_s):
                self._work()
        return self.done - before

    def _is_at(self, every_s: float) -> bool:
        return int(self.time_s / every_s + 1e-6) != int((self.time_s - STEP_S) / every_s + 1e-6)

    def _emit(self) -> None:
        self.limit.bound(self.most, busy_s=self.cadence_s)
        overtaken = sum(emitted_s < self.limit.overtaken_s for _, emitted_s in self.holds)
        room = max(0, self.limit.allowed - self.pending + overtaken)
        if self.waiting > room:
            self.limit.hold_back()
        if count := int(min(self.waiting, room, self.most - self.pending)):
            self.queue.append([self.time_s, count])
            self.pending += count
            self.waiting -= count

    def _work(self) -> None:
        times: list[tuple[float, int]] = []
        while self.queue and self._budget >= 1 and self.queue[0][0] + WRITE_S <= self.time_s:
            emitted_s, count = self.queue[0]
            taken = int(min(count, self._budget))
            held = (self._taken + taken) * self.held // 100 - self._taken * self.held // 100
            self._taken += taken
            self.holds += [(self.time_s + 3600, emitted_s)] * held
            times.append((self.time_s - emitted_s, taken - held))
            self._budget -= taken
            self.queue[0][1] -= taken
            if not self.queue[0][1]:
                self.queue.popleft()
        self._budget = min(self._budget, 1.0)  # an idle bolt saves nothing up
        while self.holds and self.holds[0][0] <= self.time_s:
            times.append((self.time_s - self.holds.popleft()[1], 1))
        finished = sum(count for _, count in times)
        self.pending -= finished
        self.done += finished
        self.limit.complete([each for each in times if each[1]], self.time_s)


@pytest.mark.parametrize("cadence_s", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("rate", [200, 2_000, 20_000])
def test_a_bolt_with_a_backlog_is_never_idle_and_its_queue_is_seconds_long(
    rate: int, cadence_s: float
) -> None:
    model = Model(lambda _: rate, most=1_000_000, cadence_s=cadence_s)
    model.run(max(120.0, 2 * model.most / FIRST_SHARE / rate))
    for _ in range(10):
        assert model.run(30) >= 0.97 * 30 * rate
        assert model.queued <= (2 * TARGET_S + 2 * cadence_s) * rate


def test_the_first_limit_costs_a_fast_bolt_only_seconds():
    fast = Model(lambda _: 20_000, most=1_000_000)
    assert fast.run(20) >= 20_000 * (20 - 8)


def test_a_bolt_that_is_slow_for_two_minutes_leaves_no_queue_behind():
    model = Model(lambda time_s: 200 if 60 < time_s < 180 else 2_000)
    model.run(60)
    assert model.run(120) >= 0.97 * 120 * 200
    assert model.queued <= 2 * TARGET_S * 200
    assert model.run(30) >= 0.9 * 30 * 2_000
    assert model.queued <= 2 * TARGET_S * 2_000


def test_a_spout_below_the_bolts_capacity_is_never_held_back():
    model = Model(lambda _: 2_000, arriving=lambda _: 1_000)
    model.run(60)
    assert model.waiting <= 1_000
    assert model.limit.allowed == FIRST_LIMIT, "it did not have to grow"


def test_a_bolt_that_works_once_a_minute_gets_a_minute_of_records():
    model = Model(lambda _: 2_000, most=1_000_000, cycle_s=60.0)
    model._budget = 0.0
    model.run(600)
    assert model.limit.allowed >= 60 * 2_000 / 2, "its period is no queue"


def test_records_that_a_bolt_holds_for_an_hour_take_no_room_from_the_others():
    model = Model(lambda _: 200, held=1)
    model.run(120)
    for _ in range(10):
        assert model.run(120) >= 0.95 * 120 * 200 * 0.99
    assert model.limit.allowed < len(model.holds), "more are held than the limit allows"


def test_a_limit_follows_max_pending_and_lets_a_whole_block_pass():
    limit = PendingLimit()
    limit.bound(500)
    assert limit.allowed == 500
    limit.bound(100_000, sharers=64, least=50)
    assert limit.allowed == 500
    other = PendingLimit()
    other.bound(100_000, sharers=100, least=50)
    assert other.allowed == 50


def test_a_limit_that_holds_nothing_back_does_not_change():
    limit = PendingLimit()
    limit.bound(100_000)
    limit.complete([(60.0, 5_000)], 100.0)
    limit.complete([(0.1, 5_000)], 200.0)
    assert limit.allowed == FIRST_LIMIT


def test_a_source_whose_records_are_no_longer_tracked_has_no_limit():
    limit = PendingLimit()
    limit.bound(100_000)
    limit.bound(0)
    assert limit.allowed == 0
