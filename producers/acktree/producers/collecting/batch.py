"""The collector of a BatchBolt: the arithmetic of many trees in columns.

Invariant: the values of a tuple's children join its ack when the batch is finished, in one flush, and only if
the tuple was not failed. Tuples of one anchor take the fast path; the others are emitted one by one.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np

from acktree.core.edges import EdgeSource
from acktree.producers.collecting.arithmetic.ack_sums import AnchorArray
from acktree.producers.collecting.arithmetic.targets import Target
from acktree.producers.collecting.collector import Collector, UserHeaders
from acktree.producers.collecting.held_output import MAX_HELD_BYTES, HeldOutput, HeldRows, copied
from acktree.producers.collecting.payloads import bad_cells, check_headers
from acktree.producers.collecting.traces import context_of_tuple
from acktree.producers.columns import Column, Rows, plain
from acktree.producers.errors import Misuse, NotInHand, NotSerializable
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND, Tuple
from acktree.wire.header import ANCHOR, ANCHOR_BYTES, single_headers

_Sent = tuple[Target, Sequence[Tuple], AnchorArray]


class UnevenBatch(Misuse):
    """The columns given to ``emit_many`` have different lengths."""


class BatchCollector:
    """Emits children of a batch's tuples, and fails some of them; the others are acked after ``execute``."""

    def __init__(self, collector: Collector, *, is_sent_whole: bool = False) -> None:
        """``is_sent_whole``: nothing of a batch is sent before it has returned, however much is held."""
        self._collector, self._is_sent_whole = collector, is_sent_whole
        self._edges = EdgeSource()
        self._current: TupleBatch | None = None
        self._finished_before = 0
        self._sent: list[_Sent] = []
        self._held = HeldOutput(collector.children, collector.counters)
        self.was_sent = False
        """Whether children of the batch are sent already, because too much was held."""

    def begin(self, batch: TupleBatch) -> None:
        """Begin with a batch."""
        self._current, self._finished_before = batch, self._collector.counters.finished
        self.was_sent = False
        self._held.begin()

    def discard(self) -> None:
        """Discard what the batch has emitted: it failed, and will fail or be executed again."""
        assert self._current is not None
        self._held.discard(was_sent=self.was_sent)
        self._sent.clear()
        if not self.was_sent:
            for tup in self._current.with_deferred():
                tup._deferred = None
        for tup in self._current.faulty():
            self._collector.ack(tup)

    def _send_if_full(self) -> None:
        if self._held.held_bytes > MAX_HELD_BYTES and not self._is_sent_whole:
            with self._collector.guard:
                self.was_sent = True
                self._held.send()

    def emit_many(
        self,
        values: Column,
        anchors: Column,
        *,
        topic: str | None = None,
        keys: Column = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Emit one child per value, anchored to the tuple at the same index; all get the same ``headers``.

        ``anchors`` is the batch itself, which is fastest, a sequence of its tuples, or rows of its table as
        an Arrow array; values and keys may be Arrow arrays.

        A row that cannot be emitted fails its tuple when the batch is finished; the others are sent. A call
        that breaks a rule fails all ``anchors``. If none of these is in the batch, it fails the whole batch
        and raises.

        Raises:
            UnevenBatch: values, anchors and keys differ in length.
            WrongTopic, EmitAfterAck, NotInHand, NotSerializable, ReservedHeader, WrongThread: see each error.
        """
        collector, count = self._collector, len(values)
        try:
            anchors = self._tuples_of(anchors)
            target = self._check_call(count, anchors, topic, keys, headers)
        except Misuse as misuse:
            collector.faults.refuse_call(misuse, anchors)
            return
        unwritten: dict[int, NotSerializable] = {}
        if collector.payloads.writes:
            values, unwritten = collector.payloads.write_rows(list(plain(values, count)), target.topic)
        if bad := {**self._bad_rows(values, anchors, keys), **unwritten}:
            for row, error in bad.items():
                collector.faults.refuse_call(error, (anchors[row],))
            good = [row for row in range(count) if row not in bad]
            columns = (plain(values, count), anchors, plain(keys, count))
            values, anchors, keys = ([column[row] for row in good] for column in columns)
            count = len(good)
        parents = self._anchors_of(anchors)
        if not set(map(len, parents)) <= {ANCHOR_BYTES} or (
            collector.hands_on_traces and any(map(context_of_tuple, anchors))
        ):
            for tup, value, key in zip(anchors, plain(values, count), plain(keys, count), strict=True):
                self._held.parents = (tup,)
                collector.emit_children(tup, ((value, topic, key, headers, None),))
            self._send_if_full()
            return
        children = np.frombuffer(b"".join(parents), ANCHOR).copy()
        children["edge"] = self._edges.many(count)
        own = single_headers(target.version, children["version"], children["root"], children["edge"])
        if not isinstance(anchors, TupleBatch):
            anchors = list(anchors)
        rows = Rows(copied(values), copied(keys), own, list(headers or ()))
        self._held.add_rows(HeldRows(anchors, target.topic, rows))
        collector.counters.emitted += count
        if target.hashes:
            self._sent.append((target, anchors, children))
        self._send_if_full()

    def emit(
        self,
        value: Any,
        *,
        anchors: Tuple | Iterable[Tuple],
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit one child of one or several tuples of the batch, or of none, like ``Collector.emit``.

        It is sent when ``execute`` has returned, and not at all if that raises.
        """
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(dict.fromkeys(anchors))
        self._held.parents = parents
        self._collector.emit(
            value, anchors=parents, topic=topic, key=key, headers=headers, timestamp_ms=timestamp_ms
        )
        self._send_if_full()

    def _tuples_of(self, anchors: Column) -> Sequence[Tuple]:
        """Return the tuples that an Arrow array of rows names. Raises NotInHand."""
        if not hasattr(anchors, "to_pylist"):
            return anchors  # type: ignore[no-any-return]
        batch, rows = self._current, anchors.to_pylist()
        assert batch is not None
        known = range(len(batch))
        if rows == list(known):
            return batch
        if wrong := [row for row in rows if row not in known]:
            raise NotInHand(f"row {wrong[0]!r} is not in this batch of {len(batch)}")
        return [batch[row] for row in rows]

    def _check_call(
        self,
        count: int,
        anchors: Sequence[Tuple],
        topic: str | None,
        keys: Column,
        headers: UserHeaders | None,
    ) -> Target:
        """Return the target; raise what is wrong with the call as a whole."""
        self._collector.faults.check_thread("emit")
        if len(anchors) != count or (keys is not None and len(keys) != count):
            raise UnevenBatch(
                f"{count} values, {len(anchors)} anchors, {count if keys is None else len(keys)} keys: "
                "their lengths must be equal"
            )
        if headers is not None:
            check_headers(headers)
        return self._collector.targets.find(topic)

    def _bad_rows(self, values: Column, anchors: Sequence[Tuple], keys: Column) -> dict[int, Misuse]:
        """Return what is wrong with individual rows."""
        bad: dict[int, Misuse] = {**bad_cells(values, keys, len(values))}
        if anchors is self._current and self._in_hand() is None:
            return bad
        collector = self._collector
        for row, tup in enumerate(anchors):
            if tup._collector is not collector or tup._state is not IN_HAND:
                try:
                    collector.faults.check_anchor(tup)
                except Misuse as misuse:
                    bad[row] = misuse
        return bad

    def _anchors_of(self, tuples: Sequence[Tuple]) -> Sequence[bytes]:
        """Return each tuple's anchors."""
        return tuples.anchors if isinstance(tuples, TupleBatch) else [tup._anchors for tup in tuples]

    def _in_hand(self) -> list[bool] | None:
        """Return for each tuple whether it was not failed; None if none was, which the counters tell."""
        assert self._current is not None
        if self._collector.counters.finished == self._finished_before:
            return None
        return self._current.in_hand()

    def fail(
        self,
        tup: Tuple,
        reason: str | BaseException,
        *,
        retry_after_s: float | None = None,
        retry: bool = True,
    ) -> None:
        """Fail one tuple of the batch, as ``Collector.fail``; what was emitted for it is replayed with it."""
        self._collector.fail(tup, reason, retry_after_s=retry_after_s, retry=retry)

    def check_size(self) -> None:
        """Raise OutputTooSlow if what the batch has emitted is not likely to pass in one transaction."""
        self._held.check_size()

    def finish(self) -> None:
        """Send what the batch has emitted, and ack the tuples of it that were not failed."""
        batch = self._current
        assert batch is not None
        collector = self._collector
        self._held.send()
        for tup in batch.faulty():
            collector.ack(tup)
        in_hand, self._current = self._in_hand(), None
        sent, self._sent = self._sent, []
        for target, parents, children in sent:
            if in_hand is not None:
                children = children[[parent._state is IN_HAND for parent in parents]]
            target.acked_children.append(children.tobytes())
        done = batch.anchors if in_hand is None else list(compress(batch.anchors, in_hand))
        collector.sums.acked.append(b"".join(done))
        for tup in batch.with_deferred():
            for buffer, child in tup._deferred or ():
                buffer.append(child)
        batch.finish()
        collector.counters.acked += len(done)
