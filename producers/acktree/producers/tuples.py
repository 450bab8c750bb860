"""A tuple as a bolt sees it: one input record and its place in the trees of its source records.

Invariant: a tuple is in hand until it is acked or failed, once, or dropped because its partition went to
another worker. Fields are decoded on access. Millions of tuples are created, so each stays small.
"""

from enum import Enum
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, Message

from acktree.wire.header import HEADER, Anchor, decode_header, first_anchor, read_headers

Headers = list[tuple[str, bytes | None]]

_ANY_HEAD = b"\x01\0\0"


class Record(Protocol):
    """The part of a Kafka record that a tuple needs; confluent_kafka.Message has it."""

    def error(self) -> KafkaError | None: ...
    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]: ...


RECORD_BYTES = 500
"""What a record takes besides its key and value."""


def size_of(record: Record | Message) -> int:
    """Return about how many bytes a record takes in memory."""
    return len(record.value() or b"") + len(record.key() or b"") + RECORD_BYTES


class State(Enum):
    """The state of a tuple."""

    IN_HAND = "in hand"
    ACKED = "acked"
    FAILED = "failed"
    DROPPED = "dropped with its partition"


IN_HAND, ACKED, FAILED, DROPPED = State.IN_HAND, State.ACKED, State.FAILED, State.DROPPED


class SourceOrigin(NamedTuple):
    """The source record a tuple descends from: the same in every replay, so a key for idempotent writes.

    ``attempt`` counts its emissions from 0, modulo 16. For a spout written in Python, topic is "", partition
    the number of its task, and offset a message number: not a lasting key. For a spout that tracks by
    ``block`` of several records, offset in a first emission is that of the first record in the block: the
    tuple's record is one of [offset, offset + block). All of them share this origin; in a replay each has its
    own. ``topic_id`` is Kafka's id of the source topic, random per topic: a topic or cluster that was
    recreated does not repeat the origins of its predecessor.
    """

    spout: str
    topic: str
    partition: int
    offset: int
    attempt: int
    block: int = 1
    topic_id: str = ""


class Owner(Protocol):
    """The collector that handed out a tuple."""

    def find_origin(self, anchor: Anchor) -> SourceOrigin | None: ...


class Tuple:
    """One input record of a bolt."""

    __slots__ = (
        "_anchors",
        "_collector",
        "_deferred",
        "_fault",
        "_hand",
        "_payload",
        "_record",
        "_since_s",
        "_state",
    )

    def __init__(self, record: Record, anchors: bytes, collector: Owner, hand: "Hand | None" = None) -> None:
        self._record = record
        self._anchors = anchors
        self._collector = collector
        self._hand = hand
        self._state = IN_HAND
        self._deferred: list[tuple[list[bytes], bytes]] | None = None  # (buffer, child): added on its ack
        self._fault: str | None = None
        self._since_s: float
        self._payload: Any

    @property
    def value(self) -> bytes | None:
        """The record's value; None if it has none (a tombstone), which is not the same as an empty value."""
        return self._record.value()

    @property
    def payload(self) -> Any:
        """The value decoded by the bolt's ``reads_as``, or the value itself; None for a tombstone."""
        try:
            return self._payload
        except AttributeError:
            return self._record.value()

    @property
    def key(self) -> bytes | None:
        return self._record.key()

    @property
    def topic(self) -> str:
        return self._record.topic() or ""

    @property
    def partition(self) -> int:
        partition = self._record.partition()
        return -1 if partition is None else partition

    @property
    def offset(self) -> int:
        offset = self._record.offset()
        return -1 if offset is None else offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, by its topic's message.timestamp.type; may be passed on."""
        return self._record.timestamp()[1]

    @property
    def headers(self) -> Headers:
        """The record's headers except ``acktree``, so they may be passed on."""
        return [header for header in read_headers(self._record) if header[0] != HEADER]

    @property
    def tracked(self) -> bool:
        """Whether the tuple is in a tree."""
        return bool(self._anchors)

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """The tuple's place in each of its trees; none for an untracked tuple."""
        return decode_header(_ANY_HEAD + self._anchors).anchors

    @property
    def origins(self) -> tuple[SourceOrigin, ...]:
        """The source records of all its trees; several after a join."""
        find = self._collector.find_origin
        found = (find(anchor) for anchor in self.anchors)
        return tuple(origin for origin in found if origin is not None)

    @property
    def origin(self) -> SourceOrigin | None:
        """The source record of its first tree; None for an untracked tuple."""
        if not self._anchors:
            return None
        return self._collector.find_origin(first_anchor(self._anchors))

    def __repr__(self) -> str:
        return f"Tuple({self.topic}[{self.partition}]@{self.offset}, {self._state.value})"


def is_over(tup: Tuple) -> bool:
    """Return whether the worker dropped or failed a tuple: its bolt's later calls for it do nothing."""
    return tup._state is DROPPED or (tup._state is FAILED and tup._fault is not None)


Place = tuple[str, int]
"""The topic and the number of a partition."""


def place_of(record: Record) -> Place:
    """Return the partition of a record."""
    return record.topic() or "", record.partition() or 0


Hand = dict[int, Tuple]
"""The tuples in hand of one input partition, by offset, in the order of their arrival."""
