"""Keeps the work clock: the time up to which the bolts of each spout have worked, by which its trees age.

A tuple that waits unread does not age, since a replay could only queue behind it. A bolt has *worked to* a
time when it has committed everything that was in its topics then. Its acks are in the log before it commits.
So once the acker has folded what was in the log after the commit, a tree that was last folded before that
time, and is still open, has lost something: nothing of it waits any more. The clock of a spout is that of the
slowest bolt that its records can reach.

Invariant: the clocks never go back, and move only by observation: while an end or a commit is unknown they
stop. Pure; times in ms since 1970, by this process's clock.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from acktree.core.topology.file import reached_bolts
from acktree.core.topology.registry import History
from acktree.wire.batch_codec import Integers

Place = tuple[str, int]
Offsets = Mapping[Place, int]

MAX_LOOKS = 64
"""How many looks are kept, and how many barriers of a bolt."""
NEVER_MS = -1
STILL_MS = 30_000
"""A partition of which nothing is committed for so long holds a bolt more than a long queue does."""


class Barrier(NamedTuple):
    """The ends of a bolt's topics at one time."""

    at_ms: int
    ends: Offsets

    def left(self, committed: Offsets, ends: Offsets) -> list[Place]:
        """Return the partitions that the bolt has not read to the barrier.

        An end may be lower than it was: the topic was recreated, or its broker has lost the end of it. What
        was above can no longer be read. Without a committed offset a partition is unread.
        """
        return [
            place
            for place, end in self.ends.items()
            if committed.get(place, -1) < min(end, ends.get(place, end))
        ]


class Behind(NamedTuple):
    """A bolt that has worked only up to ``since_ms``, and the partition that holds it, "" if unknown.

    Nothing of the partition was committed after ``still_ms``.
    """

    since_ms: int
    partition: str
    still_ms: int


class BoltClock:
    """Tracks the time up to which one bolt has worked."""

    def __init__(self) -> None:
        self.worked_ms = NEVER_MS
        self.behind: Behind | None = None
        self._barriers: list[Barrier] = []
        self._moved: dict[Place, tuple[int, int]] = {}
        """What it has committed of the partitions that hold it, and since when."""

    def see(self, newest: Barrier, committed: Offsets) -> None:
        """Record where its topics end, and what it had committed, or their logs had deleted, after that.

        A barrier with a partition that its topic does not have, since it was recreated, is dropped.
        """
        self._barriers = [each for each in self._barriers if each.ends.keys() <= newest.ends.keys()]
        self._barriers.append(newest)
        left: list[Place] = []
        while self._barriers and not (left := self._barriers[0].left(committed, newest.ends)):
            self.worked_ms = self._barriers.pop(0).at_ms
        _thin(self._barriers)
        reached = {place: committed.get(place, -1) for place in left}
        before, self._moved = (
            self._moved,
            {place: (offset, newest.at_ms) for place, offset in reached.items()},
        )
        for place, (offset, since_ms) in before.items():
            if reached.get(place) == offset:
                self._moved[place] = offset, since_ms
        self.behind = self._behind(newest) if left else None

    def _behind(self, newest: Barrier) -> Behind:
        """Return what holds it: first where nothing moves, then where the most waits."""

        def holds(place: Place) -> tuple[int, int]:
            offset, since_ms = self._moved[place]
            return (newest.at_ms - since_ms) // STILL_MS, newest.ends.get(place, 0) - offset

        topic, partition = place = max(self._moved, key=holds)
        return Behind(self._since_ms(newest.at_ms), f"{topic}/{partition}", self._moved[place][1])

    def unseen(self, at_ms: int) -> None:
        """Record that it is not known how far the bolt is."""
        self.behind = Behind(self._since_ms(at_ms), "", self.behind.still_ms if self.behind else at_ms)

    def _since_ms(self, now_ms: int) -> int:
        """Return the time to which it has worked, or else since when it has been seen behind."""
        if self.worked_ms != NEVER_MS:
            return self.worked_ms
        return self.behind.since_ms if self.behind is not None else now_ms


class Look(NamedTuple):
    """The times up to which the bolts have worked, by their commits that were read before ``at_ms``."""

    at_ms: int
    worked_ms: Mapping[str, int]
    behind: Mapping[str, Behind] = {}


Entry = TypeVar("Entry", Barrier, Look)


class Limit(NamedTuple):
    """The bolt that holds the clock of a spout, how far it is behind, and its partition, "" if unknown."""

    bolt: str
    behind_s: float
    partition: str
    since_commit_s: float
    """For how long nothing of the partition was committed."""


def bolts_behind(history: History, spout: str) -> frozenset[str]:
    """Return the bolts that records derived from a spout's can reach, under any version that is known."""
    return frozenset(reached_bolts(history.versions.values(), spout) & history.latest.bolts.keys())


class WorkClock:
    """The clocks of all spout tasks, for every partition of an acker."""

    def __init__(self) -> None:
        self._looks: list[Look] = []
        self._bolts: dict[str, frozenset[str]] = {}
        self._tasks: dict[int, str] = {}

    def follow(self, history: History) -> None:
        """Apply the newest version: which bolts the trees of each spout may wait for.

        A task that the newest version no longer has may still have open roots; they wait for the same bolts.
        """
        latest = history.latest
        self._bolts = {spout: bolts_behind(history, spout) for spout in latest.spouts}
        self._tasks = {
            task: spout
            for _, version in sorted(history.versions.items())
            for spout, tasks in version.spout_tasks.items()
            if spout in latest.spouts
            for task in tasks
        }

    def see(self, look: Look) -> None:
        """Record what was seen."""
        self._looks.append(look)
        _thin(self._looks)

    def clocks(self, now_ms: int, folded_ms: int) -> Integers:
        """Return the clock of each spout task, NEVER_MS where it is not known; ``now_ms`` is log time.

        Every record in the log at ``folded_ms`` has been folded. The last clock is that of tasks beyond the
        others, and of a spout that the topology no longer has: log time, for nobody waits for its results.
        """
        clocks: Integers = np.full(max(self._tasks, default=-1) + 2, now_ms, np.int64)
        looks = (look.worked_ms for look in reversed(self._looks) if look.at_ms <= folded_ms)
        worked: Mapping[str, int] = next(looks, {})
        for task, spout in self._tasks.items():
            clocks[task] = min((now_ms, *(worked.get(bolt, NEVER_MS) for bolt in self._bolts[spout])))
        return clocks

    def limits(self, wall_ms: int) -> dict[str, Limit]:
        """Return by spout the bolt that is behind the most, by the newest look; none if no bolt is."""
        behind = self._looks[-1].behind if self._looks else {}
        limits = {}
        for spout, bolts in self._bolts.items():
            late = [(behind[bolt].since_ms, bolt) for bolt in sorted(bolts & behind.keys())]
            if late:
                bolt = min(late)[1]
                since_ms, partition, still_ms = behind[bolt]
                behind_s, since_commit_s = (max(0, wall_ms - each) / 1000 for each in (since_ms, still_ms))
                limits[spout] = Limit(bolt, behind_s, partition, since_commit_s)
        return limits


def _thin(entries: list[Entry]) -> None:
    """Remove one entry where there are more than MAX_LOOKS: an inner one that leaves the smallest gap."""
    if len(entries) > MAX_LOOKS:
        inner = range(1, len(entries) - 1)
        del entries[min(inner, key=lambda each: entries[each + 1].at_ms - entries[each - 1].at_ms)]
