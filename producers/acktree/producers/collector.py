"""The collector: emits children, acks, fails, and keeps the arithmetic of the trees.

Invariant: an input tuple's ack is its own consumer edges XOR what was emitted for its roots, handed to the
packer whole, in one flush, and once. What a tuple owes for its children waits at the tuple until its ack. A
tuple of which a child was not sent is never acked. Belongs to one thread. Knows no Kafka: ``produce`` takes
(topic, value, key, headers).
"""

import logging
from collections.abc import Iterable
from functools import partial
from threading import get_ident
from time import monotonic
from typing import NoReturn

from acktree.producers.errors import (
    AckedTwice,
    EmitAfterAck,
    Misuse,
    NotInHand,
    Unwritable,
    reason_of,
)
from acktree.producers.kafka.packing import AckPacker
from acktree.producers.native.columns import (
    NO_TIMESTAMP,
    Pairs,
    Produce,
    ProduceRows,
    Rows,
    Unwritten,
    produce_each,
)
from acktree.producers.origins import Origins
from acktree.producers.payloads import check_headers, check_payload
from acktree.producers.tuples import ACKED, DROPPED, FAILED, IN_HAND, SourceOrigin, Tuple, is_over
from acktree.producers.worker.ack_sums import HEAD_BYTES, AckSums, owe
from acktree.producers.worker.counters import Counters
from acktree.producers.worker.edge_pool import EdgePool
from acktree.producers.worker.faults import Faults
from acktree.producers.worker.targets import Target, Targets
from acktree.schemas.header import HEADER, Anchor, encode_header
from acktree.schemas.ids import emitted_value
from acktree.schemas.registry import History

UserHeaders = Pairs

_ROOT_BYTES, _SINGLE_BYTES = 10, 18

log = logging.getLogger("acktree.bolt")


