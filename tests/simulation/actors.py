"""User code of a searched system: a spout and bolts that report each of their acts to the checker.

Invariant: each emitted value is unique, so the checker finds a child in the log by its value alone and never
needs edges.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from acktree.core import world
from acktree.producers import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Bolt,
    Failure,
    Message,
    Reject,
    RetryLater,
    Spout,
)
from acktree.wire.control_records import BACK_OFF, NEVER
from simulation.checker import BrokenPromise, Checker
from simulation.retries import DELAYED, REJECTED, reason_for

LONG_S = 2.0
"""No message timeout is shorter, so no tuple that takes less is held for too long."""

RESET_EVERY = 4
"""Of so many held tuples one has its timeout reset."""


class DrawnFailure(Exception):
    """What a bolt of the search raises for a tuple that it does not want."""


@dataclass
class Temper:
    """How a bolt of the search behaves; each chance is drawn per tuple."""

    children: int = 1
    fail: float = 0.0
    raises: float = 0.0
    slow: float = 0.0
    slow_s: float = 1.0
    pace_s: float = 0.0
    """How long each tuple takes, healed or not: slow is normal."""
    holds: float = 0.0
    """Chance of holding a tuple until a later tick, out of order."""
    never: float = 0.0
    """Chance of neither acking nor failing a tuple: only a replay helps."""
    rejects: float = 0.0
    """Chance of saying that a record is never tried again."""
    delays: float = 0.0
    """Chance of saying when it is, after ``delay_ms``."""
    delay_ms: int = 0
    unanchored: float = 0.0
    """Chance of emitting one more child, without an anchor."""
    is_healed: bool = False


@dataclass
class Mind:
    """What all workers of one bolt share: the checker, the temper, the draws."""

    checker: Checker
    bolt: str
    temper: Temper
    draw: random.Random
    retry_draw: random.Random
    unanchored_draw: random.Random = field(default_factory=random.Random)

    def excuse(self, *tuples: Any) -> None:
        """Report to the checker that tuples are about to be failed."""
        excused = self.checker.every_record.excused
        excused.update((self.bolt, (tup.topic, tup.partition, tup.offset)) for tup in tuples)

    def keep(self, tup: Any) -> None:
        """Report to the checker that a tuple stays in hand for long."""
        self.checker.every_record.held.add((self.bolt, (tup.topic, tup.partition, tup.offset)))

    def unanchored_of(self, tup: Any) -> list[bytes]:
        """Return the values that the execution of a tuple emits without an anchor; report them."""
        if not self.temper.unanchored or self.unanchored_draw.random() >= self.temper.unanchored:
            return []
        return self.checker.emit_unanchored(self.bolt, (tup.topic, tup.partition, tup.offset), 1)

    def retry_of(self, value: bytes) -> int:
        """Draw whether a tuple fails with NEVER or a delay in ms, and report it; else BACK_OFF."""
        temper, drawn = self.temper, self.retry_draw.random()
        if temper.is_healed or drawn >= temper.rejects + temper.delays:
            return BACK_OFF
        retry_after_ms = NEVER if drawn < temper.rejects else temper.delay_ms
        self.checker.retries.say(value, retry_after_ms)
        return retry_after_ms

    def may_raise(self, tup: Any) -> None:
        """Raise Reject or RetryLater, or another error, if that is drawn."""
        retry_after_ms = self.retry_of(tup.value)
        if retry_after_ms != BACK_OFF:
            self.excuse(tup)
        if retry_after_ms == NEVER:
            raise Reject(REJECTED)
        if retry_after_ms != BACK_OFF:
            raise RetryLater(retry_after_ms / 1000, DELAYED)
        if self.chance(self.temper.raises + self.temper.fail):
            self.excuse(tup)
            raise DrawnFailure("drawn")

    def fails(self, tup: Any, collector: Any) -> bool:
        """Fail a tuple with ``retry`` or ``retry_after_s``, if that is drawn."""
        retry_after_ms = self.retry_of(tup.value)
        if retry_after_ms == BACK_OFF:
            return False
        self.excuse(tup)
        delay_s = None if retry_after_ms == NEVER else retry_after_ms / 1000
        collector.fail(tup, reason_for(retry_after_ms), retry=delay_s is not None, retry_after_s=delay_s)
        return True

    def chance(self, of: float) -> bool:
        """Draw; a healed system has no chances."""
        return not self.temper.is_healed and self.draw.random() < of

    def pause_s(self) -> float:
        """Return how long this tuple takes."""
        slow_s = self.draw.uniform(0, self.temper.slow_s) if self.chance(self.temper.slow) else 0.0
        return self.temper.pace_s + slow_s

    def children_of(self, tup: Any) -> list[bytes]:
        """Return the values of the children of one execution; report them."""
        return self.checker.execute(
            self.bolt, tup.topic, tup.partition, tup.offset, tup.value, self.temper.children
        )


class SearchBolt(Bolt):
    """Acks, fails, raises, holds, or forgets."""

    def __init__(self, mind: Mind) -> None:
        self.mind = mind
        self.held: list[Any] = []

    def execute(self, tup: Any, collector: Any) -> None:
        """See Bolt."""
        mind = self.mind
        if pause_s := mind.pause_s():
            world.sleep(pause_s)
        if mind.fails(tup, collector):
            return
        if mind.chance(mind.temper.raises):
            mind.excuse(tup)
            raise DrawnFailure("drawn")
        if mind.chance(mind.temper.fail):
            mind.excuse(tup)
            collector.fail(tup, "drawn")
        elif mind.chance(mind.temper.never) and tup.tracked:  # an untracked one would be waited for, for ever
            mind.checker.count("never acked")
            mind.keep(tup)
            mind.excuse(tup)
        elif mind.chance(mind.temper.holds):
            mind.keep(tup)
            self.held.append(tup)
            if tup.offset % RESET_EVERY == 0:
                collector.reset_timeout(tup)
        else:
            self._finish(tup, collector)

    def _finish(self, tup: Any, collector: Any) -> None:
        for value in self.mind.children_of(tup):
            collector.emit(value, anchors=[tup], key=value)
        for value in self.mind.unanchored_of(tup):
            collector.emit(value, anchors=(), key=value)
        collector.ack(tup)

    def _join(self, left: Any, right: Any, collector: Any) -> None:
        mind = self.mind
        mind.checker.count("join")
        mind.checker.retries.join(left.value, right.value)
        (value,) = mind.checker.execute(mind.bolt, left.topic, left.partition, left.offset, left.value, 1)
        mind.checker.execute_with(mind.bolt, right.topic, right.partition, right.offset, [value])
        collector.emit(value, anchors=[left, right], key=value)
        collector.ack(right)
        collector.ack(left)

    def drop(self, tuples: Any) -> None:
        """Forget tuples that another worker reads, or this one again."""
        gone = set(tuples)
        self.held = [tup for tup in self.held if tup not in gone]

    def tick(self, collector: Any) -> None:
        """Finish what was held, last first; two at once share a child, as in a join."""
        held, self.held = self.held, []
        if len(held) > 1 and self.mind.temper.children:
            self._join(held.pop(), held.pop(), collector)
        for tup in reversed(held):
            self.mind.checker.count("acked out of order")
            self._finish(tup, collector)

    tick_interval_s = 0.5


class NarrowBolt(SearchBolt):
    """Holds so few tuples that its partitions are paused again and again."""

    max_in_hand = 4


class SearchBasicBolt(BasicBolt):
    """Raises or returns."""

    def __init__(self, mind: Mind) -> None:
        self.mind = mind

    def execute(self, tup: Any, emit: Any) -> None:
        """See BasicBolt."""
        mind = self.mind
        if pause_s := mind.pause_s():
            world.sleep(pause_s)
        mind.may_raise(tup)
        for value in mind.children_of(tup):
            emit(value, key=value)


class SearchBatchBolt(BatchBolt):
    """Fails some of a batch, or the whole of it."""

    def __init__(self, mind: Mind) -> None:
        self.mind = mind

    def execute(self, tuples: Any, collector: Any) -> None:
        """See BatchBolt."""
        mind = self.mind
        if mind.chance(mind.temper.raises):
            mind.excuse(*tuples)
            raise DrawnFailure("drawn")
        for tup in tuples:
            if pause_s := mind.pause_s():
                world.sleep(pause_s)
            if mind.fails(tup, collector):
                continue
            if mind.chance(mind.temper.fail):
                mind.excuse(tup)
                collector.fail(tup, "drawn")
                continue
            values = mind.children_of(tup)
            if values:
                collector.emit_many(values, [tup] * len(values), keys=values)
            for value in mind.unanchored_of(tup):
                collector.emit(value, anchors=(), key=value)


class SearchAsyncBolt(AsyncBolt):
    """Raises or returns, after a while and in any order."""

    def __init__(self, mind: Mind) -> None:
        self.mind = mind

    async def execute(self, tup: Any, emit: Any) -> None:
        """See AsyncBolt."""
        mind = self.mind
        began_s = world.monotonic_s()
        try:
            await asyncio.sleep(mind.draw.uniform(0.0, 0.05) + mind.pause_s())
        finally:
            if world.monotonic_s() - began_s > LONG_S:  # a worker may have given up waiting
                mind.keep(tup)
        mind.may_raise(tup)
        for value in mind.children_of(tup):
            emit(value, key=value)


BOLTS = {
    "plain": SearchBolt,
    "narrow": NarrowBolt,
    "basic": SearchBasicBolt,
    "batch": SearchBatchBolt,
    "async": SearchAsyncBolt,
}


@dataclass
class SpoutMessages:
    """The messages of one spout task: what outlives its process, as a user's database would."""

    count: int
    interval_s: float
    silent_until_s: float = 0.0
    done: set[int] = field(default_factory=set)


