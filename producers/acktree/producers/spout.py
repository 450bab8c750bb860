"""A spout written in Python: the classes to subclass, and the emitter they are given.

Invariant: one root per message id; its init is the XOR of the consumer edges of everything that one call of
``next_tuple`` emitted for it. It is packed once, when that call has returned and all its tuples are in the
log: otherwise a tree that nobody reads would be done before its tuples are durable. Does not know Kafka.
"""

from collections.abc import Callable, Hashable
from itertools import takewhile
from typing import ClassVar, NamedTuple

from acktree.producers.bolt import Context
from acktree.producers.collector import UserHeaders
from acktree.producers.errors import AlreadyPending
from acktree.producers.kafka.packing import InitPacker
from acktree.producers.native.columns import NO_TIMESTAMP, ProduceConfirmed
from acktree.producers.payloads import check_headers, check_payload
from acktree.producers.worker.counters import Counters
from acktree.producers.worker.edge_pool import EdgePool
from acktree.producers.worker.targets import Targets
from acktree.schemas import control_records
from acktree.schemas.control_records import NEVER, Cause
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import MAX_OFFSET, emitted_value, generation_of, root_id
from acktree.schemas.registry import History

Values = tuple[bytes | str | None, ...]
"""What was emitted under one message id, in order."""


class _Why(NamedTuple):
    cause: Cause
    task: str
    reason: str


class Failure(_Why):
    """Why a message was not processed: FAILED or TIMED_OUT, in which task and for what reason.

    ``task`` is BOLT@HOST:PROCESS and ``reason`` an exception's type and text; both are empty for a timeout.
    As a tuple it has these three. Beside them ``retry`` is False where a bolt says that the message will
    never be processed, and ``retry_after_s`` is the delay that a bolt asks for, None if it asks for none.
    """

    retry: bool = True
    retry_after_s: float | None = None

    @classmethod
    def of(cls, failed: control_records.Failure) -> "Failure":
        """Return what a control record says of a failed root."""
        made = cls(failed.cause, failed.task, failed.reason)
        made.retry = failed.retry_after_ms != NEVER
        made.retry_after_s = failed.retry_after_ms / 1000 if failed.retry_after_ms >= 0 else None
        return made


class AnySpout:
    """A source of messages. All calls come from one thread."""

    name: ClassVar[str] = ""
    """The spout's name in the topology; may be empty if it is the only spout without topics."""

    def prepare(self, context: Context) -> None:
        """Open the source; called once."""

    def next_tuple(self, emitter: "SpoutEmitter") -> None:
        """Emit what is available without waiting: nothing, one message, or a few."""
        raise NotImplementedError

    def deactivate(self) -> None:
        """Called when an operator has paused the spout: ``next_tuple`` is not called until ``activate``.

        Acks and fails of what is pending still arrive.
        """

    def activate(self) -> None:
        """Called when the spout goes on after ``deactivate``."""

    def cleanup(self) -> None:
        """Close the source; called once."""

    def notify_acked(self, message: "Message") -> None:
        """Call ``ack`` with the arguments of this kind of spout."""
        raise NotImplementedError

    def notify_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail`` with the arguments of this kind of spout."""
        raise NotImplementedError


class Spout(AnySpout):
    """A source that itself keeps what it may have to emit again."""

    def ack(self, message_id: Hashable) -> None:
        """Handle the ack of a message: everything derived from it is done."""

    def fail(self, message_id: Hashable, failure: Failure) -> None:
        """Handle the failure or timeout of a message, for instance by emitting it again."""

    def notify_acked(self, message: "Message") -> None:
        """Call ``ack``."""
        self.ack(message.id)

    def notify_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail``."""
        self.fail(message.id, failure)


class ValueSpout(AnySpout):
    """A source that gets the emitted values with acks and fails (JStorm's IAckValueSpout, IFailValueSpout).

    The values of pending messages are kept in memory: of at most ``max_pending`` messages, and ``next_tuple``
    is not called above ``max_kept_bytes``.
    """

    max_kept_bytes: ClassVar[int] = 64 << 20
    """At this many bytes of pending values, ``next_tuple`` is no longer called."""

    def ack(self, message_id: Hashable, values: Values) -> None:
        """Handle the ack of a message: everything derived from it is done; ``values`` are as emitted."""

    def fail(self, message_id: Hashable, values: Values, failure: Failure) -> None:
        """Handle the failure or timeout of a message, for instance by emitting it again."""

    def notify_acked(self, message: "Message") -> None:
        """Call ``ack`` with the values."""
        self.ack(message.id, tuple(message.values))

    def notify_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail`` with the values."""
        self.fail(message.id, tuple(message.values), failure)


class Message:
    """A pending message; ``values`` stays empty unless the spout wants them back."""

    __slots__ = ("emitted_s", "id", "values")

    def __init__(self, id: Hashable, emitted_s: float) -> None:
        self.id, self.emitted_s = id, emitted_s
        self.values: list[bytes | str | None] = []


class Pending:
    """Pending messages by root, oldest first."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._by_root: dict[int, Message] = {}
        self._ids: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._by_root)

    def add(self, root: int, message_id: Hashable, now_s: float) -> None:
        """Add a message. Raises AlreadyPending."""
        if message_id in self._ids:
            raise AlreadyPending(
                f"message id {message_id!r} is still pending; emit it again after its result"
            )
        self._ids.add(message_id)
        self._by_root[root] = Message(message_id, now_s)

    def keep(self, root: int, value: bytes | str | None) -> None:
        """Keep a value until its message is no longer pending."""
        self._by_root[root].values.append(value)
        self.kept_bytes += len(value or "")

    def pop(self, root: int) -> Message | None:
        """Remove and return the message of a root; None for a root that is not pending."""
        message = self._by_root.pop(root, None)
        if message is not None:
            self._ids.discard(message.id)
            self.kept_bytes -= sum(len(value or "") for value in message.values)
        return message

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


