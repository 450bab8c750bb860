"""Encodes the ledger of a source partition as a record of the state topic, and restores it.

Invariant: a restored ledger applies every result as the stored one would have. A record in flight stays in
flight; a record that was about to be given up is due once more. Times are stored as durations, so the clock
of no machine matters. Pure.
"""

from collections.abc import Iterable
from math import ceil

from pyroaring import BitMap64

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.producers.ledger.partitions.blocks import BlockRange
from acktree.producers.ledger.partitions.done_set import serialized
from acktree.producers.ledger.partitions.emission_times import FirstEmission
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import Attempt, Replay
from acktree.producers.ledger.task import TaskLedger
from acktree.wire.errors import MalformedRecord
from acktree.wire.state_records import Attempts, EmittedBlocks, LiveCommand, SlotState

NEVER_EMITTED = (0, -1, 0, 1, False)
"""The attempt of what is planned for the first time and not written: due immediately."""
MAX_ATTEMPT_GROUPS = 2_000
"""Beyond this times of replays are kept less exactly."""


def state_of(ledger: PartitionLedger, now_s: float) -> SlotState:
    """Return what a restart must know of a slot, with times as they are at a moment."""
    held, command = ledger.first_emission(), ledger.command
    stored = command and LiveCommand(
        command.task, command.position, command.floor, command.next_offset, serialized(command.offsets)
    )
    return SlotState(
        ledger.frontier,
        ledger.next_offset,
        ledger.floor,
        serialized(ledger.done),
        1 + max(0, int(1000 * (now_s - held.time_s))) if held else 0,
        held is not None and held.is_first,
        ledger.limit.allowed,
        [EmittedBlocks(each.start, each.end, each.size, each.run) for each in ledger.blocks.ranges],
        _attempts(ledger, now_s),
        stored or None,
        ledger.run,
        ledger.result_task,
        epoch=ledger.epoch,
    )


def _attempts(ledger: PartitionLedger, now_s: float) -> list[Attempts]:
    """Return the attempts by what they have in common; none of them is due too early."""
    step_ms = 1000
    while True:
        groups: dict[tuple[int, int, int, int, bool], list[int]] = {}
        for offset, each in ledger.retries.attempts.items():
            counted, due_ms = each.attempts, int(offset in ledger.unwritten)
            if not each.in_flight:
                counted = counted if each.due_s is not None else ledger.policy.with_one_left(counted)
                due_s = max(now_s, each.delayed_to_s or now_s) if each.due_s is None else each.due_s
                due_ms = 1 + max(0, ceil(1000 * (due_s - now_s) / step_ms) * step_ms)
            is_delayed = bool(due_ms) and each.delayed_to_s is not None
            key = each.generation, each.emissions, counted, due_ms, is_delayed
            groups.setdefault(key, []).append(offset)
        if fresh := ledger.unwritten - BitMap64(ledger.retries.attempts):
            groups.setdefault(NEVER_EMITTED, []).extend(fresh)
        if len(groups) <= MAX_ATTEMPT_GROUPS or step_ms > 1 << 32:
            return [Attempts(*key, serialized(BitMap64(offsets))) for key, offsets in sorted(groups.items())]
        step_ms *= 8


def ledger_of(
    state: SlotState, policy: RetryPolicy, now_s: float, block: int = 1, age_s: float = 0.0
) -> PartitionLedger:
    """Return the ledger of a slot; what is in flight counts as emitted ``age_s`` ago.

    What is new is emitted in blocks of ``block``. Raises MalformedRecord: a bitmap is damaged.
    """
    emitted_s = now_s - age_s
    ledger = PartitionLedger(state.frontier, state.next_offset, state.floor, policy, block)
    ledger.run, ledger.task = state.run, state.task
    ledger.done = offsets_of(state.done)
    ledger.limit.allowed = state.limit
    ledger.epoch = state.epoch
    ledger.blocks.ranges = [BlockRange(*each) for each in state.blocks]
    ledger.resume(emitted_s)
    if (stored := state.command) is not None:
        command = LiveReplay(stored.task, stored.position, stored.run, offsets=offsets_of(stored.offsets))
        command.resume(stored.next_offset, emitted_s)
        ledger.command = command
    for group in state.attempts:
        due_s = now_s + (group.due_ms - 1) / 1000 if group.due_ms else None
        for offset in offsets_of(group.offsets):
            attempt = Attempt(group.generation, group.emissions, group.counted, due_s is None, emitted_s)
            attempt.delayed_to_s = due_s if group.is_delayed else None
            attempt.due_s = due_s
            ledger.retries.restore(offset, attempt)
    if state.emitted_ms:
        held = FirstEmission(state.frontier, now_s - (state.emitted_ms - 1) / 1000, state.is_first)
        ledger.restore_first_emission(held)
    return ledger


def offsets_of(raw: bytes) -> BitMap64:
    """Return a stored set of offsets. Raises MalformedRecord: it is damaged."""
    try:
        return BitMap64.deserialize(raw)
    except ValueError as error:
        raise MalformedRecord(f"a bitmap is damaged: {error}") from error


def emit_logged(tasks: Iterable[TaskLedger], logged: PlannedBatch, now_s: float) -> None:
    """Emit once more, to the ledgers, the batch that was planned on their state: it is in flight, or done."""
    ledgers = {slot: ledger for task in tasks for slot, ledger in task.slots.items()}
    for each in logged.ranges:
        if (ledger := ledgers.get(each.slot)) is not None:
            ledger.emit_logged(BlockRange(each.start, each.end, each.block, each.run), now_s)
    for again in logged.again:
        if (ledger := ledgers.get(again.slot)) is not None and ledger.command is not None:
            ledger.command.resume(max(again.end, ledger.command.next_offset), now_s)
    for group in logged.replays:
        if (ledger := ledgers.get(group.slot)) is not None:
            for offset in group.offsets:
                ledger.restore_replay(Replay(offset, group.generation, group.attempts), now_s)
