"""The figures that an acker reports: totals since it started, and its current state.

Invariant: totals never decrease, although the states they come from are dropped with their partitions.
"""

from collections import Counter
from collections.abc import Mapping
from heapq import nlargest
from itertools import chain

from acktree.acker.folding.partition import Partition
from acktree.acker.folding.work_clock import Limit
from acktree.core.reports.stats import (
    BEHIND,
    LIMITED_AT,
    LIMITED_BY,
    OLDEST_ROOTS,
    ROOT_AGE,
    SINCE_COMMIT,
    Value,
)

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
        """Return the ages of the oldest pending roots, OLDEST_ROOTS at most, by ``root_age_s.ROOT``.

        For the loop's own thread only.
        """
        found = chain.from_iterable(each.oldest_pending(OLDEST_ROOTS) for each in partitions.values())
        oldest = nlargest(OLDEST_ROOTS, found)
        ages: dict[str, Value] = {f"{ROOT_AGE}{root:016x}": age_s for age_s, root in oldest}
        return {"oldest_root_age_s": oldest[0][0] if oldest else 0.0, **ages}


def limit_figures(limits: Mapping[str, Limit]) -> dict[str, Value]:
    """Return what holds the clock of each spout, and how far behind the last of them is."""
    figures: dict[str, Value] = {"behind_s": max((each.behind_s for each in limits.values()), default=0.0)}
    for spout, limit in limits.items():
        figures[f"{LIMITED_BY}{spout}"] = limit.bolt
        figures[f"{LIMITED_AT}{spout}"] = limit.partition
        figures[f"{BEHIND}{spout}"] = round(limit.behind_s, 3)
        figures[f"{SINCE_COMMIT}{spout}"] = round(limit.since_commit_s, 3)
    return figures


def _totals_of(partition: Partition) -> dict[str, int]:
    return {name: getattr(partition.table, name) for name in TABLE_TOTALS}
