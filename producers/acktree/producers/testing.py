"""Runs a bolt without Kafka, for unit tests: give it values, see its emissions, acks and finished trees.

Invariant: the bolt runs through the worker's own code, down to the bytes of headers and acks; only the
broker, the clock and the other members of its group are missing. Every given value has its own tree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from confluent_kafka import Message

from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.settings import Settings
from acktree.core.topology.file import BoltTable
from acktree.core.topology.registry import History, Published, Slot
from acktree.producers.bolt import AnyBolt, Context
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.collecting.counters import Counters
from acktree.producers.columns import NO_TIMESTAMP
from acktree.producers.functions import as_bolt
from acktree.producers.serdes.payloads import topics_of
from acktree.producers.tuples import IN_HAND, Hand, Record
from acktree.producers.worker.executing.bolt_kinds import check_bolt, collector_of, configure, make_execution
from acktree.producers.worker.executing.intake import Intake
from acktree.wire.codec import decode_ack
from acktree.wire.control_records import BACK_OFF, NEVER
from acktree.wire.header import HEADER, Anchor, decode_header, encode_header, find_header
from acktree.wire.ids import emitted_value, generation_of, origin_of, root_id

END_TIMEOUT_S = 10.0
"""How long an AsyncBolt may take for the given values."""
CHECK_INTERVAL_S = 0.001

INPUT = "in"
_READER = "reader-of-the-bolt-under-test"


@dataclass(frozen=True, slots=True)
class Emission:
    """One record that a bolt emitted; ``anchors`` are the numbers of the values it descends from.

    ``timestamp_ms`` is None if the bolt gave none.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: UserHeaders = field(default_factory=list)
    anchors: tuple[int, ...] = ()
    timestamp_ms: int | None = None


