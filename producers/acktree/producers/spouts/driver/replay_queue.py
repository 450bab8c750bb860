"""Applies the replay commands that a driver has read, one after another, one live command per slot.

Invariant: a command holds the result position until it is applied, and it is applied once: the commit that
holds its effect also lists it.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.spouts.driver.spout_commits import SpoutCommits
from acktree.wire.control_records import ReplayCommand
from acktree.wire.ids import next_run

log = logging.getLogger("acktree.spark")

MAX_KNOWN_COMMANDS = 100
"""The largest number in a state: applied, and at or above the committed result position."""


class QueuedReplay(NamedTuple):
    """A command and its position: task and offset of the result topic."""

    task: int
    position: int
    command: ReplayCommand


class ReplayQueue:
    """The commands, in the order in which they were read."""

    def __init__(self, commits: SpoutCommits, hand_on: Callable[[ReplayCommand], bool]) -> None:
        """``hand_on`` sends a command to another task that has its slot; False: there is none."""
        self._commits, self._hand_on = commits, hand_on
        self._waiting: list[QueuedReplay] = []

    def add(self, order: QueuedReplay) -> None:
        """Queue a command that was read; one that was applied before is ignored."""
        position = self._commits.positions[order.task]
        if order.position not in position.applied | position.waiting:
            position.waiting.add(order.position)
            self._waiting.append(order)

    def apply(self, ledger_of: Callable[[int], PartitionLedger | None]) -> int:
        """Apply the commands that can be applied, durably, and return how many.

        Each starts a new run of its slot, which is the floor of what it reopens.
        """
        if not self._waiting:
            return 0
        left = list[QueuedReplay]()
        for order in self._waiting:
            position = self._commits.positions[order.task]
            if len(position.applied) >= MAX_KNOWN_COMMANDS or not self._applies(order, ledger_of):
                left.append(order)
                continue
            position.applied.add(order.position)
            position.waiting.discard(order.position)
        applied = len(self._waiting) - len(left)
        if applied:
            self._waiting = left
            self._commits.commit()
        return applied

    def _applies(self, order: QueuedReplay, ledger_of: Callable[[int], PartitionLedger | None]) -> bool:
        """Apply a command; return False where it has to wait for the one before it."""
        ledger = ledger_of(order.command.slot)
        if ledger is None:
            if self._hand_on(order.command):
                return True
            log.warning("ignoring a replay command for slot %d: no task reads it", order.command.slot)
            return True
        ledger.end_command()
        run = next_run(ledger.run)
        live = LiveReplay.of(order.task, order.position, run, order.command.spans, ledger.next_offset)
        if not live.offsets:
            return True
        if ledger.can_apply:
            ledger.apply(live)
            return True
        return False
