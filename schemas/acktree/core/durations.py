"""Parses durations as people write them, on a command line and in options."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|seconds?|m|min|minutes?|h|hours?|d|days?)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float:
    """Return a duration in seconds: a number and its unit, or a number of seconds.

    Raises:
        ValueError: it is neither.

    >>> parse_duration_s("90"), parse_duration_s("500ms"), parse_duration_s("2 minutes")
    (90.0, 0.5, 120.0)
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration; examples: 500ms, 30s, 2m, 1h, 1d")
    unit = found[2] or "s"
    return float(found[1]) * _UNITS_S["ms" if unit.startswith(("ms", "milli")) else unit[0]]
