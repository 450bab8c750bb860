"""Computes how many records a slot may emit for the first time, by its limit. Pure.

Invariant: a record that waits for its next attempt, or was overtaken, takes up no room: neither is in a
queue.
"""

from acktree.producers.ledger.partitions.done_set import EVERYTHING
from acktree.producers.ledger.partitions.partition import PartitionLedger


def room_of(ledger: PartitionLedger) -> int:
    """Return how many records of a slot may be emitted before its limit is reached."""
    if not ledger.limit.allowed:
        return EVERYTHING
    start = max(ledger.frontier, ledger.times.end_before(ledger.limit.overtaken_s))
    pending = ledger.next_offset - start - ledger.done.range_cardinality(start, ledger.next_offset)
    attempts = ledger.retries.attempts.items()
    waiting = sum(offset >= start and not attempt.in_flight for offset, attempt in attempts)
    return max(0, ledger.limit.allowed - pending + waiting)
