"""Buffers the emissions of one tuple of an AsyncBolt.

Invariant: it is used on the event loop only, and while the tuple's ``execute`` runs; nothing is sent before.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from acktree.core import world
from acktree.producers.bolt import Emit
from acktree.producers.collecting.collector import ChildFields, Collector, UserHeaders
from acktree.producers.collecting.held_output import CHILD_BYTES, HeldChild
from acktree.producers.collecting.payloads import check_headers, check_payload
from acktree.producers.errors import EmitAfterAck, Misuse, WrongThread
from acktree.producers.tuples import Tuple


class BufferedEmit(Emit):
    """Buffers what one tuple emits until its ``execute`` has ended."""

    __slots__ = ("children", "held_bytes", "resets", "thread", "tuple")

    def __init__(self, collector: Collector, tup: Tuple, resets: deque[Tuple]) -> None:
        super().__init__(collector)
        self.tuple = self.current = tup
        self.resets = resets
        self.children: list[HeldChild] = []
        self.held_bytes = 0
        self.thread = world.thread_id()

    def __call__(
        self,
        value: Any,
        *,
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a child when ``execute`` has ended. Raises what Emit raises, and EmitAfterAck after that."""
        try:
            self._check()
            value = self._collector.payloads.write(value, self._collector.targets.find(topic).topic)
            check_payload(value, key, timestamp_ms)
            if headers is not None:
                check_headers(headers)
        except Misuse as misuse:
            self._collector.faults.report(misuse, self.tuple)
        child = HeldChild((self.tuple,), value, topic, key, headers and list(headers), timestamp_ms)
        self.children.append(child)
        self.held_bytes += CHILD_BYTES + len(value or b"")

    def many(self, children: Sequence[ChildFields]) -> None:
        """Emit the children that a function returned."""
        for value, topic, key, headers, timestamp_ms in children:
            self(value, topic=topic, key=key, headers=headers, timestamp_ms=timestamp_ms)

    def reset_timeout(self) -> None:
        """Restart the message timeout; sent in the worker's next turn, which waits for no tuple."""
        try:
            self._check()
        except Misuse as misuse:
            self._collector.faults.report(misuse, self.tuple)
        self.resets.append(self.tuple)

    def _check(self) -> None:
        if self.current is None:
            raise EmitAfterAck(
                f"cannot emit for {self.tuple!r}: its execute has ended; await everything that emits"
            )
        if world.thread_id() != self.thread:
            raise WrongThread(
                f"cannot emit for {self.tuple!r} in thread {world.thread_name()!r}: an AsyncBolt "
                "may emit only on its event loop; let the thread return the values to emit"
            )
