"""Executes a failed batch again in halves, and those that fail in halves, so that only the poison fails.

Invariant: each tuple is in one part that is executed or failed last. If everything fails, such as while a
database is down, it executes only one path down to a single tuple, FURTHER_FAILURES more parts, and then
each remaining part once: about 2 log n + FURTHER_FAILURES executions. For one poison tuple: about 2 log n.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

FURTHER_FAILURES = 8
"""This many failures in a row beyond those of a way down to one tuple show that splitting does not help."""

Item = TypeVar("Item")


def execute_in_halves(
    items: Sequence[Item],
    error: BaseException,
    execute: Callable[[Sequence[Item]], BaseException | None],
    fail: Callable[[Sequence[Item], BaseException], None],
    *,
    may_split: Callable[[BaseException], bool],
    may_go_on: Callable[[], bool],
    in_hand: Callable[[Item], bool] = lambda _item: True,
) -> None:
    """Execute the items of a batch again that failed with ``error``.

    ``execute`` returns with what a part has failed. A success allows FURTHER_FAILURES again. Where
    ``may_go_on`` says no, the rest fails with the last error, unexecuted.

    >>> done = []
    >>> def execute(part):
    ...     if 3 in part:
    ...         return ValueError("three")
    ...     done.extend(part)
    >>> execute_in_halves(
    ...     range(6), ValueError("three"), execute, lambda part, error: print(list(part), error),
    ...     may_split=lambda _: True, may_go_on=lambda: True,
    ... )
    [3] three
    >>> done
    [0, 1, 2, 4, 5]
    """
    limit, failures = len(items).bit_length() + FURTHER_FAILURES, 1
    waiting = _halves(items, in_hand)
    while waiting:
        part = waiting.pop()
        if not may_go_on():
            fail(part, error)
            continue
        found = execute(part)
        if found is None:
            failures = 0
            continue
        error, failures = found, failures + 1
        if len(part) > 1 and failures <= limit and may_split(error):
            waiting += _halves(part, in_hand)
        else:
            fail(part, error)


def _halves(items: Sequence[Item], in_hand: Callable[[Item], bool]) -> list[Sequence[Item]]:
    """Return the two halves of what is in hand, the second one first."""
    left = [item for item in items if in_hand(item)]
    middle = len(left) // 2
    return [part for part in (left[middle:], left[:middle]) if part]
