"""The replay commands of one slot that still matter: the live one, those that ended, those voided.

Invariant: a root names one command at most, and finishes nothing that a later command opened again. An ended
command is known as long as blocks that it cut into are in flight: its results may come twice. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from acktree.spark.ledger.blocks import Blocks
from acktree.spark.ledger.live_replay import LiveReplay
from acktree.spark.ledger.retries import Replay, Retries, name_of_rest


@dataclass(slots=True)
class Commands:
    """One live command at most; ``ended`` are in the order in which they were applied.

    ``void`` are those of a driver without a checkpoint: all that they opened is emitted again. They stay on
    record until that is planned, since Spark may yet show a batch that it has logged.
    """

    live: LiveReplay | None = None
    ended: list[LiveReplay] = field(default_factory=list)
    void: list[LiveReplay] = field(default_factory=list)

    @property
    def known(self) -> list[LiveReplay]:
        """Return those whose roots count, the latest first."""
        ended = self.ended[::-1]
        return [self.live, *ended] if self.live is not None else ended

    def with_newer(self) -> Iterator[tuple[LiveReplay, BitMap64]]:
        """Yield each of those known with the offsets that later ones have opened again."""
        newer = BitMap64()
        for command in self.known:
            yield command, newer
            newer = newer | command.offsets

    @property
    def on_record(self) -> list[LiveReplay]:
        """Return those that a claim must still list."""
        return [*self.known, *self.void]

    @property
    def retries(self) -> list[Retries]:
        """Return where the attempts of each of those known are counted."""
        return [command.retries for command in self.known]

    @property
    def largest_block(self) -> int:
        return max((command.block for command in self.known), default=1)

    def offsets(self) -> BitMap64:
        """Return the offsets that no older emission finishes."""
        union = BitMap64()
        for command in self.known:
            union |= command.offsets
        return union

    def cover(self, firsts: NDArray[np.int64], run: int) -> tuple[BitMap64, NDArray[np.int64]]:
        """Return what the roots of a run that are commands' finish, and the firsts that are no command's."""
        covered = BitMap64()
        for command, newer in self.with_newer():
            theirs = np.isin(firsts, command.owned(firsts, run))
            covered |= command.cover(firsts[theirs]) - newer
            firsts = firsts[~theirs]
        return covered, firsts

    def emission(self, first: int, run: int) -> tuple[Retries, BitMap64] | None:
        """Return where the attempts of a command's root are counted, and what it finishes.

        None for a root that is no command's.
        """
        for command, newer in self.with_newer():
            if command.owns(first, run):
                return command.retries, command.block_at(first) - newer
        return None

    def emit_due(
        self, now_s: float, run: int, limit: int, open_of: Callable[[BitMap64], BitMap64]
    ) -> list[Replay]:
        """Emit the commands' blocks that are due again, at most ``limit``; ``open_of`` drops what is done."""
        taken: list[Replay] = []
        for command, newer in self.with_newer():
            left_at = partial(_left_at, command, newer, open_of)
            first_left = partial(name_of_rest, left_at, newer)
            taken += command.retries.emit_due(now_s, run, limit - len(taken), first_left)
        return taken

    def fail_overdue(self, frontier: int, done: BitMap64, before_s: float, now_s: float, limit: int) -> int:
        """Fail the commands' blocks that were emitted before a time and have no result; return how many."""
        count = 0
        for command, newer in self.with_newer():
            left = command.left(frontier, done) - newer
            late = left if command.is_emitted_before(before_s) else BitMap64()
            count += command.retries.fail_overdue(command.split(late), before_s, now_s, limit - count)
        return count

    def discard_retries(self, is_done: Callable[[int, int], bool]) -> None:
        """Discard the attempts of the commands' blocks [first, end) that are done."""
        for command in self.known:
            command.retries.discard(partial(_is_block_done, command, is_done))

    def end(self, *, is_done: bool, blocks: Blocks, frontier: int) -> None:
        """End the live command if all of it is done; discard the ended ones that no longer matter."""
        if self.live is not None and is_done:
            self.ended.append(self.live)
            self.live = None
        self.ended = [
            command
            for command in self.ended
            if blocks.overlap(int(command.offsets.min()), int(command.offsets.max()) + 1)
            or (command.block > 1 and command.offsets.max() >= frontier)
        ]


def _left_at(
    command: LiveReplay, newer: BitMap64, open_of: Callable[[BitMap64], BitMap64], first: int
) -> BitMap64:
    return open_of(command.block_at(first) - newer)


def _is_block_done(command: LiveReplay, is_done: Callable[[int, int], bool], first: int) -> bool:
    return is_done(first, command.end_of(first))
