"""Tuple trees as what they are, sets of edges and of messages that name them; nothing here XORs.

A tree is whole when its init and every ack have arrived and every edge has been consumed.
"""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class TreeMessage:
    """What one task says of a tree: the edges it made, and those it consumed (none in an init)."""

    made: frozenset[int]
    consumed: frozenset[int] = frozenset()

    @property
    def edges(self):
        return self.made | self.consumed


@dataclass
class ModelTree:
    """The messages of one root, the init first, and where each arrived: pairs of offset and log time."""

    root: int
    messages: list[TreeMessage]
    arrived: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    fails: list[tuple[int, int]] = field(default_factory=list)
    resets: list[tuple[int, int]] = field(default_factory=list)

    @property
    def open_edges(self):
        made = set().union(*(message.made for message in self.messages))
        return sorted(made - set().union(*(message.consumed for message in self.messages)))

    def grow(self, edge, children):
        """Have a task consume an edge and make others; return the number of its ack."""
        self.messages.append(TreeMessage(frozenset(children), frozenset([edge])))
        return len(self.messages) - 1

    def is_whole(self, inits=float("inf"), acks=float("inf")):
        """Return whether all of the tree lies below these offsets."""
        ends = [inits, *(acks for _ in self.messages[1:])]
        return not self.open_edges and all(
            any(offset < end for offset, _ in self.arrived.get(number, [])) for number, end in enumerate(ends)
        )

    @property
    def is_plain(self):
        """Nothing failed, and no ack came twice; a repeated init does not count."""
        return not self.fails and all(len(places) == 1 for n, places in self.arrived.items() if n)

    @property
    def said_by_workers(self):
        """Places of all that is on the ack topic."""
        acks = [place for number, places in self.arrived.items() if number for place in places]
        return sorted([*acks, *self.fails, *self.resets])

    def longest_silence_ms(self, now_ms):
        """Return how long the root was an orphan without a sign of life: first message, reset, init."""
        first_init_ms = min((ms for _, ms in self.arrived.get(0, [])), default=now_ms)
        signs = [ms for _, ms in self.said_by_workers[:1] + self.resets if ms < first_init_ms]
        signs = [*sorted(signs), first_init_ms] if signs else []
        return max((later - sign for sign, later in pairwise(signs)), default=0)
