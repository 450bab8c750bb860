"""Reads whether a record above a spout's committed offset is done, from the newest state of its partition.

Invariant: the answer is known only if the state topic was read to its end.
"""

from acktree.console.view.cluster import CommittedOffset, OffsetRange, Place
from acktree.console.view.records.tree_reader import TreeReader
from acktree.core.errors import BrokerUnreachable, NotAuthorized
from acktree.core.topology.registry import Slot
from acktree.producers.ledger.slot_states import offsets_of
from acktree.wire.errors import MalformedRecord
from acktree.wire.state_records import SlotKey, decode_slot_state, seal_in


def is_set_by_hand(commit: CommittedOffset) -> bool:
    """Return whether an operator has moved a group's offset, and no driver has seen it since.

    What the state says is of before then.
    """
    return seal_in(commit.metadata, commit.next_offset) is None


def is_done_in(reader: TreeReader, topic: str, slot: Slot, offset: int) -> bool | None:
    """Return whether the state topic of a spout says that a record is done, None if that is not known.

    Why it is not known is a note of the reader.
    """
    unknown = "cannot tell whether the record is done:"
    try:
        place = next(iter(reader.cluster.partitions([topic])), None)
        if place is None:
            reader.mark_incomplete(f"{unknown} topic {topic} does not exist")
            return None
        unread = reader.unread
        newest = _newest(reader, place, SlotKey(slot.topic, slot.partition, slot.topic_id).encode())
        if reader.unread > unread:
            reader.mark_incomplete(f"{unknown} a part of {topic} could not be read")
            return None
        if reader.is_late:
            reader.mark_incomplete(f"{unknown} {topic} could not be read to its end in time")
            return None
        state = None if newest is None else decode_slot_state(newest)
        return state is not None and (offset < state.frontier or offset in offsets_of(state.done))
    except (NotAuthorized, BrokerUnreachable) as error:
        reader.mark_incomplete(f"{unknown} {error}")
    except MalformedRecord as error:
        reader.mark_incomplete(f"{unknown} a record of {topic} cannot be read: {error}")
    return None


def _newest(reader: TreeReader, place: Place, key: bytes) -> bytes | None:
    cluster, newest = reader.cluster, None
    span = OffsetRange(cluster.starts([place]).get(place, 0), cluster.ends([place]).get(place, 0))
    for batch in reader.scan({place: span}, whole=True):
        for record in batch:
            if record.key() == key:
                newest = record.value()
    return newest
