"""Maps the root of an anchor to its source record.

Invariant: the result follows from the topology version in which the root was born, so it never changes. Pure.
"""

from acktree.core.topology.registry import History, Slot
from acktree.producers.tuples import SourceOrigin
from acktree.wire.header import Anchor
from acktree.wire.ids import origin_of


class Origins:
    """Finds source records by the slots of all versions."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._slots: dict[int, dict[int, Slot]] = {}
        self._last: tuple[int, int] = (0, 0)
        self._last_origin: SourceOrigin | None = None

    def find(self, anchor: Anchor) -> SourceOrigin | None:
        """Return the source record of an anchor's root; None if its slot was never assigned."""
        if (root := anchor[:2]) != self._last:  # tuples of one root often follow each other
            self._last_origin = self._find(anchor)
            self._last = root
        return self._last_origin

    def _find(self, anchor: Anchor) -> SourceOrigin | None:
        published, slots = self._history.at(anchor.version), self._slots.get(anchor.version)
        if slots is None:
            slots = {slot.slot: slot for slot in published.slots}
            self._slots[anchor.version] = slots
        origin = origin_of(anchor.root)
        slot = slots.get(origin.slot)
        if slot is None:
            return None
        table = published.spouts.get(slot.spout)
        place = (slot.spout, slot.topic, slot.partition, origin.offset, origin.attempt)
        return SourceOrigin(*place, table.block if table else 1, slot.topic_id)
