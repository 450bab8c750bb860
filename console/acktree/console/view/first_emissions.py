"""When pending records were emitted for the first time, from the inits in the log, read backwards.

A root id says slot, offset, run and attempt, so every init of a record is recognized. Attempts count modulo
16 and a run may begin in the middle of a record's replays, so attempt 0 alone proves nothing: the first
emission is one that nothing precedes for longer than any replay takes, in a log that was read that far.
Invariant: an emission is called the first only if the log shows that; else its age is a lower bound.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from acktree.schemas.ids import ATTEMPT_MASK, MAX_SLOTS, IdArray, origins_of, run_at_least
from acktree.schemas.topology import Topology

Key = tuple[int, int]
"""A slot, and the offset that its roots name: of a block the first one."""

SLACK_S = 60.0
OFFSET_BITS = 40


def longest_gap_s(topology: Topology) -> float:
    """Return how long after an emission a pending record is emitted again at the latest, in seconds."""
    timeout_s = topology.message_timeout_s or topology.control_retention_s / 2
    back_off_s = max((spout.retry_max_s for spout in topology.spouts.values()), default=0.0)
    return 2 * (1.1 * (timeout_s + back_off_s) + SLACK_S)


@dataclass(slots=True)
class Emissions:
    """The emissions of one record that were found; ``is_first``: the earliest one is its first."""

    earliest_ms: int
    latest_ms: int
    attempt: int
    roots: set[int] = field(default_factory=set)
    is_first: bool = False


class EmissionSearch:
    """Finds the emissions of at least one record; times are milliseconds since 1970."""

    def __init__(
        self,
        wanted: Collection[Key],
        gap_s: float,
        floors: Mapping[int, int],
        command_runs: Collection[int] = (),
    ) -> None:
        """``floors``: the lowest run that counts, by slot; ``command_runs``: those of replay commands.

        A command emits done records again, and so begins their ages anew.
        """
        self.found: dict[Key, Emissions] = {}
        self._left = set(wanted)
        self._keys = np.array(sorted(slot << OFFSET_BITS | offset for slot, offset in wanted), np.uint64)
        self._gap_ms, self._floors, self._command_runs = 1000 * gap_s, floors, frozenset(command_runs)
        self._matches: list[tuple[int, int, Key, int]] = []
        self._slot_begins_ms: NDArray[np.int64] = np.full(MAX_SLOTS, np.iinfo(np.int64).max)

    @property
    def is_done(self) -> bool:
        """Whether nothing earlier can change what was found."""
        return not self._left

    def add(self, roots: Sequence[IdArray], append_ms: Sequence[int]) -> None:
        """Add records of inits, each with its append time, in any order within a window."""
        if not roots:
            return
        times: NDArray[np.int64] = np.repeat(np.array(append_ms, np.int64), [len(part) for part in roots])
        all_roots = np.concatenate(roots)
        if not len(all_roots):
            return
        slots, generations, offsets = origins_of(all_roots)
        np.minimum.at(self._slot_begins_ms, slots, times)
        keys = slots.astype(np.uint64) << np.uint64(OFFSET_BITS) | offsets.astype(np.uint64)
        places = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        for row in np.flatnonzero(self._keys[places] == keys).tolist():
            key, generation = (int(slots[row]), int(offsets[row])), int(generations[row])
            floor = self._floors.get(key[0])
            if floor is None or run_at_least(generation >> 4, floor):
                self._matches.append((int(times[row]), generation, key, int(all_roots[row])))

    def end_window(self) -> None:
        """Say that the log was added as far back as the earliest record since the last call."""
        for time_ms, generation, key, root in sorted(self._matches, reverse=True):
            if key in self._left:
                self._record(time_ms, generation, key, root)
        self._matches.clear()
        for key in [key for key in self._left if self._is_first(key, int(self._slot_begins_ms[key[0]]))]:
            self._close(key)

    def _record(self, time_ms: int, generation: int, key: Key, root: int) -> None:
        attempt = generation & ATTEMPT_MASK
        found = self.found.setdefault(key, Emissions(time_ms, time_ms, attempt))
        found.earliest_ms, found.attempt = time_ms, attempt
        found.roots.add(root)
        if not attempt and generation >> 4 in self._command_runs:
            self._close(key)

    def end_log(self, reaches_back_to_ms: int) -> None:
        """Say that there is nothing earlier in the log, which has everything since a time."""
        for key in [key for key in self._left if self._is_first(key, reaches_back_to_ms)]:
            self._close(key)

    def _is_first(self, key: Key, begins_ms: int) -> bool:
        """Return whether what was read begins so long before the earliest emission that it is the first."""
        found = self.found.get(key)
        return found is not None and not found.attempt and begins_ms <= found.earliest_ms - self._gap_ms

    def _close(self, key: Key) -> None:
        self.found[key].is_first = True
        self._left.discard(key)

    def give_up(self, keys: Collection[Key]) -> None:
        """Search no longer for those of the records of which nothing was found."""
        self._left -= {key for key in keys if key not in self.found}