class SearchSpout(Spout):
    """Emits its messages until each is acked."""

    def __init__(self, checker: Checker, name: str, messages: SpoutMessages) -> None:
        self.checker, self.name_of_task, self.messages = checker, name, messages
        self.waiting = [number for number in range(messages.count) if number not in messages.done]
        self.next_s = 0.0
        self.open = Counter[int]()
        """Emissions that this process has been given no outcome of, by message."""

    def next_tuple(self, emitter: Any) -> None:
        """See Spout."""
        now_s = world.monotonic_s()
        if not self.waiting or now_s < max(self.next_s, self.messages.silent_until_s):
            return
        self.next_s = now_s + self.messages.interval_s
        number = self.waiting.pop(0)
        value = self.checker.emit(self.name_of_task, number)
        self.open[number] += 1
        emitter.emit(value, number, key=value)

    def ack(self, message: Message) -> None:
        """See Spout."""
        assert isinstance(message.id, int)
        self._close(message.id)
        self.checker.message_acked(self.name_of_task, message.id)
        self.messages.done.add(message.id)

    def fail(self, message: Message, failure: Failure) -> None:
        """See Spout."""
        assert isinstance(message.id, int)
        self._close(message.id)
        self.checker.count(f"failed: {failure.cause.name.lower()}")
        value = b"%s/%d" % (self.name_of_task.encode(), message.id)
        self.checker.retries.check_failure(value, failure.retry, failure.retry_after_s)
        if not failure.retry:
            self.checker.exhausted.add((self.name_of_task, message.id))
            self.messages.done.add(message.id)
        if message.id not in self.messages.done:
            self.waiting.append(message.id)

    def gave_up(self, message: Message, failure: Failure) -> None:
        """See Spout; its source offers it again."""
        assert isinstance(message.id, int)
        self._close(message.id)
        self.checker.check_given_up(self.name_of_task, message.id)
        if message.id not in self.messages.done:
            self.waiting.append(message.id)

    def _close(self, number: int) -> None:
        self.open[number] -= 1
        if self.open[number] < 0:
            raise BrokenPromise(f"{self.name_of_task} is given two outcomes of message {number}")


class RetriedSpout(SearchSpout):
    """Leaves what fails to the worker."""

    retry = True
