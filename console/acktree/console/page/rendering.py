"""Templates and their filters. Everything is escaped; no template marks text as safe."""

import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from acktree.console.columns import duration, rate

HERE = Path(__file__).parent


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
        "shorten": shorten,
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


def moment(time_ms: int) -> str:
    """Return a time of day with milliseconds, and the date where it is not today's."""
    then, now = time.localtime(time_ms / 1000), time.localtime()
    day = "" if then[:3] == now[:3] else time.strftime("%Y-%m-%d ", then)
    return day + time.strftime("%H:%M:%S", then) + f".{time_ms % 1000:03d}"


def shorten(text: str, limit: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def render(environment: Environment, name: str, **values: Any) -> str:
    """Return a page."""
    return environment.get_template(name).render(**values)