class BoltDouble:
    """Runs one bolt in memory; values are numbered from 0 in the order in which they are given.

    ``failed`` has the reason of each failed value; ``rejected`` are those that are never retried,
    ``retry_after_s`` has the delay of those with one.

    >>> from acktree.producers import BasicBolt
    >>> class Upper(BasicBolt):
    ...     def execute(self, tup, emit):
    ...         emit(tup.value.upper())
    >>> double = BoltDouble(Upper())
    >>> double.give(b"a", b"b")
    >>> [emission.value for emission in double.emitted], double.acked, double.open
    ([b'A', b'B'], {0, 1}, {})
    """

    def __init__(
        self,
        bolt: AnyBolt | Callable[..., Any],
        *,
        emits: Iterable[str] | None = None,
        exactly_once: bool = False,
        settings: Settings | None = None,
    ) -> None:
        """Prepare the bolt. Each topic of ``emits`` has one reader, which acks everything.

        By default it emits to the topics that the bolt's class names in ``emits_as``, else to "out".
        ``settings`` are client settings, such as ``schema.registry.url``.
        """
        self.emitted: list[Emission] = []
        self.acked: set[int] = set()
        self.failed: dict[int, str] = {}
        self.stacks: dict[int, str] = {}
        self.rejected: set[int] = set()
        self.retry_after_s: dict[int, float] = {}
        self.resets: list[int] = []
        self._is_closed = False
        bolt = as_bolt(bolt)
        check_bolt(bolt)
        self._values: dict[int, int] = {}
        self._edges = EdgeSource()
        self._hand: Hand = {}
        name = bolt.name or "bolt"
        self._reads = bolt.reads or topics_of(bolt.reads_as) or (INPUT,)
        written = bolt.emits or topics_of(bolt.emits_as) or ("out",)
        topology = _topology(name, self._reads, written if emits is None else tuple(emits))
        self._history = History(topology.name, {1: topology})
        packer = AckPacker(self._history, f"{name}@test", self._on_ack_record)
        self._collector = collector_of(bolt, exactly_once)(name, self._history, packer, self._on_emission)
        configure(self._collector, bolt, topology.bolts[name], name, settings or {})
        intake = Intake(name, self._history)
        self._execution = make_execution(
            bolt, self._collector, intake, lambda *_: self._hand, exactly_once=exactly_once
        )
        self._execution.prepare(Context(topology, name, f"{name}@test"))

    def give(
        self,
        *values: bytes | str | None,
        key: bytes | None = None,
        headers: UserHeaders | None = None,
        topic: str | None = None,
    ) -> None:
        """Execute these values as one batch, and wait for an AsyncBolt; None is a tombstone.

        ``topic`` is one that the bolt reads, by default the first.

        Raises:
            TimeoutError: an AsyncBolt has not finished within END_TIMEOUT_S.
        """
        self.begin(*values, key=key, headers=headers, topic=topic)
        deadline_s = world.monotonic_s() + END_TIMEOUT_S
        while self.is_busy:
            if world.monotonic_s() > deadline_s:
                raise TimeoutError(f"tuples {self.in_hand} did not finish within {END_TIMEOUT_S:g} s")
            world.sleep(CHECK_INTERVAL_S)
            self._execution.collect()
        self._flush()

    def begin(
        self,
        *values: bytes | str | None,
        key: bytes | None = None,
        headers: UserHeaders | None = None,
        topic: str | None = None,
    ) -> None:
        """Execute these values as one batch; an AsyncBolt only begins with them."""
        self._execution.run([self._record(value, key, headers, topic or self._reads[0]) for value in values])

    @property
    def is_busy(self) -> bool:
        """Whether an AsyncBolt still executes something; ``tick`` collects what has ended."""
        return self._execution.is_busy

    def tick(self) -> None:
        """Let ``tick_interval_s`` pass."""
        self._execution.tick()
        self._flush()

    def time_out(self) -> None:
        """Let the message timeout pass: what was in hand meanwhile fails, after the bolt's ``timed_out``."""
        self._execution.time_out(list(self._hand.values()), 0)
        self._flush()

    def _flush(self) -> None:
        self._execution.collect()
        self._collector.release()
        self._collector.flush()

    def take_away(self) -> None:
        """Assign the partition to another worker: what is in hand is dropped."""
        held = list(self._hand.values())
        waiting = [tup for tup in held if tup._state is IN_HAND]
        self._hand.clear()
        self._collector.drop(held)
        self._execution.drop(waiting)

    def close(self) -> None:
        """Stop the bolt; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._execution.cleanup()

    @property
    def counters(self) -> Counters:
        return self._collector.counters

    @property
    def in_hand(self) -> list[int]:
        """The numbers of the values that were neither acked nor failed."""
        return sorted(self._hand)

    @property
    def open(self) -> dict[int, int]:
        """By number, the XOR of each open tree: of its init, the bolt's acks and the readers' acks."""
        return {number: value for number, value in self._values.items() if value}

    def _record(
        self, value: bytes | str | None, key: bytes | None, headers: UserHeaders | None, topic: str
    ) -> Record:
        number = len(self._values)
        anchor = Anchor(1, root_id(0, generation_of(1, 0), number), self._edges.one())
        self._values[number] = emitted_value(anchor.edge, self._history.readers(1, topic).hashes)
        made = Message(
            topic=topic,
            partition=0,
            offset=number,
            key=key,
            value=_as_bytes(value),
            headers=[*(headers or ()), (HEADER, encode_header(1, [anchor]))],
            timestamp=(1, number),
        )
        return cast(Record, made)

    def _on_emission(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Record an emission, and ack it for the topic's reader."""
        written = [(name, _as_bytes(text)) for name, text in headers or ()]
        header = find_header(written)
        anchors = decode_header(header).anchors if header else ()
        for anchor in anchors:
            self._values[origin_of(anchor.root).offset] ^= emitted_value(
                anchor.edge, self._history.readers(1, topic).hashes
            )
        numbers = tuple(origin_of(anchor.root).offset for anchor in anchors)
        rest: UserHeaders = [pair for pair in written if pair[0] != HEADER]
        emission = Emission(topic, _as_bytes(value), _as_bytes(key), rest, numbers, timestamp_ms or None)
        self.emitted.append(emission)

    def _on_ack_record(self, _topic: str, _partition: int, value: bytes) -> None:
        record = decode_ack(value)
        for entry in record.acks:
            number = origin_of(int(entry["root"])).offset
            self._values[number] ^= int(entry["value"])
            self.acked.add(number)
        for fail in record.fails:
            number = origin_of(fail.root).offset
            self.failed[number] = fail.reason
            if fail.failed_tuple is not None:
                self.stacks[number] = fail.failed_tuple.stack
            if fail.retry_after_ms == NEVER:
                self.rejected.add(number)
            elif fail.retry_after_ms != BACK_OFF:
                self.retry_after_s[number] = fail.retry_after_ms / 1000
        self.resets += [origin_of(int(root)).offset for root in record.resets]


def _as_bytes(part: object) -> bytes | None:
    """Return the bytes that a producer would write. Raises TypeError."""
    if isinstance(part, str):
        return part.encode()
    if part is None or isinstance(part, bytes):
        return part
    raise TypeError(f"a record's key, value and headers are bytes, str or None, not {part!r}")


def _topology(name: str, reads: tuple[str, ...], emits: tuple[str, ...]) -> Published:
    bolts = {name: BoltTable.model_validate({"reads": reads, "emits": emits})}
    if emits:
        bolts[_READER] = BoltTable.model_validate({"reads": emits})
    fields = {
        "name": "test",
        "ackers": 1,
        "version": 1,
        "spouts": {"spout": {"topics": ("source",), "emits": reads}},
        "bolts": bolts,
        "spout_tasks": {"spout": (0,)},
        "slots": (Slot(slot=0, spout="spout", topic="source", topic_id="test", partition=0),),
    }
    return Published.model_validate(fields)
