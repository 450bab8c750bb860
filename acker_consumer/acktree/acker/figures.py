"""The figures that an acker reports: totals since it started, and its current state.

Invariant: totals never decrease, although the states they come from are dropped with their partitions.
"""

from collections import Counter
from collections.abc import Mapping

from acktree.acker.partition import Partition
from acktree.schemas.stats import Value

TABLE_TOTALS = ("folded", "duplicated_inits", "late", "dropped_orphans", "refused_orphans", "renewed_orphans")


class Figures:
    """Adds up the counters of partitions; ``totals`` has those counted here and those of dropped states."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter(dict.fromkeys(("acked", "failed", "timed_out", *TABLE_TOTALS), 0))

    def keep_totals_of(self, partition: Partition) -> None:
        """Keep the totals of a partition whose state is about to be dropped."""
        self.totals.update(_totals_of(partition))

    def values(self, partitions: Mapping[int, Partition], ends: Mapping[int, int]) -> dict[str, Value]:
        """Return all figures; ``ends`` is the sum of both topics' end offsets, by partition."""
        totals = self.totals.copy()
        for partition in partitions.values():
            totals.update(_totals_of(partition))
        states = partitions.values()
        positions = {number: sum(partition.positions) for number, partition in partitions.items()}
        return {
            **totals,
            "partitions": len(partitions),
            "pending": sum(partition.table.pending for partition in states),
            "orphans": sum(partition.table.orphans for partition in states),
            "oldest_age_s": max((partition.oldest_age_s for partition in states), default=0.0),
            "lag": sum(max(0, ends.get(number, 0) - position) for number, position in positions.items()),
            "cut_lag": sum(positions[number] - sum(partitions[number].cut) for number in partitions),
            "table_bytes": sum(partition.table.nbytes for partition in states),
        }

    def oldest(self, partitions: Mapping[int, Partition]) -> dict[str, Value]:
        """Return the oldest pending root, in hexadecimal, and its age; for the loop's own thread only."""
        states = (partition.oldest_pending() for partition in partitions.values())
        age_s, root = max(states, default=(0.0, 0))
        return {"oldest_root": f"{root:016x}" if root else "", "oldest_root_age_s": age_s}


def _totals_of(partition: Partition) -> dict[str, int]:
    return {name: getattr(partition.table, name) for name in TABLE_TOTALS}
