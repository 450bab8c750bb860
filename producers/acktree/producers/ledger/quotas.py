"""Divides a limit among slots or tasks, one after another. Pure.

Invariant: no slot waits forever: those that need less than an even quota are served first, and leave the rest
of it to the others; each of these is first in turn, even if the limit is smaller than their number.
"""

from collections.abc import Mapping


def quota_of(limit: int, sharers: int) -> int:
    """Return the quota of the first of ``sharers`` that are still to be served.

    >>> quota_of(5_000, 3), quota_of(1, 3)
    (1667, 1)
    """
    return -(-limit // sharers)


def in_turn(wanted: Mapping[int, int], limit: int, turn: int) -> list[int]:
    """Return who is served one after another, by how much each wants.

    >>> in_turn({7: 100, 8: 1, 9: 100}, 30, turn=0), in_turn({7: 100, 8: 1, 9: 100}, 30, turn=1)
    ([8, 7, 9], [8, 9, 7])
    """
    first = turn % max(1, len(wanted))
    order = [*wanted][first:] + [*wanted][:first]
    even = quota_of(limit, max(1, len(wanted)))
    return sorted(order, key=lambda each: min(wanted[each], even))
