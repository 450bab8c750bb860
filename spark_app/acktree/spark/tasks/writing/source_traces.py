"""Reads again the trace contexts of source records whose rows were shuffled.

A spout's read task marks the anchors of records that have a trace context, and a root says where its record
is. So only such records are read twice, and only after a shuffle: elsewhere they are handed over.
Invariant: a trace never decides what is written: a record that cannot be read in time goes without, and a log
line says so.
"""

import logging
from collections.abc import Iterable

import pyarrow as pa
from confluent_kafka import KafkaException, Message

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.log_reader import LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import Published
from acktree.producers.spouts.driver.one_record import by_partition, read_records
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

Place = tuple[str, int, int]
_MARK = slice(10, 18)
_NO_MARK = bytes(8)


class SourceTraces:
    """Finds the traces of a spout's rows; use in one task, then ``close``."""

    def __init__(self, bootstrap: str, user: Settings, group: str, topology: Published) -> None:
        self._bootstrap, self._user, self._group = bootstrap, user, group
        self._slots = {slot.slot: slot for slot in topology.slots}
        self._known: dict[Place, TraceContext | None] = {}
        self._log: LogReader | None = None
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
        if not (wanted := set(places) - self._known.keys()):
            return
        self._known.update(dict.fromkeys(wanted))
        until_s = world.monotonic_s() + READ_TIMEOUT_S
        try:
            log_reader = self._log = self._log or self._open()
            for partition, left in by_partition(wanted).items():
                while left:
                    left_s = max(0.0, until_s - world.monotonic_s())
                    about = log_reader, partition, left, self._bootstrap, left_s
                    found, left = read_records(*about, damaged=set())
                    self._known |= {(*partition, at): _context_of(each) for at, each in found.items()}
        except (AcktreeError, KafkaException) as error:
            self._log_unread(str(error))

    def _open(self) -> LogReader:
        about = self._bootstrap, self._group, self._user
        return LogReader(make_consumer(reader_settings(*about)), *about)

    def _log_unread(self, why: str) -> None:
        self._is_off = True
        log.warning("tuples are written without trace context: %s", why, extra={"action": "traces_unread"})

    def close(self) -> None:
        """Close the connections."""
        if self._log is not None:
            self._log.consumer.close()


def _context_of(message: Message) -> TraceContext | None:
    try:
        return context_of(read_headers(message))
    except MalformedRecord:
        return None
