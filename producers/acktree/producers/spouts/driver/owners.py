"""Tracks who may hold the slots of a spout: the driver of all its tasks, or one process per task of a stage.

An owner is the driver of all tasks (None) or of one task (its number). Invariant: of two owners that may hold
the same slot, the one that starts later by the state topic has read the other's start, fences it, and reads
its commits; a late fence only makes the other start again. The state of a slot is that of its last owner.
"""

from collections.abc import Iterable, Mapping

from acktree.core.topology.registry import History
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.producers.spouts.state_topic import ZombieDriver
from acktree.wire.ids import is_run_between
from acktree.wire.state_records import SlotKey, SpoutState, StateStart, TaskPosition


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
        return self._task is None or self._task_of(key, self._tasks) == self._task

    def _task_of(self, key: SlotKey, tasks: tuple[int, ...]) -> int | None:
        """Return which of some tasks has a slot; None for a slot that no version knows."""
        place = self._places.get(key)
        return tasks[place % len(tasks)] if tasks and place is not None else None

    def positions(self, states: SpoutStates) -> list[TaskPosition]:
        """Return the newest position of each result topic."""
        newest = [state for task, state in states.tasks.items() if states.is_newer(task)]
        found = [each for state in (*states.drivers, *newest) for each in state.tasks]
        return [*{each.task: each for each in sorted(found, key=lambda each: each.next_offset)}.values()]

    def runs(self, states: SpoutStates) -> list[int]:
        """Return the runs that may have been used for the slots of this owner, none if it is the first."""
        task, newest = self._task, [each for each in states.tasks if states.is_newer(each)]
        if task in newest and not self._away(states):
            return [states.tasks[task].run]
        if task is not None and states.spout is None and task not in newest and not states.slots:
            return []
        return [state.run for state in (*map(states.tasks.__getitem__, newest), *states.drivers)]

    def moved(self, states: SpoutStates, run: int) -> set[SlotKey]:
        """Return the slots of which not all results count, with a run, and are read by this owner."""
        away = set(self._away(states))
        return away | {
            key
            for key, slot in states.slots.items()
            if (holder := self._holder(states, key)) and not is_run_between(holder.run, slot.floor, run)
        }

    def _away(self, states: SpoutStates) -> Iterable[SlotKey]:
        """Return the slots some of whose results may go to topics that this owner does not read."""
        if self._task is None:
            return []
        return [key for key in states.slots if not self._was_mine(states, key)]

    def _was_mine(self, states: SpoutStates, key: SlotKey) -> bool:
        holder = self._holder(states, key)
        if holder is None or holder is not states.spout:
            return holder is not None and holder is states.tasks.get(self._task or 0)
        versions = [version.spout_tasks.get(self._spout, ()) for version in self._history.versions.values()]
        return all(self._task_of(key, tasks) == self._task for tasks in versions if tasks)

    def _holder(self, states: SpoutStates, key: SlotKey) -> SpoutState | None:
        """Return the state of the owner that had a slot last."""
        holders = [
            state
            for task, state in states.tasks.items()
            if states.is_newer(task) and self._task_of(key, self._tasks_at(state.topology)) == task
        ]
        return max(holders, key=lambda state: state.term, default=states.spout)
