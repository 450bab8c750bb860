"""Finds the dead letters of the record that a trace is about.

Invariant: a record that closes a dead letter is not a dead letter.
"""

from dataclasses import dataclass, replace

from acktree.console.view.records.dead_letters import closed_by, closed_name
from acktree.console.view.records.search import Search
from acktree.console.view.records.tree_reader import headers_of
from acktree.core.topology.registry import Published
from acktree.wire.dead_letter import ORIGIN


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """A dead letter of the record."""

    partition: int
    offset: int
    time_ms: int
    attempts: str
    reason: str
    corrected_as: str = ""


def find_dead_letters(search: Search, topology: Published) -> list[DeadLetterSummary]:
    """Return the dead letters of a record, and which of them were corrected."""
    target = search.target
    wanted = f"{target.slot.topic}/{target.slot.partition}/{target.offset}".encode()
    found: list[DeadLetterSummary] = []
    closed: dict[str, str] = {}
    for batch in search.scan(search.spans([topology.dead_letter_topic])):
        closed |= closed_by(batch)
        for record in batch:
            headers = dict(headers_of(record))
            if headers.get(ORIGIN) == wanted and not closed_name(record):
                attempts, reason = (
                    (headers.get(f"acktree-{name}") or b"").decode("utf-8", "replace")
                    for name in ("attempts", "reason")
                )
                place = record.partition() or 0, record.offset() or 0
                found.append(DeadLetterSummary(*place, record.timestamp()[1], attempts, reason))
    return [replace(each, corrected_as=closed.get(f"{each.partition}/{each.offset}", "")) for each in found]
