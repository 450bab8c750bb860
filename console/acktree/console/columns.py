"""Formats text for a terminal: rows in columns, as Kafka's own tools print them; figures; untrusted text.

Invariant: no control character that came out of a topic reaches the terminal.
"""

import time
import unicodedata
from collections.abc import Iterable, Sequence

from acktree.console.view.documents import PendingRecord

REASON_CHARS = 80
"""How much of a reason a list shows."""
LINES = "\n\t"
"""What stays in a text that may have several lines."""
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the order in which the rest of a line is shown."""


def printable(text: object, keep: str = "") -> str:
    r"""Return text with its control characters escaped, except those to ``keep``.

    >>> printable("a\x1b]0;title\x07\n"), printable("a\n\tb", keep="\n\t")
    ('a\\x1b]0;title\\x07\\n', 'a\n\tb')
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if character not in keep
        and (character in _DIRECTIONS or unicodedata.category(character) in ("Cc", "Cs"))
        else character
        for character in str(text)
    )


def short_reason(text: str) -> str:
    """Return the beginning of a reason's first line.

    >>> short_reason("no such word\\nTraceback"), short_reason("x" * 100) == "x" * 79 + "…"
    ('no such word', True)
    """
    line = text.partition("\n")[0]
    return line if len(line) <= REASON_CHARS else f"{line[: REASON_CHARS - 1]}…"


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a head and rows as aligned lines; what is empty is shown as `-`.

    >>> print(columns(("BOLT", "READS"), [("count", "words"), ("sum", "")]))
    BOLT   READS
    count  words
    sum    -
    """
    cells = [[printable(cell) or "-" for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def duration(seconds: float | None) -> str:
    """Return a duration in two units at most.

    >>> duration(0.25), duration(75), duration(7500), duration(200_000), duration(None)
    ('250 ms', '1 m 15 s', '2 h 5 m', '2 d 7 h', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, smaller, small_unit in _UNITS:
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def age_of(record: PendingRecord) -> str:
    """Return a record's age; `>` where its first emission is not known, so that it may be older."""
    if record.age_s is not None:
        return duration(record.age_s)
    return "unknown" if record.at_least_s is None else f"> {duration(record.at_least_s)}"


def moment(time_ms: int) -> str:
    """Return a time of day with milliseconds and zone, and the date where it is not today's."""
    return _local(time_ms, f".{time_ms % 1000:03d}")


def second(time_ms: int) -> str:
    """Return a time of day with seconds and zone, and the date where it is not today's."""
    return _local(time_ms, "")


def _local(time_ms: int, fraction: str) -> str:
    try:
        then, now = time.localtime(time_ms / 1000), time.localtime()
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms since 1970"
    day = "" if then[:3] == now[:3] else time.strftime("%Y-%m-%d ", then)
    return day + time.strftime("%H:%M:%S", then) + fraction + time.strftime(" %Z", then)


_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def milliseconds(value: float | None) -> str:
    """Return a number of milliseconds in three digits, or whole where it is longer.

    >>> milliseconds(0.1351), milliseconds(45_540.2), milliseconds(None)
    ('0.135', '45,540', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def count(number: int | None) -> int | str:
    """Return a number; `-` where it is not known."""
    return "-" if number is None else number


def rate(per_s: float | None) -> str:
    """Return a rate a second in three digits.

    >>> rate(0.0), rate(0.25), rate(1234.5), rate(2_500_000), rate(None)
    ('0', '0.25', '1,234', '2.5 M', '-')
    """
    if per_s is None:
        return "-"
    if per_s >= 1_000_000:
        return f"{per_s / 1_000_000:.3g} M"
    return f"{per_s:,.0f}" if per_s >= 100 or per_s == int(per_s) else f"{per_s:.3g}"
