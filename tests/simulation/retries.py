"""Checks what bolts and stages said of when a record is emitted again, and what became of it.

Invariant: it knows the log's order only. A record may be emitted again too early, or after it was rejected,
only if the last emission of it had failed before for another reason, an operator has moved the offsets, or a
driver has begun without the newest checkpoint, which emits the last batch again. Nobody knows which record of
a block was rejected, so all of them may be emitted again. What is in flight is emitted as new by none but
such a driver.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from acktree.producers.ledger.logged_batch import PlannedBatch, Range
from acktree.wire.control_records import BACK_OFF, NEVER, Ack, Failure, Result
from acktree.wire.ids import root_id
from simulation.repeats import Place

DRAWN, DELAYED, REJECTED = "drawn", "delayed", "rejected"
"""What a failing tuple gives as its reason, by when its record is emitted again."""


def reason_for(retry_after_ms: int) -> str:
    """Return the reason that goes with a delay, BACK_OFF or NEVER."""
    return {BACK_OFF: DRAWN, NEVER: REJECTED}.get(retry_after_ms, DELAYED)


@dataclass(frozen=True, slots=True)
class _Failed:
    """The first failure of an emission: when it may be emitted again, in seconds since the log began."""

    retry_after_ms: int
    at_s: float


@dataclass(eq=False)
class Retries:
    """See the module."""

    counters: Counter[str]
    found: list[str] = field(default_factory=list)
    """Promises that are broken."""
    is_time_true: bool = True
    """Whether no clock was stepped; a delay is measured by two of them."""
    has_breaker: bool = False
    """Whether an open breaker takes a rejection for a plain failure."""
    _said: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    _joined: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _failed: dict[int, _Failed] = field(default_factory=dict)
    _planned: dict[Place, int] = field(default_factory=dict)
    """The root of the last emission of each record."""
    _newest: list[Place] = field(default_factory=list)
    """What the batch that was logged last has emitted."""
    _number: int = 0
    """The number of that batch."""
    _records: dict[int, set[Place]] = field(default_factory=lambda: defaultdict(set))
    """The records of each root that a driver has planned: several in a block."""
    _emitted_twice: set[Place] = field(default_factory=set)
    """Records of a last batch that a driver did not know, and so emitted once more."""
    _dead_letters: Counter[Place] = field(default_factory=Counter)
    """Dead letters by source record."""

    def say(self, value: bytes, retry_after_ms: int) -> str:
        """User code is about to fail a tuple of a record in this way; return the reason to give."""
        for record in self._records_of(value):
            self._said[record].add(retry_after_ms)
        return reason_for(retry_after_ms)

    def join(self, left: bytes, right: bytes) -> None:
        """A bolt is about to emit a tuple of two records, which is named after the left one."""
        self._joined[_record_of(left)].add(_record_of(right))

    def _records_of(self, value: bytes) -> set[bytes]:
        """Return all records that a tuple with this value may be anchored to."""
        found, left = set[bytes](), [_record_of(value)]
        while left:
            if (record := left.pop()) not in found:
                found.add(record)
                left += sorted(self._joined[record])
        return found

    def check_fails(self, ack: Ack) -> None:
        """Check a control record of a bolt: its fails say what was said of when."""
        for fail in ack.fails:
            if fail.reason in (DELAYED, REJECTED) and fail.retry_after_ms == BACK_OFF:
                self.found.append(f"root {fail.root:x} was {fail.reason}, and its fail does not say so")

    def check_result(self, result: Result, now_s: float) -> None:
        """Check a result of an acker, and note how roots have failed."""
        for root in result.acked.tolist():
            self._failed.setdefault(root, _Failed(BACK_OFF, now_s))
            self.counters["block acked"] += self._is_block(root)
        for failure in result.failed:
            self._check_failure(failure)
            self.counters["block failed"] += self._is_block(failure.root)
            self._failed.setdefault(failure.root, _Failed(failure.retry_after_ms, now_s))

    def _check_failure(self, failure: Failure) -> None:
        if failure.reason in (DELAYED, REJECTED) and failure.retry_after_ms == BACK_OFF:
            self.found.append(f"root {failure.root:x} was {failure.reason}, and its result does not say so")

    def begin_behind(self, number: int, *, is_known: bool) -> None:
        """A driver plans its first batch behind that of a number, the last one of its checkpoint.

        ``is_known``: no driver has begun without that batch since.
        """
        if number != self._number or not is_known:
            self.counters["begun without the last batch"] += 1
            for place in self._newest:
                self._planned.pop(place, None)
            self._emitted_twice.update(self._newest)

    def emitted_again(self, topic: str, partition: int, start: int) -> None:
        """A task emits again what others had in flight from an offset on: it does not read their results."""
        for place in [place for place in self._planned if place[:2] == (topic, partition)]:
            if place[2] >= start:
                del self._planned[place]
                self._emitted_twice.add(place)

    def check_plan(self, batch: PlannedBatch, now_s: float) -> None:
        """Check what a driver emits: nothing that is rejected, and what is delayed not before its time."""
        is_late = batch.number < self._number  # planned before a newer driver began, with other checkpoints
        new = {place for place, _ in _emitted_in(batch.ranges)}
        for place, root in _emitted(batch):
            if (before := self._planned.get(place)) is not None and not is_late:
                if place in new:
                    self.found.append(f"source record {place} is in flight, and emitted as if it were new")
                if before != root:
                    self._check_again(place, before, now_s)
            self._planned[place] = root
            self._records[root].add(place)
        if batch.records and not is_late:
            self._number, self._newest = batch.number, [place for place, _ in _emitted(batch)]

    def check_written(self, roots: Iterable[tuple[Place, int]], now_s: float) -> None:
        """Check what a stage outside Spark has written: as a plan, and nothing of it was in flight."""
        for place, root in roots:
            before = self._planned.get(place)
            if before is not None and before != root:
                if before not in self._failed:
                    self.found.append(f"source record {place} is in flight, and written once more")
                self._check_again(place, before, now_s)
            self._planned[place] = root
            self._records[root].add(place)

    def records_of(self, root: int) -> Set[Place]:
        """Return the source records that a driver has emitted under a root; none of a Python spout's."""
        return self._records.get(root, frozenset())

    def _is_block(self, root: int) -> bool:
        return len(self.records_of(root)) > 1

    def _check_again(self, place: Place, root: int, now_s: float) -> None:
        failed = self._failed.get(root)
        if place in self._emitted_twice:
            return  # whichever of its two emissions fails first decides, as docs/guarantees.md says
        if failed is None or failed.retry_after_ms == BACK_OFF:
            return
        if failed.retry_after_ms == NEVER and self._is_block(root):
            self.counters["rejected block emitted again"] += 1
            return
        if failed.retry_after_ms == NEVER and self.has_breaker:
            return
        if failed.retry_after_ms == NEVER:
            self.found.append(
                f"source record {place} was rejected at {failed.at_s:.3f} s, and is emitted again"
            )
            return
        due_s = failed.at_s + failed.retry_after_ms / 1000
        if now_s < due_s and self.is_time_true:
            self.found.append(f"source record {place} is due at {due_s:.3f} s, and emitted at {now_s:.3f} s")
        self.counters["emitted again after its delay"] += 1

    def check_dead_letter(
        self, place: Place, value: bytes, headers: dict[str, bytes | None], max_attempts: int
    ) -> None:
        """Check a dead letter: its cause, and that its record has no other one."""
        cause, attempts = (str(headers[f"acktree-{name}"] or b"", "utf-8") for name in ("cause", "attempts"))
        if cause == "REJECTED":
            self.counters["record rejected"] += 1
            if NEVER not in self._said[_record_of(value)]:
                self.found.append(
                    f"source record {place} is a dead letter as rejected, and nobody rejected it"
                )
        elif int(attempts) < max_attempts:
            self.found.append(f"source record {place} is a dead letter after {attempts} of {max_attempts}")
        self._dead_letters[place] += 1
        if self._dead_letters[place] > 1:
            self.found.append(f"source record {place} has {self._dead_letters[place]} dead letters")

    def check_failure(self, value: bytes, retry: bool, retry_after_s: float | None) -> None:
        """Check what a Python spout is told of a message."""
        said = self._said[_record_of(value)]
        if not retry:
            self.counters["message rejected"] += 1
            if NEVER not in said:
                self.found.append(f"message {value.decode()} is rejected, and nobody rejected it")
        elif retry_after_s is not None and round(retry_after_s * 1000) not in said:
            self.found.append(f"message {value.decode()} is to wait {retry_after_s} s, and nobody said so")

    def forgive(self, topic: str, partition: int) -> None:
        """Let records be emitted again at any time: an operator has moved the offset of their partition."""
        for known in (self._planned, self._dead_letters):
            for place in [place for place in known if place[:2] == (topic, partition)]:
                del known[place]


def _record_of(value: bytes) -> bytes:
    """Return what all values that are made of one record begin with."""
    return value.split(b"|")[0]


def _emitted(batch: PlannedBatch) -> Iterator[tuple[Place, int]]:
    """Yield each source record of a batch with its root."""
    yield from _emitted_in((*batch.ranges, *batch.again))
    for replays in batch.replays:
        for offset in replays.offsets:
            place = replays.topic, replays.partition, offset
            yield place, root_id(replays.slot, replays.generation, offset)


def _emitted_in(ranges: Iterable[Range]) -> Iterator[tuple[Place, int]]:
    """Yield each source record of ranges with its root, which is that of the first record of its block."""
    for range_ in ranges:
        for offset in range(range_.start, range_.end):
            place = range_.topic, range_.partition, offset
            first = max(range_.start, offset - offset % range_.block)
            yield place, root_id(range_.slot, range_.run << 4, first)
