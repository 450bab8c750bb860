"""A small network without Kafka: collectors of bolts, the records between them, the fold of their acks."""

from collections import defaultdict

from confluent_kafka import Message

from acktree.core.edges import EdgeSource
from acktree.core.topology.file import BoltTable, SpoutTable
from acktree.core.topology.registry import History, Published, Slot
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.collecting.collector import Collector
from acktree.producers.tuples import Hand, Tuple
from acktree.producers.worker.executing.intake import Intake
from acktree.wire.codec import decode_ack
from acktree.wire.control_records import FailedTuple
from acktree.wire.header import HEADER, Anchor, encode_header
from acktree.wire.ids import emitted_value, root_id


def published(version: int = 1, ackers: int = 2, **bolts: tuple[list[str], list[str]]) -> Published:
    """Return a topology "t": spout "s" emits "a"; bolts are given as name=([reads], [emits])."""
    return Published(
        name="t",
        ackers=ackers,
        version=version,
        spouts={"s": SpoutTable(topics=("src",), emits=("a",))},
        bolts={
            name: BoltTable(reads=tuple(reads), emits=tuple(emits)) for name, (reads, emits) in bolts.items()
        },
        spout_tasks={"s": (0,)},
        slots=(Slot(slot=0, spout="s", topic="src", topic_id="id", partition=3),),
    )


class Net:
    """The bolts of a topology side by side, and every acker in one dict: (version, root) → value."""

    def __init__(self, topology: Published) -> None:
        self.history = History("t", {topology.version: topology})
        self.fold: dict[tuple[int, int], int] = defaultdict(int)
        self.control_records = 0
        self.failed: list[tuple[int, str]] = []
        self.named: list[FailedTuple] = []
        self.resets: list[int] = []
        self.topics: dict[str, list[Message]] = defaultdict(list)
        self.edges = EdgeSource()
        self.taken: list[tuple[Tuple, Collector]] = []
        self.collectors = {name: self.make_collector(name) for name in topology.bolts}

    def make_collector(self, bolt: str) -> Collector:
        return Collector(
            bolt, self.history, AckPacker(self.history, bolt, self.on_control_record), self.produce
        )

    def on_control_record(self, _topic: str, _partition: int, value: bytes) -> None:
        record = decode_ack(value)
        self.control_records += 1
        self.named += [fail.failed_tuple for fail in record.fails if fail.failed_tuple is not None]
        self.failed += [(fail.root, fail.reason) for fail in record.fails]
        self.resets += [int(root) for root in record.resets]
        for entry in record.acks:
            self.fold[record.version, int(entry["root"])] ^= int(entry["value"])

    def produce(self, topic, value, key, headers, _timestamp_ms=0) -> None:
        offset = len(self.topics[topic])
        record = Message(
            topic=topic, partition=0, offset=offset, key=key, value=value, headers=headers, timestamp=(1, 5)
        )
        self.topics[topic].append(record)
        self.latest = record

    def spout(self, *offsets: int, topic: str = "a", version: int = 1) -> Message:
        """Emit one record anchored to a root per offset, and fold the inits."""
        anchors = [Anchor(version, root_id(0, 16, offset), self.edges.one()) for offset in offsets]
        for _, root, edge in anchors:
            self.fold[version, root] ^= emitted_value(edge, self.history.readers(version, topic).hashes)
        self.produce(topic, b"v", None, [(HEADER, encode_header(version, anchors))])
        return self.topics[topic][-1]

    def take(self, bolt: str, record: Message, hand: Hand | None = None) -> Tuple:
        """Return a record as a bolt's tuple."""
        collector = self.collectors[bolt]
        tup = Tuple(record, Intake(bolt, self.history).anchors_of(record), collector, hand)
        self.taken.append((tup, collector))
        if hand is not None:
            hand[tup.offset] = tup
        return tup

    def emit(self, bolt: str, anchors, topic: str | None = None) -> Message:
        """Let a bolt emit, and return the record."""
        self.collectors[bolt].emit(b"v", anchors=anchors, topic=topic)
        return self.latest

    def ack(self, tup: Tuple) -> None:
        """Let a tuple's bolt ack it, and send its acker updates."""
        taken_by = next(collector for taken, collector in self.taken if taken is tup)
        taken_by.ack(tup)
        taken_by.flush()

    def done(self, offset: int = 0, version: int = 1) -> bool:
        """Return whether the tree of a source offset is done."""
        return self.fold[version, root_id(0, 16, offset)] == 0
