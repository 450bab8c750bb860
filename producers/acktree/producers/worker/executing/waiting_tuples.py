"""Queues the tuples of an AsyncBolt: in order, or those of one key one after the other.

Invariant: with an order by key, no tuple is taken while one of its topic and key is being executed, and those
of a key are taken in the order in which they were added. Pure.
"""

from collections import deque
from collections.abc import Iterator

from acktree.producers.tuples import Tuple

Key = tuple[str, bytes]


class WaitingTuples:
    """A queue of tuples; ``has_key_order`` says whether those of one key take turns.

    >>> from types import SimpleNamespace
    >>> a1, a2, b1 = (SimpleNamespace(topic="t", key=key) for key in (b"a", b"a", b"b"))
    >>> waiting = WaitingTuples(has_key_order=True)
    >>> for tup in (a1, a2, b1):
    ...     waiting.add(tup)
    >>> waiting.take() is a1, waiting.take() is b1, waiting.take()
    (True, True, None)
    >>> waiting.take(after=a1) is a2
    True
    """

    def __init__(self, *, has_key_order: bool) -> None:
        self._has_key_order = has_key_order
        self._queue: deque[Tuple] = deque()
        self._behind: dict[Key, deque[Tuple]] = {}
        """The tuples that wait for one of their key; there is an entry for each key that is executed."""

    def __len__(self) -> int:
        """Return how many tuples could be taken."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Tuple]:
        yield from self._queue
        for behind in self._behind.values():
            yield from behind

    def add(self, tup: Tuple) -> None:
        """Add a tuple; may be called by another thread."""
        self._queue.append(tup)

    def take(self, after: Tuple | None = None) -> Tuple | None:
        """Remove and return the next tuple; ``after`` is one that was taken and has ended."""
        if not self._has_key_order:
            return self._queue.popleft() if self._queue else None
        if after is not None and (key := _key_of(after)) is not None:
            if behind := self._behind[key]:
                return behind.popleft()
            del self._behind[key]
        while self._queue:
            tup = self._queue.popleft()
            if (key := _key_of(tup)) is None:
                return tup
            if key not in self._behind:
                self._behind[key] = deque()
                return tup
            self._behind[key].append(tup)
        return None

    def remove(self, tuples: set[Tuple]) -> list[Tuple]:
        """Remove and return those of the tuples that wait."""
        removed = [tup for tup in self if tup in tuples]
        for queue in (self._queue, *self._behind.values()):
            kept = [tup for tup in queue if tup not in tuples]
            queue.clear()
            queue.extend(kept)
        return removed


def _key_of(tup: Tuple) -> Key | None:
    return None if tup.key is None else (tup.topic, tup.key)
