"""Draws sparklines: an hour of a figure as a small picture, and the same in words. Pure.

Invariant: a gap in the observations is a gap in the picture; the words say how long it is in all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from acktree.console.columns import duration, rate
from acktree.console.page.serving.history import BUCKET_S, BUCKETS, Line

RATES = ("acked", "failed")
WIDTH, HEIGHT, MARGIN = float(BUCKETS), 22.0, 2.0


@dataclass(frozen=True, slots=True)
class Spark:
    """A picture of WIDTH to HEIGHT: a path for each uninterrupted run; ``text`` says the same."""

    paths: tuple[str, ...]
    text: str


def make_sparks(lines: Mapping[str, Line]) -> dict[str, Spark]:
    """Return a sparkline for each figure."""
    return {name: draw(name, line) for name, line in lines.items()}


def draw(name: str, line: Line) -> Spark:
    """Return the picture of a figure.

    >>> draw("pending", (None, 0.0, 3.0, None, 2.0)).text
    'pending in the last hour: lowest 0, highest 3, now 2; above 0 for at least 30 s; not observed for 1 m'
    """
    known = [value for value in line if value is not None]
    top = max(known, default=0.0) or 1.0
    paths = []
    numbered = list(enumerate(line))
    for is_known, run in groupby(numbered, key=lambda each: each[1] is not None):
        if is_known:
            points = [f"{x + 0.5:g},{_y(value or 0.0, top):g}" for x, value in run]
            paths.append(f"M{' L'.join(points)}" if len(points) > 1 else f"M{points[0]} h0.01")
    return Spark(tuple(paths), _text(name, line, known))


def _y(value: float, top: float) -> float:
    return round(MARGIN + (HEIGHT - 2 * MARGIN) * (1 - value / top), 1)


def _text(name: str, line: Line, known: list[float]) -> str:
    unit, show = ("/s", rate) if name in RATES else ("", "{:,.0f}".format)
    if not known:
        return f"{name}{unit} in the last hour: not observed"
    low, high = show(min(known)), show(max(known))
    now = "not observed" if line[-1] is None else show(line[-1])
    text = f"{name}{unit} in the last hour: lowest {low}, highest {high}, now {now}"
    above = next((n for n, value in enumerate(reversed(line)) if not value), len(line))
    if above:
        is_cut = above == len(line) or line[-1 - above] is None
        text += f"; above 0 for {'at least ' if is_cut else ''}{duration(above * BUCKET_S)}"
    gaps = len(line) - len(known)
    return f"{text}; not observed for {duration(gaps * BUCKET_S)}" if gaps else text
