"""Applies offsets of a spout's group that others have committed: an operator's tool, or a stray consumer.

Invariant: nobody can tell one from the other, so an offset that skips records which are not done is applied
only with the option ``allowSkip``, and otherwise overwritten. An offset set back costs replays and is always
applied. Each is logged.
"""

import logging
from collections.abc import Mapping

from acktree.producers.ledger.slots import find_task
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.producers.spouts.driver.group_offsets import CommittedOffset
from acktree.producers.spouts.driver.spout_commits import SpoutCommits
from acktree.producers.spouts.driver.spout_options import SpoutOptions

log = logging.getLogger("acktree.spark")


class OffsetResets:
    """Applies others' commits for a spout's partitions, at a start and while it runs."""

    def __init__(self, options: SpoutOptions, commits: SpoutCommits, tasks: Mapping[int, TaskLedger]) -> None:
        self._options, self._commits, self._tasks = options, commits, tasks

    def look(self, sources: tuple[SourceSlot, ...]) -> None:
        """Apply what was committed since our last commit.

        Raises:
            GroupInUse: by a member of the group; nothing is applied.
            ZombieDriver: by a newer driver.
        """
        moved = self._commits.moved(sources)
        if any(entry.seal is None for entry in moved.values()):
            self._commits.probe()
        self.apply(moved)

    def apply(self, committed: Mapping[int, CommittedOffset]) -> None:
        """Apply the offsets, by slot, that are not ours."""
        for slot, entry in committed.items():
            task = find_task(self._tasks, slot)
            if entry.seal is not None or task is None:
                continue
            ledger = task.slots[slot]
            if not self.is_obeyed(task.sources[slot], entry.next_offset, ledger.frontier):
                continue
            if entry.next_offset < ledger.frontier:
                self._commits.drop_unlogged()
            ledger.rewind(entry.next_offset)
            task.counters["rewinds"] += 1

    def is_obeyed(self, source: SourceSlot, offset: int, frontier: int) -> bool:
        """Return whether an offset is obeyed where all below ``frontier`` is done, and log it."""
        is_obeyed = offset <= frontier or self._options.allow_skip
        text = "group %s: the offset of %s/%d was set from %d to %d"
        if not is_obeyed:
            text += ": ignored, as it would skip records that are not done; to allow it, set allowSkip=true"
        place = self._options.group, source.topic, source.partition, frontier, offset
        log.warning(text, *place, extra={"action": "offset_reset"})
        return is_obeyed