class Sequences:
    """Message numbers, which take the place of the offset in root ids.

    Runs wrap around after 255 starts, so each start continues after the numbers that earlier ones may have
    used: no number is used before it is durably reserved.
    """

    MAX_START = (MAX_OFFSET + 1) // 2
    """A start above it begins at 0 again: that many messages later, no tree of the first ones is open."""

    def __init__(self, before: int, reserve: Callable[[], int]) -> None:
        """Continue at ``before``; ``reserve`` reserves more numbers and returns where they end."""
        self.next = self._end = before if before < self.MAX_START else 0
        self._reserve = reserve

    def take(self) -> int:
        """Return the next number. Raises what ``reserve`` raises."""
        if self.next >= self._end:
            self.extend(self._reserve())
        assert self.next < self._end, "no number is used before it is durably reserved"
        self.next += 1
        return self.next - 1

    def extend(self, end: int) -> None:
        """Allow the numbers below ``end``, which are durably reserved."""
        self._end = end


class SpoutEmitter:
    """What a spout emits with."""

    def __init__(
        self,
        spout: str,
        history: History,
        slot: int,
        run: int,
        packer: InitPacker,
        produce: ProduceConfirmed,
        sequences: Sequences,
    ) -> None:
        self.counters = Counters()
        self.pending = Pending()
        self.targets = Targets(spout, history)
        self.keeps_values = False
        self._history, self._slot, self.packer, self._produce = history, slot, packer, produce
        self._generation = generation_of(run, 0)
        self.sequences = sequences
        self._take_edge = EdgePool().take
        self._by_message: dict[Hashable, Tree] = {}
        self._confirmed: list[Tree] = []
        self._done_messages: list[Message] = []
        self._now_s = 0.0

    def emit(
        self,
        value: bytes | str | None,
        message_id: Hashable | None = None,
        *,
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a tuple; without a message id it is untracked: no tree, no ack or fail.

        ``timestamp_ms`` is the record's timestamp, the time of the call if omitted.

        One call of ``next_tuple`` may emit several tuples under one id: they are one tree.

        Raises:
            AlreadyPending: the id of an earlier call is still pending.
            WrongTopic, NotSerializable, ReservedHeader: see there.
        """
        target = self.targets.find(topic)
        check_payload(value, key, timestamp_ms)
        if headers is not None:
            check_headers(headers)
        stamp_ms = NO_TIMESTAMP if timestamp_ms is None else timestamp_ms
        if message_id is None:
            self._produce(target.topic, value, key, list(headers) if headers else None, stamp_ms, None)
            self.counters.emitted += 1
            return
        tree = self._tree_of(message_id)
        edge = int.from_bytes(self._take_edge(), "little")
        header = target.head + encode_header(0, (Anchor(tree.version, tree.root, edge),))[3:]
        tree.add(value_xor := emitted_value(edge, target.hashes))
        try:
            written = [*(headers or ()), (HEADER, header)]
            self._produce(target.topic, value, key, written, stamp_ms, tree.confirm)
        except BaseException:
            tree.remove(value_xor)
            if message_id not in self._by_message:
                self.pending.pop(tree.root)
            raise
        self._by_message[message_id] = tree
        self.counters.emitted += 1
        if self.keeps_values:
            self.pending.keep(tree.root, value)

    def _tree_of(self, message_id: Hashable) -> Tree:
        """Return the tree of a message id, a new one for the first emission under it."""
        found = self._by_message.get(message_id)
        if found is not None:
            return found
        root = root_id(self._slot, self._generation, self.sequences.take())
        self.pending.add(root, message_id, self._now_s)
        return Tree(self._history.latest.version, root, self._confirmed)

    def call(self, spout: AnySpout, now_s: float) -> int:
        """Call ``next_tuple``, and return how many tuples it emitted."""
        self._now_s, before = now_s, self.counters.emitted
        spout.next_tuple(self)
        for tree in self._by_message.values():
            tree.confirm()
        self._by_message.clear()
        return self.counters.emitted - before

    def pack_inits(self) -> None:
        """Pack the inits of all trees that are in the log; without ackers these are done."""
        confirmed, self._confirmed[:] = list(self._confirmed), []
        for tree in confirmed:
            if self._history.ackers(tree.version):
                self.packer.add(tree.version, tree.root, tree.value)
            elif (message := self.pending.pop(tree.root)) is not None:
                self._done_messages.append(message)

    def pop_done(self) -> list[Message]:
        """Return the messages that became done without an acker, each once."""
        done, self._done_messages = self._done_messages, []
        return done
