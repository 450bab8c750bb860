"""Finds partitions that an open transaction holds back, from one look to the next.

Readers of committed records, as all of acktree's are, get nothing behind the first record of an open
transaction. Workers that process exactly once have one open nearly all the time. Invariant: only one that has
been open for MIN_AGE_S is named, and a time that a producer has set is not enough to make it that old.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from acktree.console.view.cluster import Cluster, Offsets, Place
from acktree.core import world

MIN_AGE_S = 30.0
UNMOVED_S = 3.0
"""For so long it must have been seen open: its first record may have any time."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction that holds back a partition from an offset on, by its first record there."""

    place: Place
    offset: int
    since_ms: int

    def text(self, now_ms: int) -> str:
        """Return what it hides, since when, and how to find out whose it is."""
        (topic, partition), age_s = self.place, (now_ms - self.since_ms) / 1000
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        return (
            f"an open transaction has hidden what {topic}/{partition} holds from offset {self.offset} on for "
            f"{age_s:.0f} s, since {since:%Y-%m-%d %H:%M:%S} UTC: nothing behind it is read before it "
            "ends or times out; its producer is shown by: kafka-transactions.sh --bootstrap-server HOST:PORT "
            f"describe-producers --topic {topic} --partition {partition}"
        )


@dataclass(slots=True)
class _Seen:
    offset: int
    seen_ms: int
    since_ms: int | None = None
    """The time of its first record, if that was read; never later than when it was seen first."""

    def is_old(self, now_ms: int) -> bool:
        return self.since_ms is not None and now_ms - self.since_ms >= 1000 * MIN_AGE_S

    def is_unmoved(self, now_ms: int) -> bool:
        return now_ms - self.seen_ms >= 1000 * UNMOVED_S


class OpenTransactions:
    """The open transactions of one cluster that were seen when it was looked at last."""

    def __init__(self) -> None:
        self._seen: dict[Place, _Seen] = {}

    def find(self, cluster: Cluster, ends: Offsets) -> list[OpenTransaction]:
        """Return those that hold back partitions now; ``ends`` are where the partitions ended before.

        Raises:
            BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        now_ms = self._look(cluster, ends)
        unmoved = {place: seen for place, seen in self._seen.items() if seen.is_unmoved(now_ms)}
        _read_times(cluster, unmoved)
        return [
            OpenTransaction(place, seen.offset, seen.since_ms)
            for place, seen in unmoved.items()
            if seen.since_ms is not None and seen.is_old(now_ms)
        ]

    def find_at_once(self, cluster: Cluster, ends: Offsets) -> list[OpenTransaction]:
        """Return what ``find`` would after several looks; wait for UNMOVED_S if one seems to be old."""
        now_ms = self._look(cluster, ends)
        _read_times(cluster, self._seen)
        if not any(seen.is_old(now_ms) for seen in self._seen.values()):
            return []
        world.sleep(UNMOVED_S)
        return self.find(cluster, {place: ends[place] for place in self._seen})

    def _look(self, cluster: Cluster, ends: Offsets) -> int:
        """Look where partitions are held back now; return the time."""
        stable, now_ms, before = cluster.stable_ends(ends), world.wall_ms(), self._seen
        self._seen = {}
        for place, end in ends.items():
            if (offset := stable.get(place, end)) < end:
                known = before.get(place)
                self._seen[place] = known if known and known.offset == offset else _Seen(offset, now_ms)
        return now_ms


def _read_times(cluster: Cluster, found: Mapping[Place, _Seen]) -> None:
    """Read since when transactions are open; one that cannot be read is open since it was seen."""
    unknown = {place: seen for place, seen in found.items() if seen.since_ms is None}
    if not unknown:
        return
    times = cluster.uncommitted_times({place: seen.offset for place, seen in unknown.items()})
    for place, seen in unknown.items():
        seen.since_ms = min(seen.seen_ms, times.get(place, seen.seen_ms))
