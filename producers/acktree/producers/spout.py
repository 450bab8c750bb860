"""A spout written in Python: what a user subclasses, and the emitter it is given.

Invariant: one root per message id; its init is the XOR of the consumer edges of all that one call of
``next_tuple`` emitted for it. It is handed to the packer once, when that call has ended and all of it is in
the log: a tree that nobody reads would be done before its tuples are durable. Knows no Kafka.
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
from acktree.schemas.codec import Cause
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import MAX_OFFSET, emitted_value, generation_of, root_id
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


class Tree:
    """What one call of ``next_tuple`` emitted under one message id, until all of it is in the log."""

    __slots__ = ("_confirmed", "_open", "root", "value", "version")

    def __init__(self, version: int, root: int, confirmed: "list[Tree]") -> None:
        """The tree joins ``confirmed`` when its call has ended and everything of it is in the log."""
        self.version, self.root, self.value = version, root, 0
        self._confirmed = confirmed
        self._open = 1  # the call itself

    def add(self, value: int) -> None:
        """Count in a tuple that is to be confirmed; ``value`` is the XOR of its consumer edges."""
        self.value ^= value
        self._open += 1

    def take_back(self, value: int) -> None:
        """Leave out a tuple that could not be produced."""
        self.value ^= value
        self._open -= 1

    def confirm(self) -> None:
        """Take note that a tuple is in the log, or that the call has ended."""
        self._open -= 1
        if not self._open:
            self._confirmed.append(self)


class Sequences:
    """Numbers of messages, which stand where other root ids have an offset.

    Runs go round after 255 starts, so a start goes on where the one before may have been: none is given out
    that is not durably reserved.
    """

    MOST = (MAX_OFFSET + 1) // 2
    """A start above it begins at 0 again: so many messages later nothing is left of those."""

    def __init__(self, before: int, reserve: Callable[[], None]) -> None:
        """Go on at ``before``; ``reserve`` makes more numbers ours and says so with ``extend``."""
        self.next = self._end = before if before < self.MOST else 0
        self._reserve = reserve

    def take(self) -> int:
        """Return the next number. Raises what ``reserve`` raises."""
        if self.next >= self._end:
            self._reserve()
        self.next += 1
        return self.next - 1

    def extend(self, end: int) -> None:
        """Take note that all numbers below ``end`` are durably ours."""
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
        self._now: dict[Hashable, Tree] = {}
        self._confirmed: list[Tree] = []
        self._done: list[Message] = []
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
        """Emit a tuple; without a message id it is untracked: no tree, no verdict.

        ``timestamp_ms`` is the record's timestamp, the time of the call if left out.

        One call of ``next_tuple`` may emit several tuples under one id: they are one tree.

        Raises:
            AlreadyPending: the id is that of an earlier call and has no verdict yet.
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
        tree.add(own := emitted_value(edge, target.hashes))
        try:
            written = [*(headers or ()), (HEADER, header)]
            self._produce(target.topic, value, key, written, stamp_ms, tree.confirm)
        except BaseException:
            tree.take_back(own)
            if message_id not in self._now:
                self.pending.pop(tree.root)
            raise
        self._now[message_id] = tree
        self.counters.emitted += 1
        if self.keeps_values:
            self.pending.keep(tree.root, value)

    def _tree_of(self, message_id: Hashable) -> Tree:
        """Return the tree of a message, a new one in the first emission under its id."""
        found = self._now.get(message_id)
        if found is not None:
            return found
        root = root_id(self._slot, self._generation, self.sequences.take())
        self.pending.add(root, message_id, self._now_s)
        return Tree(self._history.latest.version, root, self._confirmed)

    def call(self, spout: AnySpout, now_s: float) -> int:
        """Call ``next_tuple``, and return how many tuples it emitted."""
        self._now_s, before = now_s, self.counters.emitted
        spout.next_tuple(self)
        for tree in self._now.values():
            tree.confirm()
        self._now.clear()
        return self.counters.emitted - before

    def hand_in(self) -> None:
        """Hand in the inits of all trees that are in the log; without ackers they are done."""
        confirmed, self._confirmed[:] = list(self._confirmed), []
        for tree in confirmed:
            if self._history.ackers(tree.version):
                self.packer.add(tree.version, tree.root, tree.value)
            elif (message := self.pending.pop(tree.root)) is not None:
                self._done.append(message)

    def take_done(self) -> list[Message]:
        """Return the messages that are done without an acker, each once."""
        done, self._done = self._done, []
        return done
