"""Tracks who may hold the slots of a spout: the driver of all its tasks, or one process per task of a stage.

An owner is the driver of all tasks (None) or of one task (its number). Invariant: of two owners that may hold
the same slot, the one that starts later by the state topic has read the other's start, fences it, and reads
its commits; a late fence only makes the other start again. The state of a slot names the owner that wrote it.
"""

from collections.abc import Mapping

from acktree.core.topology.registry import History
from acktree.producers.spouts.driver.spout_states import Readers, SpoutStates
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.wire.state_records import SEVERAL_TASKS, SlotKey, SlotState, StateStart


class TakenOver(ZombieDriver):
    """A driver of all tasks has taken over the spout from the processes of its single tasks."""


class Owners:
    """The owners as one of them, ``task``, sees them when it starts."""

    def __init__(self, history: History, spout: str, task: int | None) -> None:
        self._history, self._spout, self._task = history, spout, task
        latest = history.latest
        self._group, self._tasks = latest.group_of(spout), latest.spout_tasks.get(spout, ())
        self._places: Mapping[SlotKey, int] = {
            SlotKey(slot.topic, slot.partition, slot.topic_id): place
            for place, slot in enumerate(latest.slots_of(spout))
        }
        """Partitions are dealt to tasks in this order, in every version."""

    def id_of(self, owner: int | None) -> str:
        """Return the transactional id of an owner."""
        return self._group if owner is None else f"{self._group}.{owner}"

    def to_end(self, states: SpoutStates, driver_before: StateStart | None) -> list[str]:
        """Return the ids of the others that may hold a slot of this owner: of all that have ever started.

        Raises:
            TakenOver: a driver of all tasks has started since this process of single tasks began.
        """
        if self._task is not None and states.starts.get(None) != driver_before:
            raise TakenOver(
                f"a Spark driver has taken over all tasks of spout {self._spout} since this process started: "
                "only one of them may run the spout, so this process stops"
            )
        return [
            self.id_of(owner)
            for owner, start in states.starts.items()
            if self._is_rival(owner, start.topology)
        ]

    def _is_rival(self, owner: int | None, version: int) -> bool:
        if owner == self._task:
            return False
        return self._task is None or owner is None or self._tasks_at(version) != self._tasks

    def _tasks_at(self, version: int) -> tuple[int, ...]:
        published = self._history.versions.get(version)
        return published.spout_tasks.get(self._spout, ()) if published else ()

    def has(self, key: SlotKey) -> bool:
        """Return whether this owner has a slot."""
        if self._task is None:
            return True
        place = self._places.get(key)
        return place is not None and self._tasks[place % len(self._tasks)] == self._task

    def keeps(self, slot: SlotState, readers: Readers) -> bool:
        """Return whether what a slot has in flight stays so: this owner reads all results of it.

        The last reader of their topic must be the owner that wrote the slot: any other has passed them.
        """
        if self._task is not None and slot.task != self._task:
            return False
        topics = readers if slot.task == SEVERAL_TASKS else [slot.task]
        return all(task in readers and readers[task].term == slot.term for task in topics)
