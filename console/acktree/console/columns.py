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
