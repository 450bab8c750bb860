"""Replay commands that a driver has read and applies one after another, one live command per slot.

Invariant: a command holds the result position until it is applied, and it is applied once: the state lists it
from then on. It waits while a slot's bitmap would no longer fit into a record of the state topic.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from acktree.spark.driver.spouts.one_record import read_record
from acktree.spark.driver.spouts.spout_commits import SpoutCommits
from acktree.spark.ledger.partitions.done_set import fits
from acktree.spark.ledger.partitions.live_replay import LiveReplay
from acktree.spark.ledger.partitions.partition import PartitionLedger
from acktree.wire.codec import decode_replay_command
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
    """Commands in the order in which they were read."""

    def __init__(self, commits: SpoutCommits) -> None:
        self._commits = commits
        self._waiting: list[QueuedReplay] = []

    def live(self, consumer: Consumer, bootstrap: str) -> dict[int, LiveReplay]:
        """Return by slot the command that was applied and still matters, one at most.

        The consumer is left without an assignment. Raises BrokerUnreachable.
        """
        found: dict[int, LiveReplay] = {}
        for task, at in self._commits.positions.items():
            for position, (run, end) in at.replays.items():
                place = TopicPartition(self._commits.result_topic(task), 0, position)
                message = read_record(consumer, place, bootstrap) if run else None
                if message is not None:
                    command = decode_replay_command(message.value() or b"")
                    assert command.slot not in found, "one command a slot at a time"
                    found[command.slot] = LiveReplay.of(task, position, run, command.spans, end)
        consumer.unassign()
        return found

    def add(self, order: QueuedReplay) -> None:
        """Queue a command that was read; one that was applied before is ignored."""
        if order.position not in self._commits.positions[order.task].replays:
            self._commits.cuts[order.task].hold(order.position)
            self._waiting.append(order)

    def apply(self, ledger_of: Callable[[int], PartitionLedger | None]) -> int:
        """Apply the commands that can be applied, durably, and return how many.

        Together they start a new run, which is the floor of what they reopen.
        """
        if not self._waiting:
            return 0
        self._commits.end_commands()
        run = next_run(self._commits.run)
        applied: dict[QueuedReplay, int] = {}
        for order in self._waiting:
            ledger = ledger_of(order.command.slot)
            if len(self._commits.positions[order.task].replays) + len(applied) >= MAX_KNOWN_COMMANDS:
                continue
            if ledger is None:
                log.warning("a replay command for slot %d, which is not read, is void", order.command.slot)
                applied[order] = 0
                continue
            end = ledger.next_offset
            place = (order.task, order.position, run)
            live = LiveReplay.of(*place, order.command.spans, end)
            if not live.offsets:
                applied[order] = 0
            elif ledger.can_apply and fits(live.reopen(ledger.frontier, ledger.done)[1]):
                ledger.apply(live)
                applied[order] = end
        if applied:
            self._make_durable(applied, run)
        return len(applied)

    def _make_durable(self, applied: dict[QueuedReplay, int], run: int) -> None:
        """Commit the reopened offsets and the commands together."""
        self._commits.use_run(run)
        for order, end in applied.items():
            self._commits.positions[order.task].replays[order.position] = (run, end) if end else (0, 0)
            self._commits.cuts[order.task].release(order.position)
        self._commits.store()
        self._waiting = [order for order in self._waiting if order not in applied]
