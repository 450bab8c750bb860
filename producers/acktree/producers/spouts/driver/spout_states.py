"""What the state topic of a spout in Spark holds: its driver's state, and that of each source partition.

Invariant: a record that cannot be read is an error, never skipped.
"""

from dataclasses import dataclass, field, replace

from acktree.producers.ledger.slot_states import offsets_of
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    SlotKey,
    SlotState,
    SpoutState,
    decode_slot_key,
    decode_slot_state,
    decode_spout_state,
    decode_state_start,
    is_of_task,
)


@dataclass(slots=True)
class SpoutStates:
    """All that a state topic holds; ``spout`` is None before the first commit of a driver."""

    spout: SpoutState | None = None
    slots: dict[SlotKey, SlotState] = field(default_factory=dict)
    token: int | None = None
    """That of the start that was read last."""
    now_ms: int = 0
    """When that was appended."""
    times_ms: dict[SlotKey, int] = field(default_factory=dict)
    """When each of the slots was appended."""

    def add(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        """Add a record in the order of the topic, unless it is of a Python task. Raises MalformedRecord."""
        if key == START_KEY:
            self.token, self.now_ms = decode_state_start(value or b"").token, time_ms
        elif key == SPOUT_KEY:
            self.spout = decode_spout_state(value or b"")
        elif not is_of_task(key):
            self._add(decode_slot_key(key), value, time_ms)

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
