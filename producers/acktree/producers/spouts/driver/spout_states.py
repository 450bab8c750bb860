"""Reads the state topic of a spout: its owners' states, their starts, and each source partition.

An owner is the driver of all tasks (None here) or the process of one task of a stage (the task's number).
Invariant: a record that cannot be read is an error, never skipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from acktree.producers.ledger.slot_states import offsets_of
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    SlotKey,
    SlotState,
    SpoutState,
    StateStart,
    TaskPosition,
    decode_slot_key,
    decode_slot_state,
    decode_spout_state,
    decode_state_start,
    decode_task_record,
    task_in,
    task_start_key,
)


class LastReader(NamedTuple):
    """Which owner was the last to read a result topic, by its term, and how far."""

    term: int
    position: TaskPosition


Readers = Mapping[int, LastReader]
"""By task."""


@dataclass(slots=True)
class SpoutStates:
    """The content of a state topic, for the start of an owner."""

    task: int | None = None
    """Whose start reads this."""
    spout: SpoutState | None = None
    """What the last driver of all tasks has committed, None if there was none."""
    tasks: dict[int, SpoutState] = field(default_factory=dict)
    """What owners of single tasks have committed."""
    starts: dict[int | None, StateStart] = field(default_factory=dict)
    """The newest start of each owner."""
    slots: dict[SlotKey, SlotState] = field(default_factory=dict)
    now_ms: int = 0
    """When the newest start of ``task`` was appended."""
    times_ms: dict[SlotKey, int] = field(default_factory=dict)
    """When each of the slots was appended."""

    def add(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        """Add the newest record of a key. Raises MalformedRecord."""
        owner = task_in(key)
        if key == START_KEY or (owner is not None and key == task_start_key(owner)):
            self.starts[owner] = decode_state_start(value or b"")
            if owner == self.task:
                self.now_ms = time_ms
        elif key == SPOUT_KEY:
            self.spout = decode_spout_state(value or b"")
        elif owner is None:
            self._add(decode_slot_key(key), value, time_ms)
        elif isinstance(state := decode_task_record(value or b""), SpoutState):
            self.tasks[owner] = state  # the other kind is of a Spout class that had this name

    def _add(self, slot: SlotKey, value: bytes | None, time_ms: int) -> None:
        if value is None:
            self.slots.pop(slot, None)
            return
        self.slots[slot], self.times_ms[slot] = decode_slot_state(value), time_ms
        for offsets in self.slots[slot].sets:
            offsets_of(offsets)

    def at_start(self) -> "SpoutStates":
        """Return the states as they are at the time of the start that was read last."""
        slots = {
            key: state.aged(max(0, self.now_ms - self.times_ms[key])) for key, state in self.slots.items()
        }
        return replace(self, slots=slots)

    @property
    def term(self) -> int:
        """The highest term, 0 if nothing was ever committed."""
        return max((state.term for state in (*self.tasks.values(), *self.drivers)), default=0)

    @property
    def drivers(self) -> list[SpoutState]:
        """The state of the last driver of all tasks, if there was one."""
        return [] if self.spout is None else [self.spout]

    def is_newer(self, task: int) -> bool:
        """Return whether a task has a state, and no driver of all tasks has begun after it."""
        return task in self.tasks and (self.spout is None or self.tasks[task].term > self.spout.term)

    @property
    def readers(self) -> Readers:
        """The owner that was the last to read each task's result topic."""
        by_term = sorted((*self.drivers, *self.tasks.values()), key=lambda state: state.term)
        return {each.task: LastReader(state.term, each) for state in by_term for each in state.tasks}
