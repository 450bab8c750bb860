"""Reads again the trace contexts of source records whose rows were shuffled.

A spout's read task marks the anchors of records that have a trace context, and a root says where its record
is. So only such records are read twice, and only after a shuffle: elsewhere they are handed over.
Invariant: a trace never decides what is written: a record that cannot be read in time goes without, and a log
line says so.
"""

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.topology.registry import Published
from acktree.spark.tasks.binary_rows import rows_of
from acktree.spark.tasks.trace_handoff import HandedTrace, emitted_by_spout
from acktree.wire.errors import AcktreeError, MalformedRecord
from acktree.wire.header import ANCHOR, Anchor, first_anchor, read_headers
from acktree.wire.ids import origin_of
from acktree.wire.trace_context import TraceContext, context_of

log = logging.getLogger("acktree.spark")

MAX_KNOWN = 200_000
"""How many records' traces a task remembers."""
READ_TIMEOUT_S = 10.0
"""How long the traces of one batch of rows may take to read."""
MAX_GAP = 1_000
"""Records this close together are read in one go."""

Place = tuple[str, int, int]
_MARK = slice(10, 18)
_NO_MARK = bytes(8)


class SourceTraces:
    """Finds the traces of a spout's rows; use in one task, then ``close``."""

    def __init__(self, bootstrap: str, user: Settings, group: str, topology: Published) -> None:
        self._bootstrap, self._user, self._group = bootstrap, user, group
        self._slots = {slot.slot: slot for slot in topology.slots}
        self._known: dict[Place, TraceContext | None] = {}
        self._consumer: Consumer | None = None
        self._is_off = False

    def of_rows(self, anchors: pa.Array) -> list[HandedTrace | None] | None:
        """Return the trace of each row of the column ``anchors``; None if none of their records has one."""
        rows = rows_of(anchors, ANCHOR)
        if self._is_off or (rows is not None and not rows["edge"].any()):
            return None
        marked = [
            first_anchor(item) if item and item[_MARK] != _NO_MARK else None for item in anchors.to_pylist()
        ]
        if not any(marked):
            return None
        self._read(place for anchor in marked if (place := self._place_of(anchor)) is not None)
        return [self._trace_of(anchor) for anchor in marked]

    def _place_of(self, anchor: Anchor | None) -> Place | None:
        """Return where the record of a marked anchor is; the mark is its place in its block, from 1."""
        if anchor is None:
            return None
        origin = origin_of(anchor.root)
        slot = self._slots.get(origin.slot)
        return None if slot is None else (slot.topic, slot.partition, origin.offset + anchor.edge - 1)

    def _trace_of(self, anchor: Anchor | None) -> HandedTrace | None:
        place = self._place_of(anchor)
        context = None if place is None else self._known.get(place)
        return None if anchor is None or context is None else emitted_by_spout(context, anchor.root)

    def _read(self, places: Iterable[Place]) -> None:
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        wanted = sorted(set(places) - self._known.keys())
        deadline_s = world.monotonic_s() + READ_TIMEOUT_S
        try:
            for cluster in _clusters(wanted):
                self._read_cluster(cluster, deadline_s)
        except (AcktreeError, KafkaException) as error:
            self._log_unread(str(error))

    def _read_cluster(self, places: list[Place], deadline_s: float) -> None:
        topic, partition, first = places[0]
        last, wanted = places[-1][2], {offset for _, _, offset in places}
        self._known.update(dict.fromkeys(places))
        consumer = self._consumer = self._consumer or self._open()
        consumer.assign([TopicPartition(topic, partition, first)])
        try:
            while world.monotonic_s() < deadline_s:
                for message in consumer.consume(last - first + 1, 0.1):
                    if (error := message.error()) is not None:
                        if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                            return
                        if not error.retriable():
                            raise KafkaException(error)
                        continue
                    offset = message.offset() or 0
                    if offset in wanted:
                        self._known[topic, partition, offset] = _context_of(message)
                    if offset >= last:
                        return
        finally:
            consumer.unassign()
        self._log_unread(f"{READ_TIMEOUT_S:g} s were not enough")

    def _open(self) -> Consumer:
        settings = consumer_settings(
            self._bootstrap, self._group, self._user, auto_offset_reset="error", enable_partition_eof=True
        )
        return make_consumer(settings)

    def _log_unread(self, why: str) -> None:
        self._is_off = True
        log.warning("tuples are written without trace context: %s", why, extra={"action": "traces_unread"})

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()


def _clusters(places: list[Place]) -> Iterator[list[Place]]:
    """Yield sorted places in groups of one partition, each close to the one before."""
    cluster: list[Place] = []
    for place in places:
        if cluster and (place[:2] != cluster[-1][:2] or place[2] - cluster[-1][2] > MAX_GAP):
            yield cluster
            cluster = []
        cluster.append(place)
    if cluster:
        yield cluster


def _context_of(message: Message) -> TraceContext | None:
    try:
        return context_of(read_headers(message))
    except MalformedRecord:
        return None
