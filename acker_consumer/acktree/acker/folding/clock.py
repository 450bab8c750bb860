"""Keeps log time, the clock of one acker partition's trees: taken from the log, not from this machine.

Invariant: log time never goes back, and never runs ahead of the fold: every record that was appended before
it, on both control topics, has been folded. Pure; times in milliseconds.
"""

from dataclasses import dataclass

import numpy as np

from acktree.wire.batch_codec import Integers

UNKNOWN_MS = -1


@dataclass(frozen=True, slots=True)
class Watermark:
    """The end of a log: ``high`` (not the last stable offset), and the wall clock read before the request."""

    wall_ms: int
    high: int


class TopicClock:
    """Log time of one partition of one topic.

    While behind: the append time of the last record folded, once the next record confirms it, so that a
    single wrong timestamp moves nothing. At the end of the log: the wall clock read before the end was
    requested. A read_committed position that a hanging transaction holds back is not at the end.
    """

    __slots__ = ("_awaited", "_last_ms", "folded_ms", "next_offset", "time_ms")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.time_ms = self.folded_ms = UNKNOWN_MS
        self._last_ms = UNKNOWN_MS
        self._awaited: Watermark | None = None

    def fold(self, append_ms: Integers, next_offset: int, wall_ms: int) -> None:
        """Record that records were folded, by append time (UNKNOWN_MS where the broker did not set one)."""
        times = append_ms[append_ms != UNKNOWN_MS]
        if len(times):
            confirmed = np.minimum(times, np.concatenate(([self._last_ms], times[:-1])))
            self.time_ms = max(self.time_ms, min(int(confirmed.max()), wall_ms))
            self._last_ms = int(times[-1])
        self.reach(next_offset)

    def reach(self, next_offset: int) -> None:
        """Record that every record below an offset has been folded; the offsets between them hold none."""
        self.next_offset = max(self.next_offset, next_offset)
        if self._awaited is not None and self.next_offset >= self._awaited.high:
            self.time_ms = max(self.time_ms, self._awaited.wall_ms)
            self.folded_ms = max(self.folded_ms, self._awaited.wall_ms)
            self._awaited = None

    def go_back(self, next_offset: int) -> None:
        """Continue at an earlier offset, as the log has lost its end: the time stays."""
        self.next_offset, self._awaited = next_offset, None

    def observe(self, watermark: Watermark) -> None:
        """Record where the log ended; the first end not yet reached is the one that counts."""
        if self._awaited is None:
            self._awaited = watermark
            self.reach(self.next_offset)


class LogClock:
    """The smaller of both topics' clocks."""

    __slots__ = ("acks", "inits")

    def __init__(self, inits: TopicClock, acks: TopicClock) -> None:
        self.inits, self.acks = inits, acks

    @property
    def time_ms(self) -> int:
        """Log time, UNKNOWN_MS until it is known for both topics."""
        return min(self.inits.time_ms, self.acks.time_ms)

    @property
    def folded_ms(self) -> int:
        """The wall clock at which all that has been folded was known to be all that there was."""
        return min(self.inits.folded_ms, self.acks.folded_ms)

    def ages_of(self, append_ms: Integers, wall_ms: int) -> Integers:
        """Return the log times from which the ages of the records' roots count.

        This is the append time, clamped between log time and the wall clock: a wrong timestamp can make its
        own roots neither older than what is folded with it nor younger than now.
        """
        latest = max(wall_ms, self.time_ms)
        known = np.where(append_ms != UNKNOWN_MS, append_ms, latest)
        ages: Integers = np.clip(known, self.time_ms, latest)
        return ages
