"""Which source records dead letters ask for, as the replay's plan takes them. Pure.

Invariant: a dead letter that does not name its source record is refused by name; none is skipped silently.
"""

from collections.abc import Iterable

from acktree.console.replay import Wanted
from acktree.console.view.dead_letters import DeadLetter, UnknownDeadLetter
from acktree.schemas.control_records import Span


def wanted_by(dead_letters: Iterable[DeadLetter]) -> list[Wanted]:
    """Return the source records of dead letters by partition, each offset once. Raises UnknownDeadLetter."""
    offsets: dict[tuple[str, int], set[int]] = {}
    for found in dead_letters:
        if not found.topic:
            raise UnknownDeadLetter(
                f"dead letter {found.partition}/{found.offset} does not say which source record it is, "
                "so it cannot be replayed"
            )
        offsets.setdefault((found.topic, found.source_partition), set()).add(found.source_offset)
    return [
        Wanted(topic, partition, tuple(Span(offset, offset + 1) for offset in sorted(mine)))
        for (topic, partition), mine in sorted(offsets.items())
    ]
