"""Plans the emissions of a spout with an open breaker: a failed record or a new block now and then. Pure.

Invariant: a probe is an emission like any other; it is known by its emission, and its ack closes the breaker.
Slots take turns, and so do both kinds, so that poison in one slot does not keep the breaker open.
"""

from collections.abc import Mapping, Sequence

from acktree.core.reports.breaker import Breaker
from acktree.producers.ledger.held import Emission
from acktree.producers.ledger.logged_batch import Range, Replays
from acktree.producers.ledger.partitions.room import room_of
from acktree.producers.ledger.task import TaskLedger
from acktree.wire.ids import generation_of


def plan_probe(
    tasks: Sequence[TaskLedger],
    breaker: Breaker,
    ends: Mapping[int, int],
    room: int,
    largest_block: int | None,
    now_s: float,
) -> tuple[list[Range], list[Replays]]:
    """Return what to emit, each slot with a range; ``room`` is how many records a task may have pending.

    With no room, as in a drain, it is a record that failed or nothing.
    """
    places = [(task, slot) for task in tasks for slot in task.slots]
    first = breaker.probes_sent // 2 % max(1, len(places))
    places = places[first:] + places[:first]
    replays: list[Replays] = []
    opened: dict[int, int] = {}
    is_new_first = breaker.probes_sent % 2 == 1
    if breaker.is_probe_due(now_s):
        if not is_new_first:
            replays = _failed(places, now_s)
        if not replays:
            opened = _new(places, ends, room, largest_block)
        if not replays and not opened:
            replays = _failed(places, now_s)
    ranges: list[Range] = []
    for task in tasks:
        mine = {slot: end for slot, end in opened.items() if slot in task.slots}
        limit = sum(end - task.slots[slot].next_offset for slot, end in mine.items()) * len(task.slots)
        ranges += task.emit(mine, limit, now_s, largest_block)
    emitted = probes_of(ranges, replays)
    if emitted:
        breaker.probed(emitted, now_s)
    return ranges, replays


def _failed(places: Sequence[tuple[TaskLedger, int]], now_s: float) -> list[Replays]:
    """Emit what failed of the first slot in which some of it is due."""
    for task, slot in places:
        if replays := task.replay_due(now_s, 1, [slot]):
            return replays
    return []


def _new(
    places: Sequence[tuple[TaskLedger, int]], ends: Mapping[int, int], room: int, largest_block: int | None
) -> dict[int, int]:
    """Return a slot and the end of its next block; nothing where no slot may emit one."""
    for task, slot in places:
        ledger = task.slots[slot]
        start, size = ledger.next_offset, ledger.block_size(largest_block)
        end = min(ends.get(slot, start), (start // size + 1) * size)
        if start < end <= start + min(room - task.pending, room_of(ledger)):
            return {slot: end}
    return {}


def probes_of(ranges: Sequence[Range], replays: Sequence[Replays]) -> list[Emission]:
    """Return the emissions of a probe."""
    fresh = [
        Emission(each.slot, generation_of(each.run, 0), each.start)
        for each in ranges
        if each.start < each.end
    ]
    again = [Emission(each.slot, each.generation, offset) for each in replays for offset in each.offsets]
    return fresh + again
