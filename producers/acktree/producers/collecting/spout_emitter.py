"""Emits the messages of a spout written in Python, and numbers them.

Invariant: one root per message id; its init is the XOR of the consumer edges of everything that one call of
``next_tuple`` emitted for it. It is packed once, when that call has returned and all its tuples are in the
log: otherwise a tree that nobody reads would be done before its tuples are durable. Does not know Kafka.
"""

from collections.abc import Callable, Hashable

from acktree.core import world
from acktree.core.topology.registry import History
from acktree.producers.collecting.arithmetic.edge_pool import EdgePool
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.collecting.arithmetic.pending import Emitted, Message, Pending, Tree
from acktree.producers.collecting.arithmetic.targets import Target, Targets
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.collecting.counters import Counters
from acktree.producers.collecting.payloads import check_headers, check_payload
from acktree.producers.columns import NO_TIMESTAMP, ProduceConfirmed
from acktree.producers.errors import WrongThread
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import MAX_OFFSET, emitted_value, generation_of, root_id


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
    """Emits the messages of a spout."""

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
            WrongThread: the calling thread is not the one that calls ``next_tuple``.
            WrongTopic, NotSerializable, ReservedHeader: see each error.
        """
        if self._thread_id() != self._thread:
            raise WrongThread(
                f"cannot emit in thread {world.thread_name()!r}: a spout may emit only in the thread that "
                "calls next_tuple; put data from other threads into a queue.Queue, and let next_tuple "
                "empty it"
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
        """Emit a message that is not in flight again, as a new tree.

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

    def call(self, next_tuple: "Callable[[SpoutEmitter], None]", now_s: float) -> int:
        """Call a spout's ``next_tuple``, and return how many tuples it emitted."""
        self._now_s, self._thread, before = now_s, self._thread_id(), self.counters.emitted
        next_tuple(self)
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
