"""Computes which consumer edges of a tree are open from the sum of its messages. Pure.

The XOR of a root's init and acks is the XOR of the edges that occur in only one message. Given the edges of
the tuples found on the topics, the open ones are the subset with that sum: linear algebra over GF(2).
Invariant: an answer says whether it is the only one; a guess is never shown as a fact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

MAX_UNIQUE = 48
"""Above this many edges a wrong subset with the right sum becomes likely: 2^48 subsets against 2^64 sums."""
MAX_SINGLE = 1 << 20


class Certainty(Enum):
    """The certainty of an answer."""

    EXACT = "exact"
    """The only subset of the edges found that has this sum, except with a probability below 2^-15."""
    AMBIGUOUS = "ambiguous"
    """Too many edges were found for their sum to tell which are open."""
    MISSING = "missing"
    """No subset has this sum: an open edge belongs to a tuple that was not found."""


@dataclass(frozen=True, slots=True)
class OpenEdges:
    """Indexes of the edges that are open."""

    indexes: tuple[int, ...]
    certainty: Certainty


def find_open(total: int, edges: Sequence[int], likely: Sequence[int] = ()) -> OpenEdges:
    """Return the edges whose XOR is ``total``; those at the indexes ``likely`` are tried alone first.

    >>> find_open(0b0110, [0b1000, 0b0100, 0b0010])
    OpenEdges(indexes=(1, 2), certainty=<Certainty.EXACT: 'exact'>)
    >>> find_open(0b0001, [0b1000, 0b0100]).certainty
    <Certainty.MISSING: 'missing'>
    """
    if total == 0:
        return OpenEdges((), Certainty.EXACT)
    for index, edge in enumerate(edges[:MAX_SINGLE]):
        if edge == total:
            return OpenEdges((index,), Certainty.EXACT)
    for chosen in (likely, range(len(edges))):
        if 0 < len(chosen) <= MAX_UNIQUE:
            solved = _solve(total, [(edges[index], index) for index in chosen])
            if solved is not None:
                return OpenEdges(solved, Certainty.EXACT)
    pair = _find_pair(total, edges)
    if pair is not None:
        return OpenEdges(pair, Certainty.EXACT)
    certainty = Certainty.AMBIGUOUS if len(edges) > MAX_UNIQUE else Certainty.MISSING
    return OpenEdges((), certainty)


def _solve(total: int, edges: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
    """Return the indexes of the subset whose XOR is total, by Gaussian elimination; None if there is none."""
    basis: dict[int, tuple[int, int]] = {}
    for place, (edge, _) in enumerate(edges):
        value, members = _reduce(edge, 1 << place, basis)
        if value:
            basis[value.bit_length()] = value, members
    value, members = _reduce(total, 0, basis)
    if value:
        return None
    return tuple(index for place, (_, index) in enumerate(edges) if members >> place & 1)


def _reduce(value: int, members: int, basis: dict[int, tuple[int, int]]) -> tuple[int, int]:
    while value and (known := basis.get(value.bit_length())):
        value ^= known[0]
        members ^= known[1]
    return value, members


def _find_pair(total: int, edges: Sequence[int]) -> tuple[int, int] | None:
    seen: dict[int, int] = {}
    for index, edge in enumerate(edges[:MAX_SINGLE]):
        if (other := seen.get(edge ^ total)) is not None:
            return other, index
        seen[edge] = index
    return None
