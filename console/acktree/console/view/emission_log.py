"""Reads the first emissions of pending records, and remembers them from one snapshot to the next.

Invariant: what is remembered is of records that have been pending ever since. Reading T.ack-init stops at a
deadline; what is left unread is said in the notes, and leaves first emissions unknown.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from acktree.console.view.cluster import Cluster, OffsetRange, Offsets, Place
from acktree.console.view.first_emissions import SLACK_S, Emissions, EmissionSearch, Key, longest_gap_s
from acktree.console.view.source_view import SlotView
from acktree.schemas import world
from acktree.schemas.codec import decode_ack_init
from acktree.schemas.errors import MalformedRecord

WINDOW_S = 600.0
MAX_WITHOUT_INIT = 10_000
"""Of how many records of a slot that have no init above the cut emissions are searched."""


class EmissionLog:
    """The emissions of the records that are pending."""

    def __init__(self) -> None:
        self._known: dict[Key, Emissions] = {}
        self._before: Mapping[int, SlotView] = {}
        self._before_ms = 0

    def update(
        self,
        cluster: Cluster,
        views: Mapping[int, SlotView],
        time_ms: int,
        ends: Offsets,
        floors: Mapping[int, int],
        command_runs: Collection[int],
        deadline_s: float,
    ) -> list[str]:
        """Add what is known of their emissions to views; return notes on what is not.

        ``deadline_s``, of the monotonic clock, ends the reading.
        """
        pending = {(slot, offset) for slot, view in views.items() for offset in (*view.open, *view.failed)}
        self._known = {
            (slot, offset): found
            for (slot, offset), found in self._known.items()
            if slot in views and not views[slot].is_done(offset)
        }
        fresh = {key for key in pending - self._known.keys() if self._was_pending_or_later(key)}
        for slot, offset in list(fresh):
            emission = views[slot].open.get(offset)
            if emission is not None and not emission.attempt:
                self._known[slot, offset] = Emissions(
                    emission.init_ms, emission.init_ms, 0, {emission.root}, is_first=True
                )
        gap_s = longest_gap_s(cluster.topology)
        reader = LogReader(cluster, ends, time_ms, deadline_s)
        if new := fresh - self._known.keys():
            search = EmissionSearch(new, gap_s, floors, command_runs)
            reader.read_back_to(search, self._before_ms - int(1000 * SLACK_S))
            self._known |= search.found
        old = pending - fresh - self._known.keys()
        without_init = (
            set() if self._before else {key for view in views.values() for key in _without_init(view)}
        )
        if old or without_init:
            search = EmissionSearch(old | without_init, gap_s, floors, command_runs)
            reader.read_back(search, without_init)
            self._known |= search.found
        self._before, self._before_ms = views, time_ms
        for (slot, offset), found in self._known.items():
            views[slot].add_emissions(offset, found)
        return reader.notes

    def _was_pending_or_later(self, key: Key) -> bool:
        """Return whether a record was not done at the last update: it had no init then."""
        before = self._before.get(key[0])
        return before is not None and not before.is_done(key[1])


def _without_init(view: SlotView) -> Iterable[Key]:
    offsets = (offset for offset in view.offsets() if offset not in view.open and offset not in view.failed)
    return ((view.slot.slot, offset) for offset in islice(offsets, MAX_WITHOUT_INIT))


class LogReader:
    """Reads T.ack-init backwards, for one snapshot."""

    def __init__(self, cluster: Cluster, ends: Offsets, time_ms: int, deadline_s: float) -> None:
        self._cluster, self._time_ms = cluster, time_ms
        self._ends = {
            place: end for place, end in ends.items() if place[0] == cluster.topology.ack_init_topic
        }
        self._deadline_s = deadline_s
        self.notes: list[str] = []

    def read_back_to(self, search: EmissionSearch, from_ms: int) -> None:
        """Add what was appended since a time, before which nothing is to be found."""
        begins = self._cluster.at_time(self._ends, from_ms)
        if self._read(search, begins, self._ends):
            search.end_log(reaches_back_to_ms=0)

    def read_back(self, search: EmissionSearch, optional: Collection[Key]) -> None:
        """Read further and further back until all is found; for ``optional`` records only one window."""
        starts = self._cluster.starts(self._ends)
        until, window_s, from_ms = dict(self._ends), WINDOW_S, self._time_ms
        while not search.is_done:
            from_ms -= int(1000 * window_s)
            begins = {
                place: min(max(starts.get(place, 0), offset), until[place])
                for place, offset in self._cluster.at_time(self._ends, from_ms).items()
            }
            if not self._read(search, begins, until):
                return
            search.give_up(optional)
            if all(offset <= starts.get(place, 0) for place, offset in begins.items()):
                kept_ms = self._time_ms - int(1000 * self._cluster.topology.control_retention_s)
                search.end_log(kept_ms if any(starts.values()) else 0)
                return
            until, window_s = begins, 2 * window_s

    def _read(self, search: EmissionSearch, begins: Offsets, ends: Offsets) -> bool:
        """Add one window; return whether it was read to its end in time."""
        spans: dict[Place, OffsetRange] = {
            p: OffsetRange(begins[p], end) for p, end in ends.items() if p in begins
        }
        for batch in self._cluster.scan(spans, self._deadline_s):
            roots, times = [], []
            for message in batch:
                try:
                    roots.append(decode_ack_init(message.value() or b"").inits["root"])
                except MalformedRecord:
                    continue
                times.append(message.timestamp()[1])
            search.add(roots, times)
        if world.monotonic_s() > self._deadline_s:
            self.notes.append(
                "first emissions may be unknown: more inits are in the log than were read in time; "
                "allow more with --time-limit"
            )
            return False
        search.end_window()
        return True
