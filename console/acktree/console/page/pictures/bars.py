"""Draws the bar of a source partition: committed | done above and pending | log end. Pure.

Invariant: the committed part takes a fixed width at the left, whatever its size, so that a small open part
can be seen; the rest is to scale, and nothing that exists is narrower than a visible sliver.
"""

from dataclasses import dataclass

from acktree.console.view.documents import PartitionStatus

WIDTH = 1000.0
DONE_SHARE = 0.28
SLIVER = 6.0


@dataclass(frozen=True, slots=True)
class BarPart:
    """A rectangle of the bar, 0 to WIDTH."""

    kind: str
    x: float
    width: float
    title: str


def bar(partition: PartitionStatus, is_stuck: bool) -> list[BarPart]:
    """Return the parts of a partition's bar, from left to right."""
    frontier = partition.frontier if partition.frontier is not None else partition.log_start
    emitted = partition.next_offset if partition.next_offset is not None else frontier
    pending, left = partition.pending, max(0, partition.log_end - emitted)
    rest = f"{left:,} not emitted" if pending is not None else f"{left:,} not done or not emitted"
    counts = [
        ("above", partition.done_above or 0, f"{partition.done_above or 0:,} done above the frontier"),
        ("stuck" if is_stuck else "pending", pending or 0, f"{pending or 0:,} pending"),
        ("left", left, rest),
    ]
    here = [part for part in counts if part[1]]
    done = WIDTH if not here and frontier > partition.log_start else DONE_SHARE * WIDTH
    done = done if frontier > partition.log_start else 0.0
    parts = [BarPart("done", 0.0, done, f"committed up to {frontier:,}")] if done else []
    room = WIDTH - done - SLIVER * len(here)
    total = sum(count for _, count, _ in here)
    x = done
    for kind, count, title in here:
        width = SLIVER + room * count / total
        parts.append(BarPart(kind, round(x, 1), round(width, 1), title))
        x += width
    parts.append(BarPart("edge", round(max(0.0, done - 2), 1), 3.0, f"frontier {frontier:,}"))
    return parts
