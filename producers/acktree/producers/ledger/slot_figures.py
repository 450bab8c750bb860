"""Computes what a spout task reports of one slot. Changes none of the state it reads."""

from acktree.core.reports.last_error import one_line
from acktree.core.reports.stats import Value
from acktree.producers.ledger.partitions.partition import PartitionLedger


def slot_figures(place: str, ledger: PartitionLedger, now_s: float) -> dict[str, Value]:
    """Return how far a slot is and what holds its frontier; ``place`` is TOPIC.PARTITION."""
    state: dict[str, Value] = {
        f"frontier.{place}": ledger.frontier,
        f"next.{place}": ledger.next_offset,
        f"pending.{place}": ledger.open_from(ledger.frontier),
        f"held_s.{place}": round(held_s(ledger, now_s), 3),
    }
    held = ledger.first_emission()
    if held is not None and not held.is_first:
        state[f"held_longer.{place}"] = 1
    attempt = ledger.retries.attempts.get(ledger.frontier)
    if attempt is not None and attempt.emissions:
        state[f"emissions.{place}"] = attempt.emissions + 1
    is_unemitted = held is None and ledger.frontier < ledger.next_offset
    if is_unemitted or (attempt is not None and not attempt.in_flight):
        state[f"waiting.{place}"] = 1
    if (failed := ledger.retries.failed_record(ledger.frontier, now_s)) is not None:
        state[f"reason.{place}"] = one_line(failed.reason)
        state[f"idle_s.{place}"] = round(failed.idle_s, 3)
        if failed.next_s is not None:
            state[f"next_s.{place}"] = round(failed.next_s, 3)
    return state


def held_s(ledger: PartitionLedger, now_s: float) -> float:
    """Return how long ago the record at the frontier was emitted (or resumed), 0 if none is."""
    held = ledger.first_emission()
    return 0.0 if held is None else max(0.0, now_s - held.time_s)
