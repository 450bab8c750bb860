"""Checks that a process does nothing again that was committed as done before it began.

Invariant: it knows only what was committed when a process began, by its group or on the state topic of its
spout, so no race excuses a repeat.
What an operator rewinds may be done once more, and so may what no process had committed by then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from acktree.producers.collecting.arithmetic.done_above import decode_done
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.testing.kafka.broker.committed import Committed
from acktree.testing.kafka.broker.groups import Group
from acktree.testing.virtual.kernel import Process
from simulation.spout_state import StateLog, done_above, seal_of

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class Done:
    """What one partition's commit calls done."""

    frontier: int
    is_above: Callable[[int], bool]

    def holds(self, offset: int) -> bool:
        """Return whether an offset is done."""
        return offset < self.frontier or self.is_above(offset)


@dataclass(eq=False)
class Repeats:
    """What was done before each process began, and what was done again."""

    found: list[str] = field(default_factory=list)
    """What was done again without a cause."""
    lost: set[Place] = field(default_factory=set)
    """What a broker has lost: other records may be in its place."""
    _done: dict[Process, dict[tuple[str, int], Done]] = field(default_factory=dict)
    _groups: dict[Process, str] = field(default_factory=dict)

    def begin(self, process: Process, group: Group, done: Mapping[tuple[str, int], Done]) -> None:
        """Record what a process of a group finds committed when it begins."""
        self._done[process] = dict(done)
        self._groups[process] = group.name

    def forgive(self, group: str) -> None:
        """Let the present processes of a group do everything again: an operator has moved its offsets."""
        for process, name in self._groups.items():
            if name == group:
                self._done.pop(process, None)

    def check(self, process: Process, who: str, places: Iterable[Place]) -> None:
        """Find what a process does though it was done before it began."""
        done = self._done.get(process)
        if not done:
            return
        for topic, partition, offset in places:
            found = done.get((topic, partition))
            is_lost = (topic, partition, offset) in self.lost
            if found is not None and found.holds(offset) and not is_lost:
                self.found.append(
                    f"{who} does {topic}/{partition}@{offset} again, which was committed before"
                )


def planned_places(offset: dict[str, Any]) -> Iterator[Place]:
    """Yield the source records of a batch that a driver has planned."""
    batch = PlannedBatch.from_json(offset)
    for range_ in (*batch.ranges, *batch.again):
        for number in range(range_.start, range_.end):
            yield range_.topic, range_.partition, number
    for replays in batch.replays:
        for number in replays.offsets:
            yield replays.topic, replays.partition, number


def done_by_bolt(committed: Committed) -> Done:
    """Return what a commit of a bolt's worker calls done."""
    above = decode_done(committed.metadata or "", committed.offset)
    return Done(committed.offset, (lambda _offset: False) if above is None else above.holds)


def done_by_bolts(group: Group) -> dict[tuple[str, int], Done]:
    """Return what a group of a bolt's workers has committed."""
    return {place: done_by_bolt(committed) for place, committed in group.offsets.items()}


def done_by_spout(state: StateLog, group: Group) -> dict[tuple[str, int], Done]:
    """Return what the state of a spout calls done; an operator may have set offsets back in the group."""
    found: dict[tuple[str, int], Done] = {}
    for place, slot in state.slots.items():
        committed = group.offsets.get(place)
        above = done_above(slot)
        # A frontier is not above what is emitted, until a driver knows that the batch on top is.
        frontier = next(offset for offset in count(slot.frontier) if offset not in above)
        if committed is not None and seal_of(committed) is None and committed.offset < frontier:
            found[place] = Done(committed.offset, lambda _offset: False)
        else:
            found[place] = Done(slot.frontier, above.__contains__)
    return found
