"""The collector: emits children, acks, fails, and does the arithmetic of the trees.

Invariant: an input tuple's ack is the XOR of its own consumer edges and those of its children, passed to the
packer once, as a whole, in one flush. The values of its children are kept with the tuple until its ack. A
tuple with a child that was not sent is never acked. Does not know Kafka: ``produce`` takes (topic, value,
key, headers). The bolt's thread and the worker's loop share it: code that changes it holds ``guard``. The
methods that a bolt calls take it themselves; user code never runs while it is held.
"""

import logging
import sys
from collections.abc import Iterable
from typing import Any

from acktree.core import world
from acktree.core.topology.registry import History
from acktree.producers.collecting.arithmetic.ack_sums import HEAD_BYTES, AckSums, defer_to_ack
from acktree.producers.collecting.arithmetic.edge_pool import EdgePool
from acktree.producers.collecting.arithmetic.origins import Origins
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.arithmetic.targets import Target, Targets
from acktree.producers.collecting.child_output import ChildOutput, ProduceCall
from acktree.producers.collecting.counters import Counters
from acktree.producers.collecting.fails import Fails
from acktree.producers.collecting.misuses import Misuses
from acktree.producers.collecting.repeated_lines import RepeatedLines
from acktree.producers.collecting.retry_rules import RetryRules
from acktree.producers.collecting.traces import handed_on
from acktree.producers.columns import NO_TIMESTAMP, Pairs, Payload, Produce, ProduceRows
from acktree.producers.errors import Misuse, reason_given, reason_of
from acktree.producers.serdes.payloads import NO_PAYLOADS
from acktree.producers.tuples import ACKED, DROPPED, FAILED, IN_HAND, SourceOrigin, Tuple, is_over
from acktree.wire.control_records import BACK_OFF
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value

UserHeaders = Pairs
ChildFields = tuple[Any, str | None, Payload, Pairs | None, int | None]
"""A ``Child``, or its fields."""
CheckedChild = tuple[Target, Payload, Payload, Pairs | None, int]
"""What may be written: target, value, key, headers and timestamp."""

_ROOT_BYTES, _SINGLE_BYTES = 10, 18

log = logging.getLogger("acktree.bolt")


