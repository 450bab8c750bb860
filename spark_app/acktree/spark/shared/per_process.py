"""Keeps values of a Python process of Spark for its later tasks: clients, loops, records read.

Invariant: a process gets only values that it made itself. A fork takes no threads along, so a client that it
inherits never answers, and would wait forever when it is closed or freed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from acktree.core import world

Kept = TypeVar("Kept")


class PerProcess(Generic[Kept]):
    """Keeps values by their purpose, such as an address, a topic and settings; the oldest first."""

    def get(self, make: Callable[[], Kept], *purpose: Any) -> Kept:
        """Return what is kept for a purpose, or make it."""
        kept, key = self._own(), _key_of(purpose)
        if key not in kept:
            kept[key] = make()
        return kept[key]

    def pop(self, *purpose: Any) -> Kept | None:
        """Remove and return what is kept for a purpose."""
        return self._own().pop(_key_of(purpose), None)

    def put(self, value: Kept, *purpose: Any) -> None:
        """Keep a value for a purpose."""
        self._own()[_key_of(purpose)] = value

    def pop_oldest(self, room: int = 1) -> Iterator[Kept]:
        """Remove and yield the oldest until one more fits into ``room``; by default all."""
        kept = self._own()
        while len(kept) >= room:
            yield kept.pop(next(iter(kept)))

    def _own(self) -> dict[tuple[Any, ...], Kept]:
        kept: dict[tuple[Any, ...], Kept] = world.process_state().setdefault(self, {})
        return kept


def _key_of(purpose: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return it with settings as pairs in order.

    >>> _key_of(("broker:9092", {"b": "2", "a": "1"}))
    ('broker:9092', (('a', '1'), ('b', '2')))
    """
    return tuple(tuple(sorted(part.items())) if isinstance(part, Mapping) else part for part in purpose)
