"""A spout written in Python: the classes to subclass, and the emitter they are given.

Invariant: one root per message id; its init is the XOR of the consumer edges of everything that one call of
``next_tuple`` emitted for it. It is packed once, when that call has returned and all its tuples are in the
log: otherwise a tree that nobody reads would be done before its tuples are durable. Does not know Kafka.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from acktree.producers.bolt import Context
from acktree.producers.collector import UserHeaders
from acktree.producers.errors import WrongThread
from acktree.producers.kafka.packing import InitPacker
from acktree.producers.native.columns import NO_TIMESTAMP, ProduceConfirmed
from acktree.producers.payloads import check_headers, check_payload
from acktree.producers.pending import Emitted, Message, Pending, Tree
from acktree.producers.worker.counters import Counters
from acktree.producers.worker.edge_pool import EdgePool
from acktree.producers.worker.targets import Target, Targets
from acktree.schemas import control_records, world
from acktree.schemas.control_records import NEVER, Cause
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import MAX_OFFSET, emitted_value, generation_of, root_id
from acktree.schemas.registry import History

Values = tuple[bytes | str | None, ...]
"""What was emitted under one message id, in order."""
Retry = Callable[[int, str], float | None]
"""Of a failed attempt, counted from 1, and its reason: the seconds until the next one, None to give up."""


@dataclass(frozen=True, slots=True)
class SpoutContext(Context):
    """Where a spout runs: as which of its tasks, counted from 0, and of how many; ``bolt`` is its name."""

    task_index: int
    tasks: int


class _Why(NamedTuple):
    cause: Cause
    task: str
    reason: str


class Failure(_Why):
    """Why a message was not processed: FAILED or TIMED_OUT, in which task and for what reason.

    ``task`` is BOLT@HOST:PROCESS and ``reason`` an exception's type and text; both are empty for a timeout.
    As a tuple it has these three. Beside them ``retry`` is False where a bolt says that the message will
    never be processed, and ``retry_after_s`` is the delay that a bolt asks for, None if it asks for none.
    ``attempts`` is how many attempts counted as failed, where the worker counts them. ``failed_tuple`` has
    the coordinates of the tuple that failed and a stack trace, None where they are not known.
    """

    retry: bool = True
    retry_after_s: float | None = None
    attempts: int = 0
    failed_tuple: control_records.FailedTuple | None = None

    @classmethod
    def of(cls, failed: control_records.Failure) -> "Failure":
        """Return what a control record says of a failed root."""
        made = cls(failed.cause, failed.task, failed.reason)
        made.retry = failed.retry_after_ms != NEVER
        made.retry_after_s = failed.retry_after_ms / 1000 if failed.retry_after_ms >= 0 else None
        made.failed_tuple = failed.failed_tuple
        return made

    def without_tuple(self) -> "Failure":
        """Return a failure that does not say which tuple failed, nor where its stack was."""
        made = Failure(*self)
        made.retry, made.retry_after_s, made.attempts = self.retry, self.retry_after_s, self.attempts
        return made

    def given_up(self, attempts: int) -> "Failure":
        """Return the last failure of a message that is given up; the cause is REJECTED if a bolt says so."""
        made = Failure(self.cause if self.retry else Cause.REJECTED, self.task, self.reason)
        made.retry, made.attempts, made.failed_tuple = False, attempts, self.failed_tuple
        return made


class AnySpout:
    """A source of messages. All calls come from one thread."""

    name: ClassVar[str] = ""
    """The spout's name in the topology; may be empty if it is the only spout without topics."""

    retry: ClassVar[bool | Retry] = False
    """Whether the worker emits a failed message again: after the back-off of the spout's table, up to its
    ``max_attempts``, or after what a function (attempt, reason) of yours returns, None to give up. It then
    calls ``gave_up`` instead of ``fail``, once the message is on the dead-letter topic."""

    max_kept_bytes: ClassVar[int] = 64 << 20
    """At this many bytes of kept messages ``next_tuple`` is no longer called; with ``retry``, or as a
    ValueSpout."""

    def prepare(self, context: SpoutContext) -> None:
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

    def notify_attempt_failed(self, message: "Message", failure: Failure) -> None:
        """Called with ``retry`` when an attempt has failed, before the worker decides what follows."""

    def notify_gave_up(self, message: "Message", failure: Failure) -> None:
        """Call ``gave_up`` with the arguments of this kind of spout."""
        raise NotImplementedError


