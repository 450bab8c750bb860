"""A ledger that is stored and restored in the middle of a script goes on as its twin, which never was.

A restart begins a new run, counts what is in flight as emitted then, and puts back what was about to be given
up; all of that is done to the twin, too. Times are whole seconds, so that none is made coarser.
"""

from random import Random

import numpy as np

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.producers.ledger.partitions.live_replay import LiveReplay
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import Attempt
from acktree.producers.ledger.slot_states import ledger_of, state_of
from acktree.wire.control_records import Span
from acktree.wire.ids import generation_of, next_run
from acktree.wire.state_records import decode_slot_state, encode_slot_state
from cores.script import Core, Did, holds, same

POLICY = RetryPolicy(initial_s=1, max_s=4, max_attempts=3)
EVERYTHING = 99


class TwinScript:
    """Two ledgers that are given the same; ``roots`` are the emissions (generation, first offset) so far."""

    def __init__(self, draw: Random, did: Did) -> None:
        self.draw, self.did = draw, did
        self.run, self.now_s, self.commands = draw.choice((1, 100, 253)), 0, 0
        self.size = draw.choice((1, 1, 3, 5))
        start = draw.choice((0, 0, 65_530))
        self.twins = [PartitionLedger(start, start, self.run, POLICY, self.size) for _ in range(2)]
        self.roots: list[tuple[int, int]] = []
        self.emit()

    def step(self) -> None:
        self.now_s += self.draw.choice((0, 0, 1, 5))
        steps = (self.emit, self.ack, self.ack, self.fail, self.fail, self.replay, self.store)
        rare = (self.finish, self.command, self.rewind, self.bound)
        self.draw.choice(rare if self.draw.random() < 0.2 else steps)()
        self.compare()

    def emit(self) -> None:
        end, size = (
            self.twins[0].next_offset + self.draw.choice((1, 2, 4, 9)),
            self.draw.choice((1, self.size)),
        )
        self.did("emit", end, self.now_s, self.run, size)
        ranges, others = (ledger.emit(end, 9, self.now_s, size) for ledger in self.twins)
        same("ranges", others, ranges)
        for start, stop in ranges:
            firsts = {max(start, offset // size * size) for offset in range(start, stop)}
            self.roots += [(generation_of(self.run, 0), first) for first in sorted(firsts)]

    def ack(self) -> None:
        roots = [self.draw.choice(self.roots) for _ in range(self.draw.choice((1, 1, 2, 4)))]
        self.did("acked", roots)
        columns = np.array(roots, np.int64).T
        newly, others = (ledger.acked(*columns) for ledger in self.twins)
        same("newly done", others, newly)

    def fail(self) -> None:
        (generation, first), counts = self.draw.choice(self.roots[-6:]), self.draw.random() < 0.8
        after_s = self.draw.choice((None, None, 3))
        self.did("failed", generation, first, self.now_s, counts, after_s)
        outcomes, others = (
            ledger.failed(generation, first, self.now_s, counts=counts, after_s=after_s)
            for ledger in self.twins
        )
        same("outcomes", others, outcomes)

    def begin_run(self) -> None:
        self.run = next_run(self.run)
        for ledger in self.twins:
            ledger.begin_run()

    def replay(self) -> None:
        if any(ledger.is_run_used_up for ledger in self.twins):
            self.begin_run()
        self.did("emit_due", self.now_s, self.run)
        replays, others = (
            ledger.retries.emit_due(self.now_s, self.run, 25 * EVERYTHING) for ledger in self.twins
        )
        same("replays", sorted(others), sorted(replays))
        self.roots += [(replay.generation, replay.offset) for replay in replays]
        again, others_again = (ledger.emit_again(4, 9, self.now_s) for ledger in self.twins)
        same("emitted again", others_again, again)
        self.roots += [(generation_of(self.run, 0), offset) for part in again for offset in range(*part)]

    def finish(self) -> None:
        start = self.twins[0].frontier + self.draw.randrange(4)
        self.did("finish", start)
        newly, others = (ledger.finish(start, start + 2) for ledger in self.twins)
        same("newly done", others, newly)

    def command(self) -> None:
        for ledger in self.twins:
            ledger.end_command()
        if self.twins[0].can_apply and self.twins[0].next_offset > (start := self.draw.randrange(6)):
            self.run, self.commands = next_run(self.run), self.commands + 1
            self.did("command", start, self.run)
            for ledger in self.twins:
                spans = [Span(start, start + 3)]
                ledger.apply(LiveReplay.of(2, self.commands, self.run, spans, ledger.next_offset))

    def rewind(self) -> None:
        frontier = self.twins[0].frontier
        offset = max(0, frontier - self.draw.randrange(3))
        self.run = next_run(self.run) if offset < frontier else self.run
        self.did("rewind", offset, self.run)
        for ledger in self.twins:
            ledger.rewind(offset)

    def bound(self) -> None:
        self.did("bound")
        for ledger in self.twins:
            ledger.limit.allowed = self.commands + 7

    def store(self) -> None:
        """Store the second ledger, in the bytes of the topic, and restore it."""
        self.did("store", self.now_s)
        stored = encode_slot_state(state_of(self.twins[1], self.now_s))
        self._soften()
        away_s = self.draw.choice((0, 1, 5))
        self.now_s += away_s
        state = decode_slot_state(stored).aged(1000 * away_s)
        self.twins[1] = ledger_of(state, POLICY, self.now_s, self.size)
        self.begin_run()
        for offset, attempt in self.twins[0].retries.attempts.items():
            if not attempt.in_flight and attempt.due_s is None:
                self.twins[0].retries.put_back(attempt.generation, offset, self.now_s, POLICY)
        again, before = (state_of(ledger, self.now_s)[:4] for ledger in self.twins)
        same("stored again", again, before)

    def _soften(self) -> None:
        """Stored at a moment that no second begins with, nothing is due earlier, or later by a second."""
        moment_s = self.now_s + self.draw.randrange(1, 1000) / 1000
        again = ledger_of(state_of(self.twins[1], moment_s), POLICY, moment_s)
        for offset, attempt in self.twins[1].retries.attempts.items():
            due_s = max(moment_s, self.now_s if attempt.due_s is None else attempt.due_s)
            restored = again.retries.attempts[offset].due_s
            holds("in flight as before", (restored is None) == attempt.in_flight)
            delayed_s = max(0.0, (attempt.delayed_to_s or 0) - due_s) if attempt.due_s is None else 0.0
            holds("due in time", restored is None or -1e-6 <= restored - due_s - delayed_s <= 1)

    def compare(self) -> None:
        plain, stored = self.twins
        same("state", _facts(stored), _facts(plain))
        for mine, other in [(plain.first_emission(), stored.first_emission())]:
            holds("no older than it is", mine is None or other is None or other.time_s >= mine.time_s)
        for offset, attempt in plain.retries.attempts.items():
            other = stored.retries.attempts[offset]
            same(f"attempt of {offset}", _known(other, self.now_s), _known(attempt, self.now_s))
        same("attempts", [*sorted(stored.retries.attempts)], [*sorted(plain.retries.attempts)])
        if self.draw.random() < 0.2:
            self.did("discard blocks, end the command")
            for ledger in self.twins:
                ledger.discard_blocks()
                ledger.end_command()


def _known(attempt: Attempt, now_s: float) -> tuple[object, ...]:
    """Return what is stored of an attempt; when it was due that is overdue does not matter."""
    due_s = None if attempt.in_flight or attempt.due_s is None else max(now_s, attempt.due_s)
    return attempt.generation, attempt.emissions, attempt.attempts, attempt.in_flight, due_s


def _facts(ledger: PartitionLedger) -> tuple[object, ...]:
    command = ledger.command
    held = ledger.first_emission()
    return (
        (ledger.frontier, ledger.next_offset, ledger.floor, ledger.pending, ledger.limit.allowed),
        (ledger.run, ledger.result_task),
        set(ledger.done),
        ledger.blocks.ranges,
        command
        and (command.task, command.position, command.floor, command.next_offset, set(command.offsets)),
        held and held.offset,
    )


def run_seed(draw: Random, did: Did) -> None:
    """Run one script of up to sixteen operations."""
    script = TwinScript(draw, did)
    for _ in range(draw.randint(3, 16)):
        script.step()


CORE = Core(run_seed)
