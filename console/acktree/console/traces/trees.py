"""Reads the trees of many finished roots from the log at once: as ``view/search.py`` does for one record.

Invariant: a tree is complete only if every part of the log that may hold some of it was read, began before
it, and gave its init; otherwise ``incomplete`` says why. Reading ends at a deadline.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from confluent_kafka import Message as Record

from acktree.console.traces.completeness import what_is_missing
from acktree.console.traces.finished import ACKED, FinishedRoot, at_of
from acktree.console.view.cluster import Cluster, OffsetRange, Place
from acktree.console.view.search import headers_of
from acktree.console.view.tree import (
    At,
    ControlEntry,
    FoundTuple,
    RootFindings,
    TracedEmission,
    TraceResult,
    make_emission,
)
from acktree.schemas import world
from acktree.schemas.codec import decode_ack, decode_ack_init
from acktree.schemas.errors import MalformedRecord, NotAuthorized
from acktree.schemas.header import ANCHOR_BYTES, HEADER, decode_header
from acktree.schemas.ids import acker_partition, origin_of
from acktree.schemas.registry import Published, Slot
from acktree.schemas.trace_context import TraceContext, context_of

MARGIN_MS = 2_000
MAX_TUPLES = 1_000
"""Of how many tuples a tree has spans."""
MAX_GAP = 1_000
"""Source records this close together are read in one go."""
ROOT_AT = 5
"""Where the first root is in a tuple header."""

Coordinates = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class TupleTrace:
    """What the headers of a tuple say: its trace context, and the roots of all its trees."""

    context: TraceContext | None
    roots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A root's source record: ``note`` says why its headers are not known, "" where they are."""

    slot: Slot | None
    offset: int
    context: TraceContext | None = None
    time_ms: int | None = None
    note: str = ""


@dataclass(slots=True)
class ReadTree:
    """A finished tree as it was read, with its ``tuples``; ``others`` are emissions of the same record."""

    finished: FinishedRoot
    emission: TracedEmission
    source: SourceRecord
    tuples: dict[Coordinates, TupleTrace]
    others: tuple[int, ...]
    incomplete: list[str]


