"""A spout written in Python: what a user subclasses, and the emitter it is given.

Invariant: one root per message id; its init is the XOR of the consumer edges of all that one call of
``next_tuple`` emitted for it, and is handed to the packer once, after that call. Knows no Kafka.
"""

from collections.abc import Hashable
from typing import ClassVar

from acktree.producers.bolt import Context
from acktree.producers.collector import Counters, Produce, UserHeaders
from acktree.producers.edge_pool import EdgePool
from acktree.producers.errors import AlreadyPending, ReservedHeader
from acktree.producers.packing import InitPacker
from acktree.producers.targets import Targets
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import emitted_value, generation_of, root_id
from acktree.schemas.registry import History


class Spout:
    """A source of messages. All calls come from one thread."""

    name: ClassVar[str] = ""
    """The spout's name in the topology; may stay empty where it is the only one without topics."""

    def prepare(self, context: Context) -> None:
        """Open the source; called once."""

    def next_tuple(self, emitter: "SpoutEmitter") -> None:
        """Emit what is there, without waiting: nothing, one message, or a few."""
        raise NotImplementedError

    def ack(self, message_id: Hashable) -> None:
        """Take note that everything derived from a message is done."""

    def fail(self, message_id: Hashable) -> None:
        """Take note that a message failed or timed out; emit it again if it should be."""

    def cleanup(self) -> None:
        """Close the source; called once."""


class Pending:
    """Messages without a verdict: id by root, oldest first, with the time of their emission."""

    def __init__(self) -> None:
        self._by_root: dict[int, tuple[Hashable, float]] = {}
        self._ids: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._by_root)

    def add(self, root: int, message_id: Hashable, now_s: float) -> None:
        """Raises AlreadyPending."""
        if message_id in self._ids:
            raise AlreadyPending(f"message id {message_id!r} was emitted before and has no verdict yet")
        self._ids.add(message_id)
        self._by_root[root] = message_id, now_s

    def pop(self, root: int) -> Hashable | None:
        """Return the message of a root and forget it; None for a root that is not pending."""
        message_id, _ = self._by_root.pop(root, (None, 0.0))
        self._ids.discard(message_id)
        return message_id

    def older_than(self, time_s: float) -> list[int]:
        """Return the roots emitted before ``time_s``."""
        found = []
        for root, (_, emitted_s) in self._by_root.items():
            if emitted_s >= time_s:
                break
            found.append(root)
        return found


class SpoutEmitter:
    """What a spout emits with."""

    def __init__(
        self, spout: str, history: History, slot: int, run: int, packer: InitPacker, produce: Produce
    ) -> None:
        self.counters = Counters()
        self.pending = Pending()
        self.targets = Targets(spout, history)
        self.done_at_once: list[Hashable] = []
        self._history, self._slot, self._packer, self._produce = history, slot, packer, produce
        self._generation = generation_of(run, 0)
        self._next_sequence = 0
        self._take_edge = EdgePool().take
        self._now: dict[Hashable, tuple[int, int, int]] = {}
        self._now_s = 0.0

    def emit(
        self,
        value: bytes | str | None,
        message_id: Hashable | None = None,
        *,
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Emit a tuple; without a message id it is untracked: no tree, no verdict.

        One call of ``next_tuple`` may emit several tuples under one id: they are one tree.

        Raises:
            AlreadyPending: the id is that of an earlier call and has no verdict yet.
            WrongTopic, ReservedHeader: see there.
        """
        target = self.targets.find(topic)
        if headers and any(name == HEADER for name, _ in headers):
            raise ReservedHeader(f"the header {HEADER!r} is written by the library, leave it out")
        written: UserHeaders = headers or []
        if message_id is not None:
            version, root, before = self._root_of(message_id)
            edge = int.from_bytes(self._take_edge(), "little")
            header = target.head + encode_header(0, (Anchor(version, root, edge),))[3:]
            written = [*written, (HEADER, header)]
        self._produce(target.topic, value, key, written or None)
        if message_id is not None:
            self._now[message_id] = version, root, before ^ emitted_value(edge, target.hashes)
        self.counters.emitted += 1

    def _root_of(self, message_id: Hashable) -> tuple[int, int, int]:
        """Return (version, root, value so far) of a message, a new root for one not seen in this call."""
        found = self._now.get(message_id)
        if found is None:
            root = root_id(self._slot, self._generation, self._next_sequence)
            self.pending.add(root, message_id, self._now_s)
            self._next_sequence += 1
            found = self._now[message_id] = self._history.latest.version, root, 0
        return found

    def call(self, spout: Spout, now_s: float) -> int:
        """Call ``next_tuple``, hand in the inits of what it emitted, and return how many tuples that was."""
        self._now_s, before = now_s, self.counters.emitted
        spout.next_tuple(self)
        for message_id, (version, root, value) in self._now.items():
            if self._history.ackers(version):
                self._packer.add(version, root, value)
            else:
                self.pending.pop(root)
                self.done_at_once.append(message_id)
        self._now.clear()
        return self.counters.emitted - before