class Spout(AnySpout):
    """A source that itself keeps what it may have to emit again."""

    def ack(self, message_id: Hashable) -> None:
        """Handle the ack of a message: everything derived from it is done."""

    def fail(self, message_id: Hashable, failure: Failure) -> None:
        """Handle the failure or timeout of a message, for instance by emitting it again."""

    def gave_up(self, message_id: Hashable, failure: Failure) -> None:
        """Handle the end of a message that is now on the dead-letter topic; only with ``retry``."""

    def notify_acked(self, message: "Message") -> None:
        """Call ``ack``."""
        self.ack(message.id)

    def notify_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail``."""
        self.fail(message.id, failure)

    def notify_gave_up(self, message: "Message", failure: Failure) -> None:
        """Call ``gave_up``."""
        self.gave_up(message.id, failure)


class ValueSpout(AnySpout):
    """A source that gets the emitted values with acks and fails (JStorm's IAckValueSpout, IFailValueSpout).

    The values of pending messages are kept in memory: of at most ``max_pending`` messages, and ``next_tuple``
    is not called above ``max_kept_bytes``.
    """

    def ack(self, message_id: Hashable, values: Values) -> None:
        """Handle the ack of a message: everything derived from it is done; ``values`` are as emitted."""

    def fail(self, message_id: Hashable, values: Values, failure: Failure) -> None:
        """Handle the failure or timeout of a message, for instance by emitting it again."""

    def gave_up(self, message_id: Hashable, values: Values, failure: Failure) -> None:
        """Handle the end of a message that is now on the dead-letter topic; only with ``retry``."""

    def notify_acked(self, message: "Message") -> None:
        """Call ``ack`` with the values."""
        self.ack(message.id, message.values)

    def notify_failed(self, message: "Message", failure: Failure) -> None:
        """Call ``fail`` with the values."""
        self.fail(message.id, message.values, failure)

    def notify_gave_up(self, message: "Message", failure: Failure) -> None:
        """Call ``gave_up`` with the values."""
        self.gave_up(message.id, message.values, failure)


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
        self.keeps_tuples = False
        """Whether messages are kept as emitted until they are finished."""
        self._history, self._slot, self.packer, self._produce = history, slot, packer, produce
        self._generation = generation_of(run, 0)
        self.sequences = sequences
        self._take_edge = EdgePool().take
        self._by_message: dict[Hashable, Tree] = {}
        self._confirmed: list[Tree] = []
        self._done_messages: list[Message] = []
        self._now_s = 0.0
        self._thread_id = world.current().thread_id
        self._thread = world.thread_id()
        self.newest_roots: list[int] = []
        """Those of the last call of ``next_tuple``, or the one of the last message that was emitted again."""

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
            WrongThread: it is called by another thread than ``next_tuple``.
            WrongTopic, NotSerializable, ReservedHeader: see there.
        """
        if self._thread_id() != self._thread:
            raise WrongThread(
                f"cannot emit in thread {world.thread_name()!r}: a spout emits only in the thread that calls "
                "next_tuple; give what comes in other threads to a queue.Queue, and let next_tuple empty it"
            )
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
        try:
            self._emit_in(tree, target, value, key, headers, stamp_ms)
        except BaseException:
            if message_id not in self._by_message:
                self.pending.pop(tree.root)
            raise
        self._by_message[message_id] = tree
        if self.keeps_tuples:
            kept = tuple(headers) if headers else None
            self.pending.keep(tree.root, Emitted(target.topic, value, key, kept, stamp_ms))

    def _emit_in(
        self,
        tree: Tree,
        target: Target,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        stamp_ms: int,
    ) -> None:
        """Produce one tuple of a tree; if it cannot be produced, the tree is as before."""
        edge = int.from_bytes(self._take_edge(), "little")
        header = target.head + encode_header(0, (Anchor(tree.version, tree.root, edge),))[3:]
        tree.add(value_xor := emitted_value(edge, target.hashes))
        try:
            self._produce(
                target.topic, value, key, [*(headers or ()), (HEADER, header)], stamp_ms, tree.confirm
            )
        except BaseException:
            tree.remove(value_xor)
            raise
        self.counters.emitted += 1

    def emit_again(self, message: Message, now_s: float) -> None:
        """Emit a message that is not in flight once more, as a tree of its own.

        Raises:
            WrongTopic, Unwritable: a tuple of it can no longer be emitted; the message is not in flight.
        """
        targets = [self.targets.find(emitted.topic) for emitted in message.tuples]
        root = root_id(self._slot, self._generation, self.sequences.take())
        self.pending.add_again(root, message, now_s)
        tree = Tree(self._history.latest.version, root, self._confirmed)
        try:
            for target, each in zip(targets, message.tuples, strict=True):
                self._emit_in(tree, target, each.value, each.key, each.headers, each.timestamp_ms)
        except BaseException:
            self.pending.take(root)
            raise
        self.newest_roots = [root]
        tree.confirm()

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
        self._now_s, self._thread, before = now_s, self._thread_id(), self.counters.emitted
        spout.next_tuple(self)
        self.newest_roots = [tree.root for tree in self._by_message.values()]
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
