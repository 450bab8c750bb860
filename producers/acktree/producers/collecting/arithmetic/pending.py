"""The messages of a Python spout that are not finished, and their trees until these are in the log.

Invariant: a message id is pending until its message is finished, whether it is in flight or waits to be
emitted again. Does not know Kafka.
"""

from collections.abc import Hashable
from itertools import takewhile
from typing import NamedTuple

from acktree.producers.errors import AlreadyPending

Headers = tuple[tuple[str, bytes | str | None], ...]


class Emitted(NamedTuple):
    """One tuple as it was emitted; ``timestamp_ms`` is NO_TIMESTAMP where the spout gave none."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None
    headers: Headers | None
    timestamp_ms: int

    @property
    def size(self) -> int:
        """Bytes, or characters of text, of value, key and headers."""
        size = len(self.value or "") + len(self.key or "")
        for _, text in self.headers or ():
            size += len(text or "")
        return size


class Message:
    """A message of a spout: its ``id``, and the ``tuples`` that were emitted under it, in order.

    ``failures`` counts emissions that failed, ``attempts`` those of them that use up an attempt, and
    ``first_failed_s`` is when the first of them did; the worker counts them for a spout with ``retry``.
    ``size`` is what its tuples take, ``first_s`` when it was emitted for the first time.
    """

    __slots__ = ("attempts", "emitted_s", "failures", "first_failed_s", "first_s", "id", "size", "tuples")

    def __init__(self, id: Hashable, emitted_s: float) -> None:
        self.id, self.emitted_s, self.first_s = id, emitted_s, emitted_s
        self.tuples: list[Emitted] = []
        self.attempts = self.failures = self.size = 0
        self.first_failed_s: float | None = None

    @property
    def values(self) -> tuple[bytes | str | None, ...]:
        """The values, in the order of their emission."""
        return tuple(emitted.value for emitted in self.tuples)


class Pending:
    """Pending messages: those in flight by root, oldest first, and those that wait."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._by_root: dict[int, Message] = {}
        self._ids: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def first_emitted_s(self) -> float | None:
        """When the oldest message was emitted for the first time, None if there is none."""
        return next(iter(self._ids.values()), None)

    def add(self, root: int, message_id: Hashable, now_s: float) -> None:
        """Add a message. Raises AlreadyPending."""
        if message_id in self._ids:
            raise AlreadyPending(
                f"message id {message_id!r} is still pending; emit it again after its result"
            )
        self._ids[message_id] = now_s
        self._by_root[root] = Message(message_id, now_s)

    def add_again(self, root: int, message: Message, now_s: float) -> None:
        """Add a message that waited, under a new root."""
        assert message.id in self._ids, "a message that waits is pending"
        message.emitted_s = now_s
        self._by_root[root] = message

    def keep(self, root: int, emitted: Emitted) -> None:
        """Keep a tuple until its message is no longer pending."""
        message, size = self._by_root[root], emitted.size
        message.tuples.append(emitted)
        message.size += size
        self.kept_bytes += size

    def take(self, root: int) -> Message | None:
        """Return the message of a root, which then waits; None for a root that is not in flight."""
        return self._by_root.pop(root, None)

    def finish(self, message: Message) -> None:
        """Remove a message that waits."""
        self._ids.pop(message.id, None)
        self.kept_bytes -= message.size

    def pop(self, root: int) -> Message | None:
        """Remove and return the message of a root; None for a root that is not in flight."""
        message = self.take(root)
        if message is not None:
            self.finish(message)
        return message

    @property
    def in_flight(self) -> int:
        """How many messages are in flight."""
        return len(self._by_root)

    def older_than(self, time_s: float) -> list[int]:
        """Return the roots emitted before ``time_s``."""
        return [root for root, _ in takewhile(lambda item: item[1].emitted_s < time_s, self._by_root.items())]


class Tree:
    """What one call of ``next_tuple`` emitted under one message id, until all of it is in the log."""

    __slots__ = ("_confirmed", "_open", "root", "value", "version")

    def __init__(self, version: int, root: int, confirmed: "list[Tree]") -> None:
        """The tree joins ``confirmed`` when its call has returned and all its tuples are in the log."""
        self.version, self.root, self.value = version, root, 0
        self._confirmed = confirmed
        self._open = 1  # the call itself

    def add(self, value: int) -> None:
        """Add a tuple that is not confirmed yet; ``value`` is the XOR of its consumer edges."""
        self.value ^= value
        self._open += 1

    def remove(self, value: int) -> None:
        """Remove a tuple that could not be produced."""
        self.value ^= value
        self._open -= 1

    def confirm(self) -> None:
        """Confirm that a tuple is in the log, or that the call has returned."""
        self._open -= 1
        if not self._open:
            self._confirmed.append(self)
