"""The classes to subclass: Bolt, like Storm's, or BasicBolt, BatchBolt and AsyncBolt, which ack for you.

Invariant: one instance is called by one thread only, from ``prepare`` to ``cleanup``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from acktree.core.topology.registry import Published
from acktree.producers.collecting.batch import BatchCollector
from acktree.producers.collecting.collector import ChildFields, Collector, UserHeaders
from acktree.producers.errors import NotInHand
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import Tuple


@dataclass(frozen=True, slots=True)
class Context:
    """The context a bolt runs in; ``topology`` is the newest version at the start."""

    topology: Published
    bolt: str
    task: str


class Emit:
    """Emits for a BasicBolt: a child of the tuple being executed."""

    __slots__ = ("_collector", "current")

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.current: Tuple | None = None

    def __call__(
        self,
        value: Any,
        *,
        topic: str | None = None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Emit a child; ``topic`` may be omitted if the bolt emits to one topic only.

        A child that its topic would never accept is logged and counted instead, and the tuple fails with it.

        Raises:
            NotInHand: called outside ``execute``.
            WrongTopic, NotSerializable, ReservedHeader, WrongThread: see each error.
        """
        self.many(((value, topic, key, headers, timestamp_ms),))

    def many(self, children: Sequence[ChildFields]) -> None:
        """Emit children in one call, none of them if one is refused. Raises what a call for one raises."""
        if self.current is None:
            misuse = NotInHand(
                "a BasicBolt can emit only while it executes a tuple; to emit later, subclass Bolt"
            )
            self._collector.faults.refuse_call(misuse)
        else:
            self._collector.emit_children(self.current, children)

    def reset_timeout(self) -> None:
        """Restart the message timeout of the tuple's source records. Raises NotInHand."""
        if self.current is None:
            misuse = NotInHand("a BasicBolt can reset a timeout only while it executes a tuple")
            self._collector.faults.refuse_call(misuse)
        else:
            self._collector.reset_timeout(self.current)


class AnyBolt:
    """The base of all kinds of bolts."""

    name: ClassVar[str] = ""
    """The bolt's name in the topology; may be empty if --bolt gives it or the topology has only one bolt."""

    never_retry: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions after which a tuple is not retried: its source record becomes a dead letter immediately."""

    execute_timeout_s: ClassVar[float] = 0.0
    """How long ``execute`` may take for a tuple or a batch; 0: no limit. The topology's takes precedence.

    After that the tuple fails. An AsyncBolt's ``execute`` is cancelled; with any other bolt the process ends
    if ``execute`` does not return.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    """The topics that its table in the topology must read; empty: any."""

    emits: ClassVar[tuple[str, ...]] = ()
    """The topics that its table in the topology must emit; empty: any."""

    reads_as: ClassVar[Any] = None
    """How values are read for ``tup.payload``: a Serde, a type (as JSON), or a dict of these by topic."""

    emits_as: ClassVar[Any] = None
    """How emitted objects are written, like ``reads_as``; bytes and None are written as they are."""


class SyncBolt(AnyBolt):
    """A bolt that is called in its own thread, one call after the other."""

    finish_timeout_s: ClassVar[float] = 30.0
    """How long a stop or a rebalance waits for ``execute`` before it leaves the tuple to the next worker."""

    def prepare(self, context: Context) -> None:
        """Open what ``execute`` needs; called once, before the first tuple."""

    def cleanup(self) -> None:
        """Close what ``prepare`` opened; called once at a clean stop, and after an error as well."""


class Bolt(SyncBolt):
    """Emits, acks and fails by hand; may hold tuples and ack them later, in any order.

    An exception out of ``execute`` fails the tuple it was called with, if that is still in hand.
    """

    max_in_hand: ClassVar[int] = 100_000
    """At this many tuples in hand, reading stops until half of them are acked or failed.

    If a bolt reads several topics, reading continues for partitions below an even share of it, so that a join
    with one side ahead still gets the other: at most twice as many tuples are in hand.
    """

    tick_interval_s: ClassVar[float | None] = None
    """How often to call ``tick`` between tuples; None: never."""

    def execute(self, tup: Tuple, collector: Collector) -> None:
        """Handle one tuple. Each must be acked or failed once, here or in a later call."""
        raise NotImplementedError

    def tick(self, collector: Collector) -> None:
        """Do periodic work, such as closing a window."""

    def timed_out(self, tup: Tuple, collector: Collector) -> None:
        """Forget a tuple that was in hand for longer than the message timeout: its tree has ended, or will.

        It may still be acked or failed here; if not, it fails afterwards, and later calls for it do nothing.
        A tuple that has to be held for longer needs ``collector.reset_timeout`` in time. An exception fails
        the tuple.
        """

    def drop(self, tuples: Sequence[Tuple]) -> None:
        """Forget tuples in hand: their partition was assigned to another worker, which reads them again."""


class BasicBolt(SyncBolt):
    """Handles one tuple at a time: emissions are anchored to the tuple, which is acked on return.

    An exception fails the tuple with its type and text.
    """

    def execute(self, tup: Tuple, emit: Emit) -> None:
        """Handle one tuple; ``emit(value, topic=…, key=…, headers=…)`` emits a child of it."""
        raise NotImplementedError


class BatchBolt(SyncBolt):
    """Handles a list of tuples at a time: tuples it does not fail are acked when it returns.

    Its output is sent when it returns. After an exception no output is sent, and the tuples that were not
    failed before are executed again in halves, until only those that raise by themselves have failed.
    """

    def execute(self, tuples: TupleBatch, collector: BatchCollector) -> None:
        """Handle a batch of at least one; ``collector.emit_many(values, anchors)`` emits children of it.

        ``tuples`` is a sequence of tuples; ``tuples.values`` and ``tuples.keys`` are its columns, and faster.
        Both may hold None: a record without a value is a tombstone. ``tuples.table()`` is an Arrow table.
        """
        raise NotImplementedError


class AsyncBolt(AnyBolt):
    """Handles many tuples at a time on one event loop; each is acked when its ``execute`` has ended.

    Its output is anchored to the tuple and sent when ``execute`` has ended. An exception fails the tuple with
    its type and text, and no output is sent. An ``execute`` that takes longer than the message timeout is
    cancelled, and its tuple fails.
    """

    max_concurrent: ClassVar[int] = 1_000
    """How many tuples may be executed concurrently; as many again wait in memory."""

    order: ClassVar[str] = "any"
    """"key": tuples of one topic and key are executed one after the other, all others concurrently."""

    finish_timeout_s: ClassVar[float] = 5.0
    """How long a stop or a rebalance waits for tuples that are being executed before it cancels them."""

    async def prepare(self, context: Context) -> None:
        """Open what ``execute`` needs; called once, before the first tuple."""

    async def execute(self, tup: Tuple, emit: Emit) -> None:
        """Handle one tuple; ``emit(value, topic=…, key=…, headers=…)`` emits a child of it.

        An ``execute`` that takes longer than the message timeout needs ``emit.reset_timeout()`` in time.
        """
        raise NotImplementedError

    async def cleanup(self) -> None:
        """Close what ``prepare`` opened; called once at a clean stop, and after an error as well."""
