"""Draws a trace: per emission the record, then the tuples by topic, each with its readers. Pure.

Invariant: colour says what the text says: an open edge is the only thing that stands out. Parents and
children are drawn only as columns, because the log does not name them.
"""

from dataclasses import dataclass

from acktree.console.view.records.tree import TracedEmission, TracedTuple, by_column

COLUMN_PX, ROW_PX, BOX_PX, BOX_HIGH_PX = 250, 46, 196, 38
MARGIN_PX = 12
MAX_ROWS = 24


@dataclass(frozen=True, slots=True)
class Chip:
    """A reader inside a tuple's box."""

    name: str
    state: str
    title: str
    x: int


@dataclass(frozen=True, slots=True)
class TupleBox:
    """A tuple, the root, or "and n more"."""

    title: str
    state: str
    x: int
    y: int
    chips: tuple[Chip, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything to draw of one emission."""

    boxes: tuple[TupleBox, ...]
    paths: tuple[str, ...]
    heads: tuple[tuple[str, int], ...]
    width: int
    height: int


def draw(emission: TracedEmission) -> Picture:
    """Return the picture of one emission."""
    columns = by_column(emission.tuples)
    rows = max((min(len(found), MAX_ROWS + 1) for found in columns.values()), default=1)
    height = 2 * MARGIN_PX + 22 + rows * ROW_PX
    middle = MARGIN_PX + 22 + (rows - 1) * ROW_PX // 2
    root = TupleBox(emission.root, emission.state.replace(" ", "-"), MARGIN_PX, middle)
    boxes, paths, heads = [root], list[str](), [("root", MARGIN_PX)]
    left = [root]
    for number, (topic, found) in enumerate(columns.items(), 1):
        x = MARGIN_PX + number * COLUMN_PX
        heads.append((topic, x))
        column = _column(found, x, rows)
        paths += _paths(left, column)
        boxes += column
        left = column
    return Picture(
        tuple(boxes), tuple(paths), tuple(heads), MARGIN_PX * 2 + len(columns) * COLUMN_PX + BOX_PX, height
    )


def _column(found: list[TracedTuple], x: int, rows: int) -> list[TupleBox]:
    shown = found[:MAX_ROWS]
    count = len(shown) + (len(found) > MAX_ROWS)
    top = MARGIN_PX + 22 + (rows - count) * ROW_PX // 2
    column = [_box(entry, x, top + row * ROW_PX) for row, entry in enumerate(shown)]
    if len(found) > MAX_ROWS:
        column.append(TupleBox(f"and {len(found) - MAX_ROWS} more", "more", x, top + len(shown) * ROW_PX))
    return column


def _box(found: TracedTuple, x: int, y: int) -> TupleBox:
    states = {reader.state for reader in found.readers}
    order = ("open", "probably open", "failed", "unmatched", "not known", "done")
    state = next((entry for entry in order if entry in states), "unread")
    chips = tuple(
        Chip(
            reader.bolt if len(reader.bolt) <= 12 else reader.bolt[:11] + "…",
            reader.state.replace(" ", "-"),
            f"bolt {reader.bolt}: {reader.state}"
            + (f", its group is {reader.behind} behind" if reader.behind else ""),
            10 + index * 92,
        )
        for index, reader in enumerate(found.readers[:2])
    )
    return TupleBox(f"{found.at.partition}/{found.at.offset}", state.replace(" ", "-"), x, y, chips)


def _paths(left: list[TupleBox], right: list[TupleBox]) -> list[str]:
    """Return curves from a column to the next: from its one box, else from a bracket around all of it."""
    top, bottom = left[0].y + BOX_HIGH_PX // 2, left[-1].y + BOX_HIGH_PX // 2
    x1, y1 = left[0].x + BOX_PX, (top + bottom) // 2
    curves = []
    if len(left) > 1:
        curves = [f"M{x1 + 3},{top - 14} h6 V{bottom + 14} h-6"]
        x1 += 9
    for box in right:
        y2 = box.y + BOX_HIGH_PX // 2
        curves.append(f"M{x1},{y1} C{x1 + 22},{y1} {box.x - 22},{y2} {box.x},{y2}")
    return curves
