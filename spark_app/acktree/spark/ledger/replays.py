"""What several slots emit again of what failed: their number of replays is limited, and shared out. Pure.

Invariant: no slot keeps another one waiting: what is due in a slot where little fails is emitted at once.
"""

from collections.abc import Iterable, Mapping

from acktree.schemas.control_records import Span
from acktree.spark.ledger.done_set import runs
from acktree.spark.ledger.partition import PartitionLedger
from acktree.spark.ledger.quotas import quota_of
from acktree.spark.ledger.retries import Replay

HALVES = 2
"""Both halves of a block are emitted at once, so a smaller quota would be none."""


def replays_of(limit: int, sharers: int) -> int:
    """Return how many replays the first of so many slots or tasks may emit.

    >>> replays_of(5_000, 3), replays_of(3, 3), replays_of(1, 3)
    (1667, 2, 1)
    """
    return min(limit, max(HALVES, quota_of(limit, sharers)))


def emit_due(
    slots: Mapping[int, PartitionLedger], now_s: float, run: int, limit: int
) -> dict[int, list[Replay]]:
    """Emit what is due again by slot, at most ``limit`` blocks, those slots first where the least fails."""
    due: dict[int, list[Replay]] = {}
    by_failing = sorted(slots, key=lambda slot: failing([slots[slot]]))
    for place, slot in enumerate(by_failing):
        due[slot] = slots[slot].emit_due(now_s, run, replays_of(limit, len(slots) - place))
        limit -= len(due[slot])
    return due


def failing(slots: Iterable[PartitionLedger]) -> int:
    """Return how many blocks have failed and are not done, in flight again or not."""
    return sum(len(ledger.retries.attempts) for ledger in slots)


def end_back_offs(slots: Iterable[PartitionLedger], now_s: float) -> None:
    """Make due at once what has failed and backs off, but not what a bolt has delayed."""
    for ledger in slots:
        for retries in (ledger.retries, *ledger.commands.retries):
            retries.end_back_offs(now_s)


def has_backlog(slots: Iterable[PartitionLedger]) -> bool:
    """Return whether some of what was due when back-offs were ended is not emitted yet."""
    return any(r.has_backlog for ledger in slots for r in (ledger.retries, *ledger.commands.retries))


def spans_left(ledger: PartitionLedger, replay: Replay) -> tuple[Span, ...]:
    """Return what is to be emitted of a block; nothing where that is its first record alone."""
    left = ledger.left_of(replay.generation, replay.offset)
    if len(left) == 1 and replay.offset in left:
        return ()
    return tuple(Span(*run) for run in runs(left, 0, len(left)))
