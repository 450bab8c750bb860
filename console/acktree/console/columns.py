"""Rows of text in columns, as Kafka's own tools print them."""

from collections.abc import Iterable, Sequence


def columns(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a head and rows as aligned lines; what is empty is shown as `-`.

    >>> print(columns(("BOLT", "READS"), [("count", "words"), ("sum", "")]))
    BOLT   READS
    count  words
    sum    -
    """
    cells = [[str(cell) if str(cell) else "-" for cell in row] for row in (head, *rows)]
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


_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s"))


def milliseconds(value: float | None) -> str:
    """Return a number of milliseconds in three digits, or whole where it is longer.

    >>> milliseconds(0.1351), milliseconds(45_540.2), milliseconds(None)
    ('0.135', '45,540', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


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