@dataclass(slots=True)
class _Reading:
    cluster: Cluster
    deadline_s: float
    found: dict[int, RootFindings]
    contexts: dict[int, dict[Coordinates, TupleTrace]]
    notes: list[str] = field(default_factory=list)
    emissions: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """Roots of all emissions that were met, by slot and offset."""

    def spans(self, places: Iterable[Place], from_ms: int, until_ms: int) -> dict[Place, OffsetRange]:
        """Return what to read of partitions; note those whose log begins within the time."""
        asked = list(places)
        starts, begins = self.cluster.starts(asked), self.cluster.at_time(asked, from_ms)
        ends = self.cluster.ends(asked) | self.cluster.at_time(asked, until_ms)
        for place, start in starts.items():
            if 0 < start == begins.get(place):
                self.mark_incomplete(
                    f"{place[0]}/{place[1]} holds no records from before its part of the tree"
                )
        return {place: OffsetRange(begins[place], ends[place]) for place in asked if place in begins}

    def mark_incomplete(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def is_late(self) -> bool:
        if world.monotonic_s() <= self.deadline_s:
            return False
        self.mark_incomplete("the time for reading was up")
        return True


def read_trees(cluster: Cluster, finished: Sequence[FinishedRoot], limit_s: float) -> list[ReadTree]:
    """Read the trees of finished roots, in their order.

    Raises:
        BrokerUnreachable, BrokerRefused: see there.
    """
    cluster.refresh()
    by_root = {each.root: each for each in finished}
    made = {root: RootFindings(root, inits=[], messages=[], tuples=[], results=[]) for root in by_root}
    reading = _Reading(cluster, world.monotonic_s() + limit_s, made, {root: {} for root in by_root})
    for root, each in by_root.items():
        result = TraceResult(each.kind, each.acker, each.task, each.reason, each.at)
        made[root].results = [result]
        origin = origin_of(root)
        reading.emissions.setdefault((origin.slot, origin.offset), set()).add(root)
    topology = cluster.topology
    until_ms = max(each.at.time_ms for each in finished) + MARGIN_MS
    _read_inits(reading, topology, min(each.at.time_ms for each in finished), until_ms)
    begun = [gathered.inits[0][1].at.time_ms for gathered in made.values() if gathered.inits]
    first_ms = min([each.at.time_ms for each in finished] + begun)
    from_ms = first_ms - round(1000 * topology.orphan_timeout_s)
    _read_acks(reading, topology, from_ms, until_ms)
    _read_tuples(reading, from_ms, until_ms)
    sources, commits = read_sources(cluster, by_root), _commits(reading, topology)
    return [_tree(reading, each, sources[root], commits) for root, each in by_root.items()]


def _commits(reading: _Reading, topology: Published) -> dict[tuple[str, Place], int]:
    """Return how far bolts have committed the partitions of the tuples that were found."""
    known: dict[tuple[str, Place], int] = {}
    for bolt, table in topology.bolts.items():
        places = {
            (each.at.topic, each.at.partition)
            for gathered in reading.found.values()
            for each in gathered.tuples or ()
            if each.at.topic in table.reads
        }
        commits = reading.cluster.committed(topology.group_of(bolt), places)
        known.update({(bolt, place): committed.next_offset for place, committed in commits.items()})
    return known


def _ack_places(reading: _Reading, topic: str, roots: Iterable[int]) -> list[Place]:
    """Return the partitions of a control topic that may hold roots, in any version of the topology."""
    counts = {version.ackers for version in reading.cluster.history.versions.values() if version.ackers}
    wanted = {(topic, acker_partition(root, ackers)) for root in roots for ackers in counts}
    return [place for place in reading.cluster.partitions([topic]) if place in wanted]


def _read_inits(reading: _Reading, topology: Published, first_ms: int, until_ms: int) -> None:
    """Read inits back from the results, further and further until all are found or the log begins."""
    places = _ack_places(reading, topology.ack_init_topic, reading.found)
    starts, ends = reading.cluster.starts(places), reading.cluster.ends(places)
    ends |= reading.cluster.at_time(places, until_ms)
    window_ms = round(1000 * (topology.message_timeout_s + topology.orphan_timeout_s)) + MARGIN_MS
    from_ms = first_ms
    while not reading.is_late:
        from_ms -= window_ms
        begins = reading.cluster.at_time(places, from_ms)
        spans = {place: OffsetRange(min(begins[place], ends[place]), ends[place]) for place in places}
        _scan_inits(reading, spans)
        ends = {place: span.start for place, span in spans.items()}
        if all(gathered.inits for gathered in reading.found.values()):
            return
        if all(end <= starts.get(place, 0) for place, end in ends.items()):
            return
        window_ms *= 2


def _scan_inits(reading: _Reading, spans: dict[Place, OffsetRange]) -> None:
    places = set(reading.emissions)
    for batch in reading.cluster.scan(spans, reading.deadline_s):
        for record in batch:
            try:
                init = decode_ack_init(record.value() or b"")
            except MalformedRecord:
                continue
            for root, value in init.inits.tolist():
                origin = origin_of(root)
                if (origin.slot, origin.offset) not in places:
                    continue
                reading.emissions[origin.slot, origin.offset].add(root)
                if (gathered := reading.found.get(root)) is None:
                    continue
                gathered.version, gathered.partition = init.version, record.partition()
                task = f"spout task {init.spout_task}"
                entry = ControlEntry("init", task, f"{value:016x}", None, at_of(record))
                (gathered.inits if gathered.inits is not None else []).append((value, entry))


def _read_acks(reading: _Reading, topology: Published, from_ms: int, until_ms: int) -> None:
    places = _ack_places(reading, topology.ack_topic, reading.found)
    wanted = np.fromiter(reading.found, np.uint64, len(reading.found))
    for batch in reading.cluster.scan(reading.spans(places, from_ms, until_ms), reading.deadline_s):
        for record in batch:
            try:
                ack = decode_ack(record.value() or b"")
            except MalformedRecord:
                continue
            at = at_of(record)
            for fail in ack.fails:
                if (gathered := reading.found.get(fail.root)) is not None and gathered.messages is not None:
                    gathered.messages.append((0, ControlEntry("fail", ack.task, None, fail.reason, at)))
            for root, value in ack.acks[np.isin(ack.acks["root"], wanted)].tolist():
                messages = reading.found[root].messages
                assert messages is not None
                messages.append((value, ControlEntry("ack", ack.task, f"{value:016x}", None, at)))
    _ = reading.is_late


def _read_tuples(reading: _Reading, from_ms: int, until_ms: int) -> None:
    versions = reading.cluster.history.versions.values()
    for topic in sorted({topic for version in versions for topic in version.emitted_topics()}):
        try:
            places = reading.cluster.partitions([topic])
            spans = reading.spans(places, from_ms, until_ms)
            for batch in reading.cluster.scan(spans, reading.deadline_s):
                for record in batch:
                    headers = headers_of(record)
                    own = next((value for name, value in reversed(headers) if name == HEADER), None)
                    if own is not None and _names_one(own, reading.found):
                        _add_tuple(reading, own, headers, at_of(record))
        except NotAuthorized as error:
            reading.mark_incomplete(f"the tuples on {topic} may not be read: {error}")
    _ = reading.is_late


def _names_one(header: bytes, roots: Container[int]) -> bool:
    """Return whether a tuple header names one of the roots, before it is decoded."""
    places = range(ROOT_AT, len(header) - 15, ANCHOR_BYTES)
    return any(int.from_bytes(header[at : at + 8], "little") in roots for at in places)


def _add_tuple(reading: _Reading, header: bytes, headers: list[tuple[str, bytes | None]], at: At) -> None:
    try:
        decoded = decode_header(header)
    except MalformedRecord:
        return
    said = TupleTrace(context_of(headers), tuple(anchor.root for anchor in decoded.anchors))
    for anchor in decoded.anchors:
        if (gathered := reading.found.get(anchor.root)) is not None and gathered.tuples is not None:
            gathered.tuples.append(FoundTuple(anchor.edge, decoded.version, at))
            reading.contexts[anchor.root][at.topic, at.partition, at.offset] = said


def _tree(
    reading: _Reading,
    finished: FinishedRoot,
    source: SourceRecord,
    commits: dict[tuple[str, Place], int],
) -> ReadTree:
    cluster, gathered = reading.cluster, reading.found[finished.root]
    origin, incomplete = origin_of(finished.root), list(reading.notes)
    if not gathered.inits:
        incomplete.append("its init is not in the log")
    if source.note:
        incomplete.append(source.note)
    spout, is_acked = "" if source.slot is None else source.slot.spout, finished.kind == ACKED
    incomplete += what_is_missing(gathered, cluster.history, spout, is_acked)
    if gathered.tuples and len(gathered.tuples) > MAX_TUPLES:
        incomplete.append(f"{len(gathered.tuples)} tuples, of which {MAX_TUPLES} are exported")
        del gathered.tuples[MAX_TUPLES:]
    emission = make_emission(
        gathered, cluster.history, lambda bolt, place: commits.get((bolt, place)), not incomplete
    )
    if is_acked and emission.open_value != "0":
        incomplete.append("messages of it are missing: what was found does not add up to done")
    others = reading.emissions[origin.slot, origin.offset] - {finished.root}
    tuples = reading.contexts[finished.root]
    return ReadTree(finished, emission, source, tuples, tuple(sorted(others)), incomplete)


def read_sources(cluster: Cluster, roots: Iterable[int]) -> dict[int, SourceRecord]:
    """Return the source record of each root, for its trace; those close together are read in one go."""
    slots = {slot.slot: slot for slot in cluster.topology.slots}
    found: dict[int, SourceRecord] = {}
    wanted: dict[Place, dict[int, list[int]]] = {}
    for root in roots:
        origin = origin_of(root)
        slot = slots.get(origin.slot)
        note = "" if slot is not None else f"the topology has no slot {origin.slot} any more"
        found[root] = SourceRecord(slot, origin.offset, note=note)
        if slot is not None and slot.topic:
            wanted.setdefault((slot.topic, slot.partition), {}).setdefault(origin.offset, []).append(root)
    for place, offsets in wanted.items():
        for offset, record in _records(cluster, place, sorted(offsets)).items():
            for root in offsets[offset]:
                found[root] = _described(found[root], record)
    return found


def _described(source: SourceRecord, record: Record | str) -> SourceRecord:
    if isinstance(record, str):
        return replace(source, note=record)
    return replace(source, context=context_of(headers_of(record)), time_ms=record.timestamp()[1])


def _records(cluster: Cluster, place: Place, offsets: list[int]) -> dict[int, Record | str]:
    """Return records of a partition by offset, or why one is not there."""
    found: dict[int, Record | str] = dict.fromkeys(offsets, "its source record is no longer there")
    try:
        if place not in cluster.partitions([place[0]]):
            return found
        start, end = cluster.starts([place]).get(place, 0), cluster.ends([place]).get(place, 0)
        at = 0
        while at < len(offsets):
            last = at
            while last + 1 < len(offsets) and offsets[last + 1] - offsets[last] <= MAX_GAP:
                last += 1
            span = OffsetRange(max(start, offsets[at]), min(end, offsets[last] + 1))
            for batch in cluster.scan({place: span}):
                found |= {record.offset() or 0: record for record in batch if record.offset() in found}
            at = last + 1
    except NotAuthorized as error:
        return dict.fromkeys(offsets, f"its source record may not be read: {error}")
    return found
