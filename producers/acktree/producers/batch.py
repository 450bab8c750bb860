"""What a BatchBolt emits and fails with: the arithmetic of many trees in columns.

Invariant: what a tuple owes for its children joins its ack when the batch is finished, in one flush, and only
if the tuple was not failed. Tuples of one anchor take the short way; the others are emitted one by one.
"""

from collections.abc import Sequence

import numpy as np

from acktree.producers.collector import AnchorArray, Collector, UserHeaders
from acktree.producers.errors import Misuse, ReservedHeader
from acktree.producers.targets import Target
from acktree.producers.tuples import DONE, IN_HAND, Tuple
from acktree.schemas.header import ANCHOR, ANCHOR_BYTES, FORMAT, HEADER, SINGLE
from acktree.schemas.ids import EdgeSource

_Sent = tuple[Target, Sequence[Tuple], AnchorArray]


class UnevenBatch(Misuse):
    """``emit_many`` was given columns of different lengths."""


class BatchCollector:
    """Emits children of a batch's tuples, and fails some of them; the others are acked after ``execute``."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._edges = EdgeSource()
        self._sent: list[_Sent] = []

    def emit_many(
        self,
        values: Sequence[bytes | str | None],
        anchors: Sequence[Tuple],
        *,
        topic: str | None = None,
        keys: Sequence[bytes | str | None] | None = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Emit one child per value, anchored to the tuple at the same place; ``headers`` go to all of them.

        Raises:
            UnevenBatch: values, anchors and keys are not of one length.
            WrongTopic, EmitAfterAck, NotInHand, ReservedHeader: see there.
        """
        count = len(values)
        if len(anchors) != count or (keys is not None and len(keys) != count):
            raise UnevenBatch(
                f"{count} values, {len(anchors)} anchors, {len(keys or values)} keys: one of each"
            )
        collector = self._collector
        for tuple in anchors:
            if tuple._collector is not collector or tuple._state is not IN_HAND:
                collector._may_anchor(tuple)
        if any(len(tuple._anchors) != ANCHOR_BYTES for tuple in anchors):
            for at, tuple in enumerate(anchors):
                collector.emit_one(tuple, values[at], topic, keys[at] if keys else None, headers)
            return
        if headers and any(name == HEADER for name, _ in headers):
            raise ReservedHeader(f"the header {HEADER!r} is written from the anchors, leave it out")
        target = collector.targets.find(topic)
        children = np.frombuffer(b"".join([tuple._anchors for tuple in anchors]), ANCHOR).copy()
        children["edge"] = self._edges.many(count)
        packed = _headers(target.version, children)
        produce, name, size, before = collector._produce, target.topic, SINGLE.itemsize, headers or []
        for at, value in enumerate(values):
            header = packed[at * size : at * size + size]
            produce(name, value, keys[at] if keys else None, [*before, (HEADER, header)])
        collector.counters.emitted += count
        if target.hashes:
            self._sent.append((target, list(anchors), children))

    def fail(self, tuple: Tuple, reason: str) -> None:
        """Fail one tuple of the batch; what was emitted for it is replayed with it. Raises Misuse."""
        self._collector.fail(tuple, reason)

    def finish(self, tuples: Sequence[Tuple]) -> None:
        """Ack the tuples of the batch that were not failed."""
        collector = self._collector
        sent, self._sent = self._sent, []
        whole = all(tuple._state is IN_HAND for tuple in tuples)
        for target, parents, children in sent:
            if not whole:
                children = children[[parent._state is IN_HAND for parent in parents]]
            target.due.append(children.tobytes())
        done = tuples if whole else [tuple for tuple in tuples if tuple._state is IN_HAND]
        collector._acked.append(b"".join([tuple._anchors for tuple in done]))
        for tuple in done:
            tuple._state = DONE
            for due, child in tuple._owed or ():
                due.append(child)
        collector.counters.acked += len(done)


def _headers(version: int, children: AnchorArray) -> bytes:
    """Return the headers of single-anchored children end to end."""
    rows = np.empty(len(children), SINGLE)
    rows["format"], rows["emission"] = FORMAT, version
    for name in ("version", "root", "edge"):
        rows[name] = children[name]
    return rows.tobytes()
