"""Plans the replays of several slots: their number is limited, and divided among the slots. Pure.

Invariant: no slot keeps another one waiting: replays of a slot where little fails are emitted immediately.
"""

from collections.abc import Iterable, Mapping

from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.partitions.retries import Replay
from acktree.producers.ledger.quotas import quota_of


def emit_due(slots: Mapping[int, PartitionLedger], now_s: float, limit: int) -> dict[int, list[Replay]]:
    """Emit what is due again by slot, at most ``limit`` records, those slots first where the least fails."""
    due: dict[int, list[Replay]] = {}
    by_failing = sorted(slots, key=lambda slot: failing([slots[slot]]))
    for place, slot in enumerate(by_failing):
        ledger, quota = slots[slot], quota_of(limit, len(slots) - place)
        due[slot] = ledger.retries.emit_due(now_s, ledger.run, quota)
        limit -= len(due[slot])
    return due


def failing(slots: Iterable[PartitionLedger]) -> int:
    """Return how many records have failed and are not done, in flight again or not."""
    return sum(len(ledger.retries.attempts) for ledger in slots)


def end_back_offs(slots: Iterable[PartitionLedger], now_s: float) -> None:
    """Make due now what has failed and backs off, but not what a bolt has delayed."""
    for ledger in slots:
        ledger.retries.end_back_offs(now_s)


def has_backlog(slots: Iterable[PartitionLedger]) -> bool:
    """Return whether some of what was due when back-offs were ended is not emitted yet."""
    return any(ledger.retries.has_backlog for ledger in slots)
