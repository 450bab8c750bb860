"""Reads from the log the acks, fails and tuples of trees whose roots are known.

`acktree trace` reads one record's trees with it, `acktree export-traces` many together.
Invariant: reading stops at a deadline; a note names each part that is unread, gone or forbidden.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Message as Record

from acktree.console.view.cluster import Cluster, OffsetRange, Place, what_is_unread
from acktree.console.view.records.payloads import MAX_PAYLOADS, RecordPayload, missing, payload_of
from acktree.console.view.records.tree import (
    At,
    CommittedAt,
    ControlEntry,
    FoundTuple,
    RootFindings,
    TupleTrace,
    hexadecimal,
)
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.log_reader import Found
from acktree.wire.codec import decode_ack
from acktree.wire.control_records import AckInit
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import ANCHOR_BYTES, decode_header, find_header, read_headers
from acktree.wire.ids import IdArray, acker_partition
from acktree.wire.trace_context import context_of

MARGIN_MS = 2_000
FEW_ROOTS = 8
"""Up to this many roots are searched for as bytes before a record is decoded: 0.3 µs a record, not 12."""
ROOT_AT = 5
"""Where the first root is in a tuple header."""

Header = bytes
Headers = list[tuple[str, Header | None]]


def at_of(record: Record) -> At:
    """Return the coordinates of a record."""
    return At(record.topic() or "", record.partition() or 0, record.offset() or 0, record.timestamp()[1])


def headers_of(record: Record) -> Headers:
    """Return the headers of a record, in order; null is also a value. None if they cannot be read."""
    try:
        return read_headers(record)
    except MalformedRecord:
        return []


@dataclass(slots=True)
class TreeReader:
    """One reading of trees: its findings by root, and what it has read."""

    cluster: Cluster
    deadline_s: float
    since_ms: int | None = None
    payloads: bool = False
    found: dict[int, RootFindings] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    shown: int = 0
    unread: int = 0
    """How many ranges of offsets could not be read, other than what an open transaction hides."""
    hidden: dict[Place, int] = field(default_factory=dict)
    """What open transactions hide: partitions, and where that ends."""
    notes: list[str] = field(default_factory=list)
    _tuples_read: dict[Place, OffsetRange] = field(default_factory=dict)
    """Where tuples were searched for."""

    def findings_of(self, root: int) -> RootFindings:
        """Return what was found of a root, which is one of those to look for from now on."""
        return self.found.setdefault(root, RootFindings(root))

    def mark_incomplete(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def is_late(self) -> bool:
        """Return whether the deadline is over."""
        return world.monotonic_s() > self.deadline_s

    def scan(self, spans: Mapping[Place, OffsetRange], whole: bool = False) -> Iterator[list[Record]]:
        """Yield batches of records, counted; note what could not be read, or the deadline may have left.

        With ``whole`` an open transaction is waited for. Raises BrokerUnreachable: see ``Cluster.scan``.
        """
        for log_range in self.cluster.scan(spans, self.deadline_s, whole):
            batch = list(log_range.records)
            self.records += len(batch)
            self.bytes += sum(map(len, batch))
            if log_range.found is Found.HIDDEN:
                self.hidden[log_range.place] = log_range.end
            elif log_range.found is not Found.READ:
                self.unread += 1
                self.mark_incomplete(what_is_unread(log_range))
            if batch:
                yield batch
        if self.is_late:
            self.mark_incomplete(
                f"the time limit was reached while reading {', '.join(sorted({topic for topic, _ in spans}))}"
            )

    def spans(
        self, topics: Iterable[str], from_ms: int | None = None, until_ms: int | None = None
    ) -> dict[Place, OffsetRange]:
        """Return what to read of whole topics between two times."""
        return self.spans_of(self.cluster.partitions(topics), from_ms, until_ms)

    def spans_of(
        self, places: list[Place], from_ms: int | None, until_ms: int | None = None
    ) -> dict[Place, OffsetRange]:
        """Return what to read of partitions between two times; note whose log begins within them."""
        starts, ends = self.cluster.starts(places), self.cluster.ends(places)
        begins = starts
        if (begin_ms := self.since_ms if from_ms is None else max(from_ms, self.since_ms or 0)) is not None:
            begins = self.cluster.at_time(places, begin_ms)
        if until_ms is not None:
            ends |= self.cluster.at_time(places, until_ms)
        for place, start in starts.items():
            if begins is not starts and 0 < start == begins.get(place):
                self.mark_incomplete(
                    f"{place[0]}/{place[1]} begins within the time searched: older records of it are gone"
                )
        return {
            place: OffsetRange(begins[place], ends[place])
            for place in places
            if place in begins and place in ends
        }

    def partitions_of(self, topic: str, roots: Iterable[int], version: int | None = None) -> list[Place]:
        """Return the partitions of a control topic that may hold roots, in a version or in any of them."""
        history = self.cluster.history
        versions = history.versions.values() if version is None else [history.at(version)]
        counts = {each.ackers for each in versions if each.ackers}
        wanted = {(topic, acker_partition(root, ackers)) for root in roots for ackers in counts}
        return [place for place in self.cluster.partitions([topic]) if place in wanted]

    def read_acks(self, roots: Iterable[int], spans: Mapping[Place, OffsetRange]) -> None:
        """Read acks, fails and resets of some of the roots."""
        sought = {root: self.found[root] for root in roots}
        wanted = np.fromiter(sought, np.uint64, len(sought))
        needles = [root.to_bytes(8, "little") for root in sought] if len(sought) <= FEW_ROOTS else None
        for batch in self.scan(spans):
            for record in batch:
                value = record.value() or b""
                if needles is None or any(needle in value for needle in needles):
                    _add_ack(record, value, sought, wanted)

    def read_tuples(self, from_ms: int | None, until_ms: int | None) -> None:
        """Read the tuples whose headers name a root; where a topic may not be read, those of the others."""
        versions = self.cluster.history.versions.values()
        topics = sorted({topic for version in versions for topic in version.emitted_topics()})
        shown = self.shown
        try:
            self._read_tuples(topics, from_ms, until_ms)
            return
        except NotAuthorized:
            self.shown = shown
            for gathered in self.found.values():
                gathered.tuples.clear()
        for topic in topics:
            try:
                self._read_tuples([topic], from_ms, until_ms)
            except NotAuthorized as error:
                self.mark_incomplete(f"the tuples on {topic} are not shown: {error}")

    def read_later_tuples(self) -> None:
        """Read behind what ``read_tuples`` has read: senders set the times of tuples, which need not rise."""
        read, ends = self._tuples_read, self.cluster.ends(self._tuples_read)
        self._read_tuples_of({place: OffsetRange(read[place].end, end) for place, end in ends.items()})

    def read_earlier_tuples(self) -> None:
        """Read in front of what ``read_tuples`` has read."""
        read, starts = self._tuples_read, self.cluster.starts(self._tuples_read)
        self._read_tuples_of({place: OffsetRange(at, read[place].start) for place, at in starts.items()})

    def _read_tuples(self, topics: list[str], from_ms: int | None, until_ms: int | None) -> None:
        spans = self.spans(topics, from_ms, until_ms)
        self._read_tuples_of(spans)
        self._tuples_read |= spans

    def _read_tuples_of(self, spans: Mapping[Place, OffsetRange]) -> None:
        for batch in self.scan(spans):
            for record in batch:
                headers = headers_of(record)
                own = find_header(headers)
                if own is not None and _names_one(own, self.found):
                    self._add_tuple(own, headers, record)

    def _add_tuple(self, header: Header, headers: Headers, record: Record) -> None:
        try:
            decoded = decode_header(header)
        except MalformedRecord:
            return
        trace = TupleTrace(context_of(headers), tuple(anchor.root for anchor in decoded.anchors))
        for anchor in decoded.anchors:
            if (gathered := self.found.get(anchor.root)) is not None:
                payload = self._payload(record)
                found = FoundTuple(anchor.edge, decoded.version, at_of(record), payload, trace)
                gathered.tuples.append(found)

    def _payload(self, record: Record) -> RecordPayload | None:
        """Return what a tuple holds; None where payloads are not wanted."""
        if not self.payloads:
            return None
        if self.shown >= MAX_PAYLOADS:
            return missing(f"only the payloads of {MAX_PAYLOADS} tuples of this trace are shown")
        self.shown += 1
        return payload_of(record, self.cluster.schemas)

    def read_commits(self) -> CommittedAt:
        """Return how far bolts have committed the partitions of the tuples that were found."""
        topology, known = self.cluster.topology, dict[tuple[str, Place], int]()
        for bolt, table in topology.bolts.items():
            places = {
                (found.at.topic, found.at.partition)
                for gathered in self.found.values()
                for found in gathered.tuples
                if found.at.topic in table.reads
            }
            commits = self.cluster.committed(topology.group_of(bolt), places)
            known |= {(bolt, place): committed.next_offset for place, committed in commits.items()}
        return lambda bolt, place: known.get((bolt, place))


def add_init(gathered: RootFindings, init: AckInit, value: int, record: Record) -> None:
    """Add a root's entry of an init record."""
    gathered.version, gathered.partition = init.version, record.partition()
    task = f"spout task {init.spout_task}"
    gathered.inits.append((value, ControlEntry("init", task, hexadecimal(value), None, at_of(record))))


def _add_ack(record: Record, value: bytes, sought: Mapping[int, RootFindings], wanted: IdArray) -> None:
    try:
        ack = decode_ack(value)
    except MalformedRecord:
        return
    at, task = at_of(record), ack.task
    acks = [
        (root, folded, ControlEntry("ack", task, hexadecimal(folded), None, at))
        for root, folded in ack.acks[np.isin(ack.acks["root"], wanted)].tolist()
    ]
    fails = [(fail.root, 0, ControlEntry("fail", task, None, fail.reason, at)) for fail in ack.fails]
    resets = [(root, 0, ControlEntry("reset", task, None, None, at)) for root in ack.resets.tolist()]
    for root, folded, entry in (*fails, *acks, *resets):
        if (gathered := sought.get(root)) is not None:
            gathered.messages.append((folded, entry))
            if gathered.partition is None:
                gathered.version, gathered.partition = ack.version, record.partition()


def _names_one(header: Header, roots: Container[int]) -> bool:
    """Return whether a tuple header names one of the roots, before it is decoded."""
    places = range(ROOT_AT, len(header) - 15, ANCHOR_BYTES)
    return any(int.from_bytes(header[at : at + 8], "little") in roots for at in places)
