"""A spout written in Python: what a user subclasses, and the emitter it is given.

Invariant: one root per message id; its init is the XOR of the consumer edges of all that one call of
``next_tuple`` emitted for it, and is handed to the packer once, after that call. Knows no Kafka.
"""

from collections.abc import Hashable
from itertools import takewhile
from typing import ClassVar, NamedTuple

from acktree.producers.bolt import Context
from acktree.producers.collector import Counters, UserHeaders
from acktree.producers.columns import Produce
from acktree.producers.edge_pool import EdgePool
from acktree.producers.errors import AlreadyPending, ReservedHeader
from acktree.producers.packing import InitPacker
from acktree.producers.targets import Targets
from acktree.schemas.codec import Cause
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import emitted_value, generation_of, root_id
from acktree.schemas.registry import History

Values = tuple[bytes | str | None, ...]
"""What was emitted under one message id, in order."""


class Failure(NamedTuple):
    """Why a message has to be emitted again: FAILED or TIMED_OUT, by which task and for what reason.

    ``task`` is BOLT@HOST:PROCESS and ``reason`` an exception's type and text; both are empty for a timeout.
    """

    cause: Cause
    task: str
    reason: str


class AnySpout:
    """A source of messages. All calls come from one thread."""

    name: ClassVar[str] = ""
    """The spout's name in the topology; may stay empty where it is the only one without topics."""

    def prepare(self, context: Context) -> None:
        """Open the source; called once."""

    def next_tuple(self, emitter: "SpoutEmitter") -> None:
        """Emit what is there, without waiting: nothing, one message, or a few."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Close the source; called once."""

    def tell_acked(self, message: "Message") -> None:
        """Call ``ack`` as this kind of spout has it."""
        raise NotImplementedError

    def tell_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail`` as this kind of spout has it."""
        raise NotImplementedError


class Spout(AnySpout):
    """A source that keeps by itself what it may have to emit again."""

    def ack(self, message_id: Hashable) -> None:
        """Take note that everything derived from a message is done."""

    def fail(self, message_id: Hashable, failure: Failure) -> None:
        """Take note that a message failed or timed out; emit it again if it should be."""

    def tell_acked(self, message: "Message") -> None:
        """Call ``ack``."""
        self.ack(message.id)

    def tell_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail``."""
        self.fail(message.id, failure)


class ValueSpout(AnySpout):
    """A source that is told what it emitted with each verdict (JStorm's IAckValueSpout, IFailValueSpout).

    The values of pending messages are kept in memory: ``max_pending`` messages at most, and no new one is
    asked for above ``max_kept_bytes``.
    """

    max_kept_bytes: ClassVar[int] = 64 << 20
    """So many bytes of values without a verdict stop the asking for new ones."""

    def ack(self, message_id: Hashable, values: Values) -> None:
        """Take note that everything derived from a message is done; ``values`` as they were emitted."""

    def fail(self, message_id: Hashable, values: Values, failure: Failure) -> None:
        """Take note that a message failed or timed out; emit it again if it should be."""

    def tell_acked(self, message: "Message") -> None:
        """Call ``ack`` with the values."""
        self.ack(message.id, tuple(message.values))

    def tell_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail`` with the values."""
        self.fail(message.id, tuple(message.values), failure)


class Message:
    """A message without a verdict; ``values`` stays empty where the spout does not ask for them."""

    __slots__ = ("emitted_s", "id", "values")

    def __init__(self, id: Hashable, emitted_s: float) -> None:
        self.id, self.emitted_s = id, emitted_s
        self.values: list[bytes | str | None] = []


class Pending:
    """Messages without a verdict by root, oldest first."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._by_root: dict[int, Message] = {}
        self._ids: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._by_root)

    def add(self, root: int, message_id: Hashable, now_s: float) -> None:
        """Raises AlreadyPending."""
        if message_id in self._ids:
            raise AlreadyPending(f"message id {message_id!r} was emitted before and has no verdict yet")
        self._ids.add(message_id)
        self._by_root[root] = Message(message_id, now_s)

    def keep(self, root: int, value: bytes | str | None) -> None:
        """Keep a value until its message has a verdict."""
        self._by_root[root].values.append(value)
        self.kept_bytes += len(value or "")

    def pop(self, root: int) -> Message | None:
        """Return the message of a root and forget it; None for a root that is not pending."""
        message = self._by_root.pop(root, None)
        if message is not None:
            self._ids.discard(message.id)
            self.kept_bytes -= sum(len(value or "") for value in message.values)
        return message

    def older_than(self, time_s: float) -> list[int]:
        """Return the roots emitted before ``time_s``."""
        return [root for root, _ in takewhile(lambda each: each[1].emitted_s < time_s, self._by_root.items())]


class SpoutEmitter:
    """What a spout emits with."""

    def __init__(
        self, spout: str, history: History, slot: int, run: int, packer: InitPacker, produce: Produce
    ) -> None:
        self.counters = Counters()
        self.pending = Pending()
        self.targets = Targets(spout, history)
        self.done_at_once: list[Message] = []
        self.keeps_values = False
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
        try:
            self._produce(target.topic, value, key, written or None)
        except BaseException:
            if message_id is not None and before is None:
                self.pending.pop(root)
            raise
        self.counters.emitted += 1
        if message_id is not None:
            self._now[message_id] = version, root, (before or 0) ^ emitted_value(edge, target.hashes)
            if self.keeps_values:
                self.pending.keep(root, value)

    def _root_of(self, message_id: Hashable) -> tuple[int, int, int | None]:
        """Return (version, root, value so far) of a message; a new root without value in its first call."""
        found = self._now.get(message_id)
        if found is not None:
            return found
        root = root_id(self._slot, self._generation, self._next_sequence)
        self.pending.add(root, message_id, self._now_s)
        self._next_sequence += 1
        return self._history.latest.version, root, None

    def call(self, spout: AnySpout, now_s: float) -> int:
        """Call ``next_tuple``, hand in the inits of what it emitted, and return how many tuples that was."""
        self._now_s, before = now_s, self.counters.emitted
        spout.next_tuple(self)
        for version, root, value in self._now.values():
            if self._history.ackers(version):
                self._packer.add(version, root, value)
            else:
                message = self.pending.pop(root)
                assert message is not None, root
                self.done_at_once.append(message)
        self._now.clear()
        return self.counters.emitted - before