class Collector:
    """Emits, acks and fails the tuples of a bolt."""

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
        self.hands_on_traces = False
        """Whether an input has had a trace context; otherwise this one check is all that traces cost."""
        self._bolt = bolt
        self.lines = RepeatedLines()
        self.guard = world.lock()
        self._acquire, self._release = self.guard.acquire, self.guard.release
        self.faults = Misuses(self, self.counters, self._undo_ack, self.lines, self.guard)
        self.targets = Targets(bolt, history)
        self.retry_rules = RetryRules(history)
        self.sums = AckSums(bolt, packer)
        self.payloads = NO_PAYLOADS
        self._packer = packer
        self.children = ChildOutput(self.counters, produce, produce_rows, self.lines)
        self._take_edge = (edges or EdgePool()).take
        self._origins = Origins(history)
        self.fails = Fails(packer, self.counters)
        self._thread_id = world.current().thread_id

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
        """Emit a child of ``anchors``: one tuple, several (a join), or ``()`` for an unanchored one.

        It inherits nothing but the trace context: pass on ``headers=tup.headers``,
        ``timestamp_ms=tup.timestamp_ms``.

        ``topic`` may be omitted if the bolt emits to one topic only. An untracked tuple among the anchors
        adds nothing; a child of dropped tuples alone is not sent, as their next owner will emit it. If the
        topic would never accept the child (logged, counted) or the call breaks a rule
        (``Misuses.refuse_call``), the anchors fail.

        Raises:
            WrongTopic, EmitAfterAck, NotInHand, NotSerializable, ReservedHeader, WrongThread: see each error.
        """
        # Life of an ack, step 3.
        parents = (anchors,) if isinstance(anchors, Tuple) else tuple(dict.fromkeys(anchors))
        self._emit_for(parents, value, topic, key, headers, timestamp_ms)

    def _emit_for(
        self,
        parents: tuple[Tuple, ...],
        value: Any,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        """Emit a child of several tuples, of one or of none."""
        if len(parents) == 1:
            self.emit_children(parents[0], ((value, topic, key, headers, timestamp_ms),))
            return
        try:
            self._emit_joined(parents, value, topic, key, headers, timestamp_ms)
        except Misuse as misuse:
            self.faults.refuse_call(misuse, parents)

    def _emit_joined(
        self,
        parents: tuple[Tuple, ...],
        value: Any,
        topic: str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        """Emit a child of several tuples or none."""
        if parents and all(map(is_over, parents)):
            return
        target = self.targets.find(topic)
        value = self.payloads.write(value, target.topic)
        self.faults.check_emission(value, key, headers, timestamp_ms)
        with self.guard:
            self._write_joined(parents, target, value, key, headers, timestamp_ms)

    def _write_joined(
        self,
        parents: tuple[Tuple, ...],
        target: Target,
        value: Any,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int | None,
    ) -> None:
        held = [parent for parent in parents if self.faults.check_anchor(parent)]
        if (parents and not held) or self.faults.is_given_up:
            return
        holders: dict[tuple[int, int], dict[Tuple, None]] = {}
        for parent in held:
            for version, root, _ in parent.anchors:
                holders.setdefault((version, root), {})[parent] = None
        children = [Anchor(*place, int.from_bytes(self._take_edge(), "little")) for place in holders]
        header = target.head + encode_header(0, children)[HEAD_BYTES:] if children else None
        if self.hands_on_traces:
            headers = handed_on(self._bolt, parents, headers)
        written = [*(headers or ()), (HEADER, header)] if header else list(headers or ()) or None
        self.children.write(parents, [(target.topic, value, key, written, timestamp_ms or NO_TIMESTAMP)])
        if target.hashes:
            for child, owners in zip(children, holders.values(), strict=True):
                child_value = emitted_value(child.edge, target.hashes)
                self.sums.split_value(child, child_value, list(owners), self._take_edge)

    def emit_children(self, parent: Tuple, children: Iterable[ChildFields]) -> None:
        """Emit children of one tuple, as ``emit`` does with each; none of them if one is refused."""
        try:
            if parent._state is not IN_HAND and is_over(parent):
                return
            find, faults = self.targets.find, self.faults
            is_ours = self._thread_id() in faults.threads
            checked = []
            for value, topic, key, headers, timestamp_ms in children:
                target = find(topic)
                if value.__class__ is not bytes:
                    value = self.payloads.write(value, target.topic)
                if (
                    value.__class__ is not bytes
                    or (key is not None and key.__class__ is not bytes)
                    or headers
                    or timestamp_ms is not None
                    or not is_ours
                ):
                    faults.check_emission(value, key, headers, timestamp_ms)
                if self.hands_on_traces:
                    headers = handed_on(self._bolt, (parent,), headers)
                checked.append((target, value, key, headers, timestamp_ms or NO_TIMESTAMP))
        except Misuse as misuse:
            self.faults.refuse_call(misuse, (parent,))
            return
        self._acquire()
        try:
            if (parent._collector is not self or parent._state is not IN_HAND) and not self._is_mine(parent):
                return
            self._write_children(parent, checked)
        finally:
            self._release()

    def _write_children(self, parent: Tuple, children: list[CheckedChild]) -> None:
        """Write children of a tuple, which is not acked if a topic never accepts one of them."""
        anchors, take_edge = parent._anchors, self._take_edge
        of_root = anchors[:_ROOT_BYTES] if len(anchors) == _SINGLE_BYTES else None
        calls: list[ProduceCall] = []
        deferred = []
        for target, value, key, headers, timestamp_ms in children:
            written = list(headers) if headers else None
            if anchors:
                child = of_root + take_edge() if of_root else self._child_anchors(parent)
                header = HEADER, target.head + child
                written = [*headers, header] if headers else [header]
                if target.hashes:
                    deferred.append((target.acked_children, child))
            calls.append((target.topic, value, key, written, timestamp_ms))
        self.children.write((parent,), calls)
        defer_to_ack(parent, deferred)

    def _is_mine(self, parent: Tuple) -> bool:
        """Return whether a tuple is in hand; refuse to emit for it if the bolt has no right to."""
        try:
            return self.faults.check_anchor(parent)
        except Misuse as misuse:
            self.faults.refuse_call(misuse, (parent,))
            return False

    def _child_anchors(self, parent: Tuple) -> bytes:
        """Return the anchors of a child of a tuple with several: one edge for each root."""
        roots = dict.fromkeys(anchor[:2] for anchor in parent.anchors)
        edges = (int.from_bytes(self._take_edge(), "little") for _ in roots)
        return encode_header(0, (Anchor(*root, next(edges)) for root in roots))[HEAD_BYTES:]

    def check(self) -> None:
        """Raise the first fatal error of the output, if there was one."""
        self.children.check()

    def ack(self, tup: Tuple) -> None:
        """Ack a tuple, including its children. A dropped tuple is ignored.

        A tuple with a child that was not sent fails instead, with that reason.

        Raises:
            AckedTwice, NotInHand, WrongThread: see each error.
        """
        # Life of an ack, step 5.
        with self.guard:
            if self._thread_id() in self.faults.threads or self.faults.check_in_hand(tup, "ack"):
                self._ack(tup)

    def _ack(self, tup: Tuple) -> None:
        if not self._finish(tup, "ack"):
            return
        if tup._fault is not None:
            tup._state = FAILED
            self.fails.pack(tup, tup._fault)
            return
        if tup._anchors:
            self.sums.acked.append(tup._anchors)
            if tup._deferred is not None:
                for buffer, child in tup._deferred:
                    buffer.append(child)
        self.counters.acked += 1

    def fail(
        self,
        tup: Tuple,
        reason: str | BaseException,
        *,
        retry_after_s: float | None = None,
        retry: bool = True,
    ) -> None:
        """Fail a tuple: its source records are replayed, or become dead letters with the reason.

        If the reason is an exception, its type and text are reported, as for one that ``execute`` raises.

        The records are replayed after the spout's back-off, or after ``retry_after_s``; without ``retry``
        they become dead letters immediately. Where several tuples of a record fail, the first fail counts.
        In an ``except`` clause the stack trace goes with it.

        Raises:
            AckedTwice, NotInHand, WrongThread, InvalidRetry: see each error.
        """
        error = sys.exception() or (reason if isinstance(reason, BaseException) else None)
        with self.guard:
            if self._thread_id() not in self.faults.threads:
                self.faults.check_in_hand(tup, "fail")
            try:
                retry_after_ms = self.retry_rules.of_call(retry, retry_after_s)
            except Misuse as misuse:
                self.faults.refuse_call(misuse, (tup,))
                self.fail_for_fault(tup, reason_of(misuse))
            else:
                self._fail(tup, reason_given(reason), retry_after_ms, self.fails.stack_of(tup, error))

    def _fail(self, tup: Tuple, reason: str, retry_after_ms: int, stack: str) -> None:
        if self._finish(tup, "fail"):
            tup._state = FAILED
            self.fails.pack(tup, reason, retry_after_ms, stack)

    def fail_for_fault(
        self, tup: Tuple, reason: str, retry_after_ms: int = BACK_OFF, stack: str = ""
    ) -> None:
        """Fail a tuple in hand on behalf of the bolt, whose later calls for it are ignored."""
        if tup._state is IN_HAND:
            tup._fault = tup._fault or reason
            self._fail(tup, tup._fault, retry_after_ms, stack)

    def fail_reported(self) -> None:
        """Fail the tuples in hand that refused calls of other threads named."""
        for tup in self.faults.reported():
            self.fail_for_fault(tup, tup._fault or "")

    def _undo_ack(self, tup: Tuple, reason: str) -> None:
        """Fail a tuple that was acked in the same ``execute``; for the acker a fail outweighs the ack."""
        tup._state = FAILED
        self.counters.acked -= 1
        self.fails.pack(tup, reason)

    def reset_timeout(self, tup: Tuple) -> None:
        """Restart the message timeout of the tuple's source records.

        The reset is sent immediately, however long ``execute`` takes and whatever is not committed yet.

        Raises:
            AckedTwice, NotInHand, WrongThread: see each error.
        """
        with self.guard:
            if not self.faults.check_in_hand(tup, "reset the timeout of"):
                return
            tup._since_s = world.monotonic_s()
            try:
                for version, root, _ in tup.anchors if tup._anchors else ():
                    self._packer.reset_at_once(version, root)
            except Exception as error:
                self.children.raise_fatal(error)

    def _finish(self, tup: Tuple, verb: str) -> bool:
        if (tup._collector is not self or tup._state is not IN_HAND) and not self.faults.check_in_hand(
            tup, verb
        ):
            return False
        tup._state = ACKED
        if tup._hand is not None:
            del tup._hand[tup.offset]
        return True

    def drop(self, tuples: Iterable[Tuple]) -> None:
        """Release tuples in hand that another worker will read again."""
        for tup in tuples:
            self.counters.dropped += tup._state is not DROPPED
            tup._state = DROPPED

    def release(self) -> bool:
        """Send what is held back for the next commit; return whether more of it waits for another one."""
        return False  # here nothing is held back

    def flush(self) -> None:
        """Pack and send all acks and fails. Raises the first fatal error of the output."""
        self.check()
        self.fails.begin_flush()
        self.lines.flush()
        self.sums.pack(self.targets.all())
        self._packer.flush()

    @property
    def has_unsent(self) -> bool:
        """Whether an ack or fail waits for the flush."""
        return bool(self.sums.acked) or len(self._packer) > 0

    def find_origin(self, anchor: Anchor) -> SourceOrigin | None:
        return self._origins.find(anchor)
