"""Finds the spout task that reads a slot, and its ledger. Pure.

Invariant: a slot is in one task at most.
"""

from collections.abc import Mapping

from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.task import TaskLedger


def find_task(tasks: Mapping[int, TaskLedger], slot: int) -> TaskLedger | None:
    """Return the spout task that reads a slot."""
    return next((task for task in tasks.values() if slot in task.slots), None)


def find_ledger(tasks: Mapping[int, TaskLedger], slot: int) -> PartitionLedger | None:
    """Return the ledger of a slot."""
    task = find_task(tasks, slot)
    return task.slots[slot] if task else None
