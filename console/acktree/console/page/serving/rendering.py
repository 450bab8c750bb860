"""Renders templates with their filters. Everything is escaped; no template marks text as safe."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from acktree.console.columns import LINES, age_of, duration, moment, printable, rate, second
from acktree.console.view.records.payloads import about

HERE = Path(__file__).parent.parent
_OWN_LINK = re.compile(r'((?:href|action)=")/(?!static/|login|t/|/)')
"""A link to a page of the topology; everything that others wrote is escaped, so it holds no such quote."""


def make_environment() -> Environment:
    """Return the page's templates, escaping in every file whatever its name ends with."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "duration": age,
        "rate": rate,
        "milliseconds": milliseconds,
        "moment": moment,
        "second": second,
        "age_of": age_of,
        "shorten": shorten,
        "about": about,
        "visible": visible,
    }
    return environment


def age(seconds: float | None) -> str:
    """Return a duration, a dash where it is not known."""
    return "–" if seconds is None else duration(seconds)


def milliseconds(value: float) -> str:
    """Return a latency.

    >>> milliseconds(0.0123), milliseconds(7.25), milliseconds(1530)
    ('12 µs', '7.25 ms', '1.5 s')
    """
    if value < 1:
        return f"{1000 * value:.0f} µs"
    return f"{value:.3g} ms" if value < 1000 else duration(value / 1000)


def shorten(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: object) -> str:
    """Return text with its control characters escaped, except line ends and tabs."""
    return printable(text, LINES)


def render(environment: Environment, name: str, **values: Any) -> str:
    """Return a page."""
    return environment.get_template(name).render(**values)


def rooted(page: str, base: str) -> str:
    """Return a page whose links lead to pages below ``base``; templates write them without it.

    >>> rooted('<a href="/trace?root=1"> <a href="/static/a.css"> <a href="/t/"> <a href="#bolts">', "/t/x")
    '<a href="/t/x/trace?root=1"> <a href="/static/a.css"> <a href="/t/"> <a href="#bolts">'
    """
    return _OWN_LINK.sub(lambda found: f"{found[1]}{base}/", page) if base else page
