"""What a spout with an open breaker emits: a block now and then, in turn one that failed and a new one. Pure.

Invariant: a probe is an emission like any other; it is known by its emission, and its ack closes the breaker.
"""

from collections.abc import Mapping, Sequence

from acktree.schemas.breaker import Breaker
from acktree.schemas.ids import generation_of
from acktree.spark.ledger.result_cut import BlockEmission
from acktree.spark.ledger.task import TaskLedger
from acktree.spark.runtime.logged_batch import Range, Replays

FAILED_BLOCKS = 2
"""So many blocks that failed are a probe: both halves of one that was rejected are emitted at once."""


def plan_probe(
    tasks: Sequence[TaskLedger],
    breaker: Breaker,
    ends: Mapping[int, int],
    room: int,
    largest_block: int | None,
    now_s: float,
) -> tuple[list[Range], list[Replays]]:
    """Return what to emit, each slot with a range; ``room`` is how many records a task may have pending.

    With no room, as in a drain, it is a block that failed or nothing.
    """
    replays: list[Replays] = []
    opened: dict[int, int] = {}
    is_new_first = breaker.probes_sent % 2 == 1
    if breaker.is_probe_due(now_s):
        if not is_new_first:
            replays = _failed(tasks, now_s)
        if not replays:
            opened = _new(tasks, ends, room, largest_block, breaker.probes_sent)
        if not replays and not opened:
            replays = _failed(tasks, now_s)
    ranges: list[Range] = []
    for task in tasks:
        mine = {slot: end for slot, end in opened.items() if slot in task.slots}
        limit = sum(end - task.slots[slot].next_offset for slot, end in mine.items()) * len(task.slots)
        ranges += task.emit(mine, limit, now_s, largest_block)
    emitted = probes_of(ranges, replays)
    if emitted:
        breaker.probed(emitted, now_s)
    return ranges, replays


def _failed(tasks: Sequence[TaskLedger], now_s: float) -> list[Replays]:
    for task in tasks:
        if replays := task.replay_due(now_s, FAILED_BLOCKS):
            return replays
    return []


def _new(
    tasks: Sequence[TaskLedger], ends: Mapping[int, int], room: int, largest_block: int | None, turn: int
) -> dict[int, int]:
    """Return a slot and the end of its next block; nothing where no slot has one, or there is no room."""
    places = [(task, slot) for task in tasks for slot in task.slots]
    turn %= max(1, len(places))
    for task, slot in places[turn:] + places[:turn]:
        ledger = task.slots[slot]
        start, size = ledger.next_offset, min(ledger.block, largest_block or ledger.block)
        end = min(ends.get(slot, start), (start // size + 1) * size)
        if start < end and task.pending + end - start <= room:
            return {slot: end}
    return {}


def probes_of(ranges: Sequence[Range], replays: Sequence[Replays]) -> list[BlockEmission]:
    """Return the emissions of a probe."""
    fresh = [
        BlockEmission(each.slot, generation_of(each.run, 0), each.start)
        for each in ranges
        if each.start < each.end
    ]
    again = [BlockEmission(each.slot, each.generation, first) for each in replays for first in each.offsets]
    return fresh + again
