"""What an acker tells of itself: totals since it started, and how things stand.

Invariant: totals never shrink, although the states they come from go with their partitions.
"""

from collections import Counter
from collections.abc import Mapping

from acktree.acker.partition import Partition
from acktree.schemas.stats import Value

TABLE_TOTALS = ("folded", "duplicated_inits", "late", "dropped_orphans", "refused_orphans", "renewed_orphans")


class Figures:
    """Adds up what partitions count; ``totals`` holds what is counted here or came from states now gone."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter(dict.fromkeys(("acked", "failed", "timed_out", *TABLE_TOTALS), 0))

    def forget(self, partition: Partition) -> None:
        """Keep the totals of a partition whose state is about to go."""
        self.totals.update(_totals_of(partition))

    def values(self, partitions: Mapping[int, Partition], ends: Mapping[int, int]) -> dict[str, Value]:
        """Return all figures; ``ends`` are the records at the end of both topics, by partition."""
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
