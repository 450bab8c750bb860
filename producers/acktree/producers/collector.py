"""The collector: emits children, acks, fails, and keeps the arithmetic of the trees.

Invariant: an input tuple's ack is its own consumer edges XOR what was emitted for its roots, handed to the
packer whole, in one flush, and once. What a tuple owes for its children waits at the tuple until its ack.
Not safe for threads. Knows no Kafka: ``produce`` takes (topic, value, key, headers).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from acktree.producers.columns import Pairs, Produce, ProduceRows, produce_each
from acktree.producers.edge_pool import EdgePool
from acktree.producers.errors import (
    AckedTwice,
    EmitAfterAck,
    Misuse,
    NotInHand,
    ReservedHeader,
    Unwritable,
    reason_of,
)
from acktree.producers.packing import AckPacker
from acktree.producers.targets import Target, Targets
from acktree.producers.tuples import DONE, DROPPED, IN_HAND, SourceOrigin, Tuple
from acktree.schemas.header import ANCHOR, HEADER, Anchor, encode_header
from acktree.schemas.ids import IdArray, emitted_value, emitted_values, fnv1a64, mix_array, origin_of
from acktree.schemas.registry import History, Slot

AnchorArray = NDArray[Any]
UserHeaders = Pairs

_HEAD_BYTES = 3
_ROOT_BYTES = 10
_SINGLE_BYTES = 18

log = logging.getLogger("acktree.bolt")


@dataclass(slots=True)
class Counters:
    """What a task did since its start."""

    executed: int = 0
    emitted: int = 0
    unwritable: int = 0
    acked: int = 0
    failed: int = 0
    set_aside: int = 0
    dropped: int = 0
    never_acked: int = 0

    @property
    def finished(self) -> int:
        """How many tuples went out of hand."""
        return self.acked + self.failed + self.dropped


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
        self.misuse: Misuse | None = None
        self.targets = Targets(bolt, history, self.refuse)
        self._hash = np.uint64(fnv1a64(bolt))
        self._history = history
        self._packer = packer
        self._produce = produce
        self._produce_rows = produce_rows or partial(produce_each, produce)
        self._take_edge = (edges or EdgePool()).take
        self._acked: list[bytes] = []
        self._shares: list[bytes] = []
        self._slots: dict[int, dict[int, Slot]] = {}

    def emit(
        self,
        value: bytes | str | None,
        *,
        anchors: Tuple | Iterable[Tuple],
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Emit a child of ``anchors``: one tuple, several (a join), or ``()`` for an unanchored one.

        ``topic`` may be left out where the bolt emits to one topic only. An untracked tuple among the anchors
        adds nothing; for a dropped one alone nothing is sent, as its next owner will. A child that its topic
        never takes is logged and counted instead, and its anchors' acks become fails.

        Raises:
            WrongTopic, EmitAfterAck, NotInHand, ReservedHeader: see there.
        """
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(dict.fromkeys(anchors))
        if len(parents) == 1:
            self.emit_one(parents[0], value, topic, key, headers)
            return
        target = self.targets.find(topic)
        if parents and all(parent._state is DROPPED for parent in parents):
            return
        holders: dict[tuple[int, int], dict[Tuple, None]] = {}
        for parent in parents:
            if self._may_anchor(parent):
                for version, root, _ in parent.anchors:
                    holders.setdefault((version, root), {})[parent] = None
        children = [Anchor(*place, int.from_bytes(self._take_edge(), "little")) for place in holders]
        header = target.head + encode_header(0, children)[_HEAD_BYTES:] if children else None
        if self._send(parents, target, header, value, key, headers) and target.hashes:
            for child, owners in zip(children, holders.values(), strict=True):
                self._share_out(child, emitted_value(child.edge, target.hashes), list(owners))

    def emit_one(
        self,
        parent: Tuple,
        value: bytes | str | None,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
    ) -> None:
        """Emit a child of one tuple; the short way of ``emit``."""
        target = self.targets.find(topic)
        anchors = parent._anchors
        if parent._collector is not self or parent._state is not IN_HAND or not anchors:
            if not self._may_anchor(parent) and parent._state is not DROPPED:
                self._send((parent,), target, None, value, key, headers)
            return
        if len(anchors) == _SINGLE_BYTES:
            child = anchors[:_ROOT_BYTES] + self._take_edge()
        else:
            roots = dict.fromkeys(anchor[:2] for anchor in parent.anchors)
            edges = (int.from_bytes(self._take_edge(), "little") for _ in roots)
            child = encode_header(0, (Anchor(*root, next(edges)) for root in roots))[_HEAD_BYTES:]
        if headers:
            if not self._send((parent,), target, target.head + child, value, key, headers):
                return
        else:
            try:
                self._produce(target.topic, value, key, [(HEADER, target.head + child)])
            except Unwritable as error:
                self.give_up((parent,), error)
                return
            self.counters.emitted += 1
        if target.hashes:
            if parent._owed is None:
                parent._owed = [(target.due, child)]
            else:
                parent._owed.append((target.due, child))

    def _may_anchor(self, parent: Tuple) -> bool:
        """Tell whether a child of this tuple gets an anchor; a dropped one will be read again elsewhere."""
        if parent._collector is not self:
            self.refuse(
                NotInHand(f"cannot emit anchored to {parent!r}: it was not handed out by this collector")
            )
        if parent._state is DONE:
            self.refuse(EmitAfterAck(f"cannot emit anchored to {parent!r}: emit first, then ack"))
        return bool(parent._anchors) and parent._state is IN_HAND

    def _send(
        self,
        parents: tuple[Tuple, ...],
        target: Target,
        header: bytes | None,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
    ) -> bool:
        """Produce a child, or give it up; tell which."""
        written: UserHeaders | None = headers
        if headers:
            self.check_headers(headers)
            written = [*headers, (HEADER, header)] if header else headers
        elif header:
            written = [(HEADER, header)]
        try:
            self._produce(target.topic, value, key, written)
        except Unwritable as error:
            self.give_up(parents, error)
            return False
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
            parent._unwritable = parent._unwritable or reason_of(error)

    def _share_out(self, child: Anchor, value: int, owners: list[Tuple]) -> None:
        """Divide a child's value among its parents of one root: random shares, the rest for the last.

        The same value in two acks would complete the tree early; in one alone, the other would not count.
        """
        for owner in owners[:-1]:
            share = int.from_bytes(self._take_edge(), "little")
            value ^= share
            _owe(owner, self._shares, _anchor_bytes(child, share))
        _owe(owners[-1], self._shares, _anchor_bytes(child, value))

    def ack(self, tuple: Tuple) -> None:
        """Say that a tuple is done, children included. Of a dropped tuple it says nothing, harmlessly.

        A tuple with a child that could not be written fails instead, with that reason.

        Raises:
            AckedTwice, NotInHand: see there.
        """
        if not self._finish(tuple, "ack"):
            return
        if tuple._unwritable is not None:
            self._tell_failed(tuple, tuple._unwritable)
            return
        if tuple._anchors:
            self._acked.append(tuple._anchors)
            if tuple._owed is not None:
                for due, child in tuple._owed:
                    due.append(child)
        self.counters.acked += 1

    def fail(self, tuple: Tuple, reason: str) -> None:
        """Say that a tuple failed: its source records are emitted again, or dead-lettered with the reason.

        Raises:
            AckedTwice, NotInHand: see there.
        """
        if self._finish(tuple, "fail"):
            self._tell_failed(tuple, reason)

    def _tell_failed(self, tuple: Tuple, reason: str) -> None:
        for version, root, _ in tuple.anchors if tuple._anchors else ():
            self._packer.fail(version, root, reason)
        self.counters.failed += 1

    def reset_timeout(self, tuple: Tuple) -> None:
        """Let the message timeout of the tuple's source records begin anew.

        Raises:
            AckedTwice, NotInHand: see there.
        """
        self._check(tuple, "reset the timeout of")
        if tuple._anchors and tuple._state is IN_HAND:
            for version, root, _ in tuple.anchors:
                self._packer.reset(version, root)

    def _check(self, tuple: Tuple, verb: str) -> None:
        if tuple._collector is not self:
            self.refuse(NotInHand(f"cannot {verb} {tuple!r}: it was not handed out by this collector"))
        if tuple._state is DONE:
            self.refuse(AckedTwice(f"cannot {verb} {tuple!r}: it was acked or failed before"))

    def _finish(self, tuple: Tuple, verb: str) -> bool:
        if tuple._collector is not self or tuple._state is not IN_HAND:
            self._check(tuple, verb)
            return False
        tuple._state = DONE
        if tuple._hand is not None:
            del tuple._hand[tuple.offset]
        return True

    def check_headers(self, headers: UserHeaders) -> None:
        """Raises ReservedHeader."""
        if any(name == HEADER for name, _ in headers):
            self.refuse(ReservedHeader(f"the header {HEADER!r} is written from the anchors, leave it out"))

    def refuse(self, misuse: Misuse) -> NoReturn:
        """Raise a mistake of the bolt, and remember it: a bolt that swallows it does not get away with it."""
        self.misuse = self.misuse or misuse
        raise misuse

    def drop(self, tuples: Iterable[Tuple]) -> None:
        """Let go of tuples in hand that another worker will read again."""
        for tuple in tuples:
            self.counters.dropped += tuple._state is not DROPPED
            tuple._state = DROPPED

    def release(self) -> None:
        """Let what is held back for a commit take part in the next one; here nothing is held back."""

    def flush(self) -> None:
        """Hand everything acked to the packer and send it, whole. Raises Misuse if there was one."""
        if self.misuse is not None:
            raise self.misuse
        own = self._take(self._acked)
        self._hand_in(own, mix_array(own["edge"] ^ self._hash))
        for target in self.targets.all():
            if target.due:
                children = self._take(target.due)
                self._hand_in(children, emitted_values(children["edge"], target.hashes))
        shares = self._take(self._shares)
        self._hand_in(shares, shares["edge"])
        self._packer.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether something acked or failed waits for the flush."""
        return bool(self._acked) or len(self._packer) > 0

    def _take(self, packed: list[bytes]) -> AnchorArray:
        anchors = np.frombuffer(b"".join(packed), ANCHOR)
        packed.clear()
        return anchors

    def _hand_in(self, anchors: AnchorArray, values: IdArray) -> None:
        versions = anchors["version"]
        for version in np.unique(versions):
            here = versions == version
            self._packer.ack_many(int(version), anchors["root"][here], values[here])

    def find_origin(self, anchor: Anchor) -> SourceOrigin | None:
        """Return the source record of an anchor's root; None if its slot was never given out."""
        published, slots = self._history.at(anchor.version), self._slots.get(anchor.version)
        if slots is None:
            slots = {slot.slot: slot for slot in published.slots}
            self._slots[anchor.version] = slots
        origin = origin_of(anchor.root)
        slot = slots.get(origin.slot)
        if slot is None:
            return None
        table = published.spouts.get(slot.spout)
        place = (slot.spout, slot.topic, slot.partition, origin.offset, origin.attempt)
        return SourceOrigin(*place, table.block if table else 1)


def _owe(parent: Tuple, due: list[bytes], child: bytes) -> None:
    if parent._owed is None:
        parent._owed = [(due, child)]
    else:
        parent._owed.append((due, child))


def _anchor_bytes(child: Anchor, value: int) -> bytes:
    return encode_header(0, (Anchor(child.version, child.root, value),))[_HEAD_BYTES:]
