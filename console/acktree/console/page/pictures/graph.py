"""Draws the topology: nodes in columns from the source topics on, edges with their rates. Pure.

Invariant: every spout, bolt and topic of the file appears once; a loop is drawn backwards, not followed.
"""

from dataclasses import dataclass

from acktree.console.columns import rate
from acktree.console.view.documents import Status
from acktree.core.topology.file import Topology

COLUMN_PX, ROW_PX = 200, 74
BOX_PX, BOX_HIGH_PX = 140, 48
MARGIN_PX = 14


@dataclass(frozen=True, slots=True)
class Node:
    """A box at (x, y); ``kind`` is source, spout, topic or bolt; ``state`` colours it."""

    kind: str
    name: str
    under: str
    state: str
    x: int
    y: int
    href: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve between two boxes, with a label at (x, y); ``width`` grows with the rate."""

    path: str
    label: str
    x: int
    y: int
    width: float


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything to draw."""

    nodes: tuple[Node, ...]
    lines: tuple[Curve, ...]
    width: int
    height: int


Key = tuple[str, str]


def make_graph(topology: Topology, status: Status) -> Graph:
    """Return the picture of a topology, rates from a status."""
    links = _links(topology)
    columns = _columns(topology, links)
    high = max((len(column) for column in columns), default=1)
    places: dict[Key, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        top = MARGIN_PX + (high - len(column)) * ROW_PX // 2
        for row, key in enumerate(column):
            places[key] = MARGIN_PX + number * COLUMN_PX, top + row * ROW_PX
    nodes = tuple(_node(key, places[key], status) for column in columns for key in column)
    lines = tuple(_line(places[start], places[end], _rate(start, end, status)) for start, end in links)
    width = 2 * MARGIN_PX + (len(columns) - 1) * COLUMN_PX + BOX_PX
    return Graph(nodes, lines, width, 2 * MARGIN_PX + (high - 1) * ROW_PX + BOX_HIGH_PX)


def _links(topology: Topology) -> list[tuple[Key, Key]]:
    links: list[tuple[Key, Key]] = []
    for name, spout in topology.spouts.items():
        links += [(("source", topic), ("spout", name)) for topic in spout.topics]
        links += [(("spout", name), ("topic", topic)) for topic in spout.emits]
    for name, bolt in topology.bolts.items():
        links += [(("topic", topic), ("bolt", name)) for topic in bolt.reads]
        links += [(("bolt", name), ("topic", topic)) for topic in bolt.emits]
    return links


def _columns(topology: Topology, links: list[tuple[Key, Key]]) -> list[list[Key]]:
    """Return the nodes by column: each one right of everything that leads to it, loops left out."""
    rank: dict[Key, int] = {("source", t): 0 for spout in topology.spouts.values() for t in spout.topics}
    rank |= {("spout", name): 1 for name in topology.spouts}
    followers: dict[Key, list[Key]] = {}
    for start, end in links:
        followers.setdefault(start, []).append(end)

    def place(key: Key, above: frozenset[Key]) -> None:
        for end in followers.get(key, ()):
            if end not in above and rank.get(end, -1) < rank[key] + 1:
                rank[end] = rank[key] + 1
                place(end, above | {end})

    for name in topology.spouts:
        place(("spout", name), frozenset({("spout", name)}))
    for start, end in links:
        for key in (start, end):
            rank.setdefault(key, 2)
    last = max(rank.values(), default=0)
    return [[key for key, at in rank.items() if at == number] for number in range(last + 1)]


def _node(key: Key, place: tuple[int, int], status: Status) -> Node:
    kind, name = key
    under, state, href = "", "", ""
    stuck = {entry.where for entry in status.stuck}
    if any((each.role, each.component) == key and each.instance in stuck for each in status.stalls):
        stuck.add(name)
    if kind == "spout":
        spout = next(entry for entry in status.spouts if entry.name == name)
        under, href = (
            "pending not known" if spout.pending is None else f"{spout.pending:,} pending",
            f"#spout-{name}",
        )
        held = any(
            p.spout == name and f"{p.topic or p.spout}/{p.partition}" in stuck for p in status.partitions
        )
        state = "stuck" if name in stuck or held else ("" if spout.processes else "absent")
    elif kind == "bolt":
        bolt = next(entry for entry in status.bolts if entry.name == name)
        under, href = f"{bolt.lag:,} behind", f"#bolt-{name}"
        state = "stuck" if name in stuck else ("" if bolt.members or bolt.processes else "absent")
    elif kind == "source":
        left = sum(p.lag for p in status.partitions if p.topic == name)
        under = f"{left:,} not done"
    return Node(kind, name, under, state, *place, href)


def _rate(start: Key, end: Key, status: Status) -> float | None:
    if start[0] == "source":
        return next((entry.emitted_per_s for entry in status.spouts if entry.name == end[1]), None)
    reader = end[1] if end[0] == "bolt" else None
    topic = end[1] if end[0] == "topic" else start[1]
    return next((edge.per_s for edge in status.edges if (edge.topic, edge.reader) == (topic, reader)), None)


def _line(start: tuple[int, int], end: tuple[int, int], per_s: float | None) -> Curve:
    x1, y1 = start[0] + BOX_PX, start[1] + BOX_HIGH_PX // 2
    x2, y2 = end[0], end[1] + BOX_HIGH_PX // 2
    bend = max(34, (x2 - x1) // 2)
    path = f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}"
    label = "" if per_s is None else f"{rate(per_s)}/s"
    width = 1.2 if not per_s else min(5.0, 1.4 + 0.7 * max(0.0, _digits(per_s)))
    return Curve(path, label, (x1 + x2) // 2, (y1 + y2) // 2 - 6, round(width, 1))


def _digits(number: float) -> int:
    return len(str(int(number))) - 1