class Collector:
    """What a bolt emits and acks through."""

    def __init__(
        self,
        bolt: str,
        history: History,
        packer: AckPacker,
        produce: Produce,
        edges: EdgePool | None = None,
        produce_rows: ProduceRows | None = None,
    ) -> None:
        self.counters = Counters()
        self.faults = Faults(self, self.counters, self._take_back)
        self.targets = Targets(bolt, history)
        self.sums = AckSums(bolt, packer)
        self._packer = packer
        self._produce = produce
        self._produce_rows = produce_rows or partial(produce_each, produce)
        self._take_edge = (edges or EdgePool()).take
        self._origins = Origins(history)
        self._broken: Exception | None = None

    def emit(
        self,
        value: bytes | str | None,
        *,
        anchors: Tuple | Iterable[Tuple],
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a child of ``anchors``: one tuple, several (a join), or ``()`` for an unanchored one.

        It inherits nothing by itself: hand on ``headers=tuple.headers``, ``timestamp_ms=tuple.timestamp_ms``.

        ``topic`` may be left out where the bolt emits to one topic only. An untracked tuple among the anchors
        adds nothing; for a dropped one alone nothing is sent, as its next owner will. Where its topic never
        takes the child (logged, counted) or the call breaks a rule (``Faults.blame``), its anchors fail.

        Raises:
            WrongTopic, EmitAfterAck, NotInHand, NotSerializable, ReservedHeader, WrongThread: see there.
        """
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(dict.fromkeys(anchors))
        if len(parents) == 1:
            self.emit_one(parents[0], value, topic, key, headers, timestamp_ms)
            return
        try:
            self._emit_joined(parents, value, topic, key, headers, timestamp_ms)
        except Misuse as misuse:
            self.faults.blame(misuse, parents)

    def _emit_joined(
        self,
        parents: tuple[Tuple, ...],
        value: bytes | str | None,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        """Emit a child of several tuples or none."""
        if parents and all(map(is_over, parents)):
            return
        target = self.targets.find(topic)
        self.check_emission(value, key, headers, timestamp_ms)
        held = [parent for parent in parents if self.check_anchor(parent)]
        holders: dict[tuple[int, int], dict[Tuple, None]] = {}
        for parent in held:
            for version, root, _ in parent.anchors:
                holders.setdefault((version, root), {})[parent] = None
        children = [Anchor(*place, int.from_bytes(self._take_edge(), "little")) for place in holders]
        header = target.head + encode_header(0, children)[HEAD_BYTES:] if children else None
        if self._send(parents, target, header, value, key, headers, timestamp_ms) and target.hashes:
            for child, owners in zip(children, holders.values(), strict=True):
                value_owed = emitted_value(child.edge, target.hashes)
                self.sums.share_out(child, value_owed, list(owners), self._take_edge)

    def emit_one(
        self,
        parent: Tuple,
        value: bytes | str | None,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a child of one tuple; the short way of ``emit``."""
        anchors = parent._anchors
        try:
            if parent._state is not IN_HAND and is_over(parent):
                return
            target = self.targets.find(topic)
            if (
                value.__class__ is not bytes
                or (key is not None and key.__class__ is not bytes)
                or headers
                or timestamp_ms is not None
                or get_ident() != self.faults.thread
            ):
                self.check_emission(value, key, headers, timestamp_ms)
            if parent._collector is not self or parent._state is not IN_HAND:
                self.check_anchor(parent)
        except Misuse as misuse:
            self.faults.blame(misuse, (parent,))
            return
        if not anchors:
            self._send((parent,), target, None, value, key, headers, timestamp_ms)
            return
        if len(anchors) == _SINGLE_BYTES:
            child = anchors[:_ROOT_BYTES] + self._take_edge()
        else:
            roots = dict.fromkeys(anchor[:2] for anchor in parent.anchors)
            edges = (int.from_bytes(self._take_edge(), "little") for _ in roots)
            child = encode_header(0, (Anchor(*root, next(edges)) for root in roots))[HEAD_BYTES:]
        header = HEADER, target.head + child
        written = [*headers, header] if headers else [header]
        try:
            self._produce(target.topic, value, key, written, timestamp_ms or NO_TIMESTAMP)
        except Unwritable as error:
            self.give_up((parent,), error)
            return
        except Exception as error:
            self._break(error)
        self.counters.emitted += 1
        if target.hashes:
            owe(parent, target.due, child)

    def check_emission(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        """Raise NotSerializable, ReservedHeader or WrongThread for what cannot be emitted from here."""
        self.faults.check_thread("emit")
        check_payload(value, key, timestamp_ms)
        if headers is not None:
            check_headers(headers)

    def check_anchor(self, parent: Tuple) -> bool:
        """Tell whether a tuple is in hand; one that is over takes no children.

        Raises:
            NotInHand, EmitAfterAck: see there.
        """
        if parent._collector is not self:
            raise NotInHand(f"cannot emit anchored to {parent!r}: it was not handed out by this collector")
        if parent._state is not IN_HAND and not is_over(parent):
            raise EmitAfterAck(f"cannot emit anchored to {parent!r}: emit first, then ack")
        return parent._state is IN_HAND

    def _send(
        self,
        parents: tuple[Tuple, ...],
        target: Target,
        header: bytes | None,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> bool:
        """Produce a child, or give it up; tell which."""
        written = [*(headers or ()), (HEADER, header)] if header else list(headers or ())
        try:
            self._produce(target.topic, value, key, written or None, timestamp_ms or NO_TIMESTAMP)
        except Unwritable as error:
            self.give_up(parents, error)
            return False
        except Exception as error:
            self._break(error)
        self.counters.emitted += 1
        return True

    def give_up(self, parents: tuple[Tuple, ...], error: Unwritable) -> None:
        """Take note of a child that can never be written: its parents will fail when the bolt acks them.

        Not at once: the bolt, which may hold them for long, goes on to emit for them and to ack them.
        """
        self.counters.unwritable += 1
        of = f"{len(parents)} tuples, first {parents[0]!r}" if parents else "none, so nobody emits it again"
        log.error("a child was not written: %s; it was of %s", error, of, extra={"action": "unwritable"})
        for parent in parents:
            parent._fault = parent._fault or reason_of(error)

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten:
        """Produce columns; return the rows that can never be written."""
        try:
            return self._produce_rows(topic, rows)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> NoReturn:
        """Raise what is no tuple's fault, and remember it: a bolt that swallows it must not ack."""
        self._broken = self._broken or error
        raise error

    def check(self) -> None:
        """Raise what ended the way out, if something did."""
        if self._broken is not None:
            raise self._broken

    def ack(self, tuple: Tuple) -> None:
        """Say that a tuple is done, children included. Of a dropped tuple it says nothing, harmlessly.

        A tuple with a child that was not sent fails instead, with that reason.

        Raises:
            AckedTwice, NotInHand, WrongThread: see there.
        """
        if not self._finish(tuple, "ack"):
            return
        if tuple._fault is not None:
            tuple._state = FAILED
            self._tell_failed(tuple, tuple._fault)
            return
        if tuple._anchors:
            self.sums.acked.append(tuple._anchors)
            if tuple._owed is not None:
                for due, child in tuple._owed:
                    due.append(child)
        self.counters.acked += 1

    def fail(self, tuple: Tuple, reason: str) -> None:
        """Say that a tuple failed: its source records are emitted again, or dead-lettered with the reason.

        Raises:
            AckedTwice, NotInHand, WrongThread: see there.
        """
        if self._finish(tuple, "fail"):
            tuple._state = FAILED
            self._tell_failed(tuple, reason)

    def fail_for_fault(self, tuple: Tuple, reason: str) -> None:
        """Fail a tuple in hand for what went wrong; what the bolt still says of it is passed over."""
        if tuple._state is IN_HAND:
            tuple._fault = tuple._fault or reason
            self.fail(tuple, tuple._fault)

    def fail_reported(self) -> None:
        """Fail the tuples in hand that refused calls of other threads were about."""
        for tuple in self.faults.reported():
            self.fail_for_fault(tuple, tuple._fault or "")

    def _take_back(self, tuple: Tuple, reason: str) -> None:
        """Fail a tuple that was acked in this very ``execute``; a fail counts, whatever is acked."""
        tuple._state = FAILED
        self.counters.acked -= 1
        self._tell_failed(tuple, reason)

    def _tell_failed(self, tuple: Tuple, reason: str) -> None:
        for version, root, _ in tuple.anchors if tuple._anchors else ():
            self._packer.fail(version, root, reason)
        self.counters.failed += 1

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the message timeout of the tuple's source records begin anew.

        It leaves at once, however long ``execute`` takes and whatever is not committed yet.

        Raises:
            AckedTwice, NotInHand, WrongThread: see there.
        """
        if not self._may_speak_of(tuple, "reset the timeout of"):
            return
        tuple._since_s = monotonic()
        if tuple._anchors:
            try:
                for version, root, _ in tuple.anchors:
                    self._packer.reset_at_once(version, root)
            except Exception as error:
                self._break(error)

    def _may_speak_of(self, tuple: Tuple, verb: str) -> bool:
        """Tell whether a tuple is in hand; where it never may be spoken of, blame the call."""
        try:
            self.faults.check_thread(f"{verb} {tuple!r}")
            if tuple._collector is not self:
                raise NotInHand(f"cannot {verb} {tuple!r}: it was not handed out by this collector")
            if tuple._state is not IN_HAND and not is_over(tuple):
                raise AckedTwice(f"cannot {verb} {tuple!r}: it was acked or failed before")
        except Misuse as misuse:
            self.faults.blame(misuse, (tuple,))
            return False
        return tuple._state is IN_HAND

    def _finish(self, tuple: Tuple, verb: str) -> bool:
        if (
            tuple._collector is not self or tuple._state is not IN_HAND or get_ident() != self.faults.thread
        ) and not self._may_speak_of(tuple, verb):
            return False
        tuple._state = ACKED
        if tuple._hand is not None:
            del tuple._hand[tuple.offset]
        return True

    def drop(self, tuples: Iterable[Tuple]) -> None:
        """Let go of tuples in hand that another worker will read again."""
        for tuple in tuples:
            self.counters.dropped += tuple._state is not DROPPED
            tuple._state = DROPPED

    def release(self) -> None:
        """Let what is held back for a commit take part in the next one; here nothing is held back."""

    def flush(self) -> None:
        """Hand everything acked to the packer and send it, whole. Raises what ended the way out before."""
        self.check()
        self.sums.hand_in(self.targets.all())
        self._packer.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether something acked or failed waits for the flush."""
        return bool(self.sums.acked) or len(self._packer) > 0

    def find_origin(self, anchor: Anchor) -> SourceOrigin | None:
        return self._origins.find(anchor)
