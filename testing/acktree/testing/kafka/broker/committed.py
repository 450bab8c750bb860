"""Keeps the offsets that a group has committed, and those that open transactions hold for it.

Invariant: of two offsets of a partition the one that came later stays, whether it was committed plainly or
with a transaction, and whenever that ended.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from acktree.testing.kafka.broker.assignors import Place
from acktree.testing.kafka.broker.log import Outcome, Transaction


@dataclass(slots=True)
class Committed:
    """A committed offset."""

    offset: int
    metadata: str | None
    epoch: int
    """That of the leader whose log was read, -1 for not known."""
    at_s: float
    member: str
    number: int
    """How many offsets the group had been given before."""


class Offsets(dict[Place, Committed]):
    """The committed offsets of a group; calls back at each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed
        self._numbers = itertools.count()
        self._pending: dict[Transaction, dict[Place, Committed]] = {}

    def add(
        self,
        place: Place,
        offset: int,
        metadata: str | None,
        epoch: int,
        at_s: float,
        member: str,
        transaction: Transaction | None,
    ) -> None:
        """Commit an offset, or keep it until its transaction ends."""
        target = self if transaction is None else self._pending.setdefault(transaction, {})
        target[place] = Committed(offset, metadata, epoch, at_s, member, next(self._numbers))

    @property
    def pending(self) -> set[Place]:
        """The partitions whose committed offset an open transaction may still change."""
        return set().union(*self._pending.values())

    def end(self, transaction: Transaction) -> None:
        """Commit or drop what a transaction that has ended holds."""
        for place, held in self._pending.pop(transaction, {}).items():
            is_younger = place not in self or self[place].number < held.number
            if transaction.outcome is Outcome.COMMITTED and is_younger:
                self[place] = held

    def drop_topic(self, topic: str) -> None:
        """Forget the offsets of a topic that was deleted, pending ones as well."""
        for held in (self, *self._pending.values()):
            for place in [place for place in held if place[0] == topic]:
                del held[place]

    def __setitem__(self, place: Place, committed: Committed) -> None:
        super().__setitem__(place, committed)
        self._changed()

    def __delitem__(self, place: Place) -> None:
        super().__delitem__(place)
        self._changed()

    def clear(self) -> None:
        """See dict."""
        super().clear()
        self._changed()
