"""Reads the trees of many finished roots from the log together.

Invariant: a tree is complete only if every part of the log that may hold some of it was read, began before
it, and gave its init; otherwise ``incomplete`` says why. Reading ends at a deadline.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from confluent_kafka import Message as Record

from acktree.console.traces.finished import ACKED, FinishedRoot
from acktree.console.view.cluster import Cluster, OffsetRange, Place, what_is_unread
from acktree.console.view.records.completeness import what_is_missing
from acktree.console.view.records.tree import (
    CommittedAt,
    TracedEmission,
    TraceResult,
    TupleTrace,
    make_emission,
)
from acktree.console.view.records.tree_reader import MARGIN_MS, TreeReader, add_init, headers_of
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.kafka.log_reader import Found
from acktree.core.topology.registry import Published, Slot
from acktree.wire.codec import decode_ack_init
from acktree.wire.errors import MalformedRecord
from acktree.wire.ids import origin_of
from acktree.wire.trace_context import TraceContext, context_of

MAX_TUPLES = 1_000
"""Of how many tuples a tree has spans."""
MAX_GAP = 1_000
"""Source records this close together are read in one go."""
Coordinates = tuple[str, int, int]
Emissions = dict[tuple[int, int], set[int]]
"""Roots of all emissions that were met, by slot and offset."""


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A root's source record: ``note`` says why its headers are unknown, "" if they are known."""

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


def read_trees(cluster: Cluster, finished: Sequence[FinishedRoot], limit_s: float) -> list[ReadTree]:
    """Read the trees of finished roots, in their order.

    Raises:
        BrokerUnreachable, BrokerRefused: see their docstrings.
    """
    cluster.refresh()
    reader, topology = TreeReader(cluster, world.monotonic_s() + limit_s), cluster.topology
    by_root = {each.root: each for each in finished}
    emissions: Emissions = {}
    for root, each in by_root.items():
        result = TraceResult(each.kind, each.acker, each.task, each.reason, each.at)
        reader.findings_of(root).results.append(result)
        origin = origin_of(root)
        emissions.setdefault((origin.slot, origin.offset), set()).add(root)
    until_ms = max(each.at.time_ms for each in finished) + MARGIN_MS
    _read_inits(reader, emissions, topology, min(each.at.time_ms for each in finished), until_ms)
    begun = [gathered.inits[0][1].at.time_ms for gathered in reader.found.values() if gathered.inits]
    first_ms = min([each.at.time_ms for each in finished] + begun)
    from_ms = first_ms - round(1000 * topology.orphan_timeout_s)
    places = reader.partitions_of(topology.ack_topic, reader.found)
    reader.read_acks(reader.found, reader.spans_of(places, from_ms, until_ms))
    reader.read_tuples(from_ms, until_ms)
    sources, commits = read_sources(cluster, by_root), reader.read_commits()
    return [_tree(reader, emissions, each, sources[root], commits) for root, each in by_root.items()]


def _read_inits(
    reader: TreeReader, emissions: Emissions, topology: Published, first_ms: int, until_ms: int
) -> None:
    """Read inits back from the results, further and further until all are found or the log begins."""
    places = reader.partitions_of(topology.ack_init_topic, reader.found)
    starts, ends = reader.cluster.starts(places), reader.cluster.ends(places)
    ends |= reader.cluster.at_time(places, until_ms)
    window_ms = round(1000 * (topology.message_timeout_s + topology.orphan_timeout_s)) + MARGIN_MS
    from_ms = first_ms
    while not reader.is_late:
        from_ms -= window_ms
        begins = reader.cluster.at_time(places, from_ms)
        spans = {place: OffsetRange(min(begins[place], ends[place]), ends[place]) for place in places}
        _scan_inits(reader, emissions, spans)
        ends = {place: span.start for place, span in spans.items()}
        if all(gathered.inits for gathered in reader.found.values()):
            return
        if all(end <= starts.get(place, 0) for place, end in ends.items()):
            return
        window_ms *= 2


def _scan_inits(reader: TreeReader, emissions: Emissions, spans: dict[Place, OffsetRange]) -> None:
    for batch in reader.scan(spans):
        for record in batch:
            try:
                init = decode_ack_init(record.value() or b"")
            except MalformedRecord:
                continue
            for root, value in init.inits.tolist():
                origin = origin_of(root)
                if (roots := emissions.get((origin.slot, origin.offset))) is not None:
                    roots.add(root)
                if (gathered := reader.found.get(root)) is not None:
                    add_init(gathered, init, value, record)


def _tree(
    reader: TreeReader,
    emissions: Emissions,
    finished: FinishedRoot,
    source: SourceRecord,
    commits: CommittedAt,
) -> ReadTree:
    history, gathered = reader.cluster.history, reader.found[finished.root]
    origin, incomplete = origin_of(finished.root), list(reader.notes)
    if not gathered.inits:
        incomplete.append("its init is not in the log")
    if source.note:
        incomplete.append(source.note)
    spout, is_acked = "" if source.slot is None else source.slot.spout, finished.kind == ACKED
    incomplete += what_is_missing(gathered, history, spout, is_acked)
    tuples = {(each.at.topic, each.at.partition, each.at.offset): each.trace for each in gathered.tuples}
    if len(gathered.tuples) > MAX_TUPLES:
        incomplete.append(f"{len(gathered.tuples)} tuples, {MAX_TUPLES} of them are exported")
        del gathered.tuples[MAX_TUPLES:]
    emission = make_emission(gathered, history, commits, not incomplete)
    if is_acked and emission.open_value != "0":
        incomplete.append("some of its messages are missing: those found do not add up to a finished tree")
    others = emissions[origin.slot, origin.offset] - {finished.root}
    return ReadTree(finished, emission, source, tuples, tuple(sorted(others)), incomplete)


def read_sources(cluster: Cluster, roots: Iterable[int]) -> dict[int, SourceRecord]:
    """Return the source record of each root, for its trace; those close together are read in one go."""
    slots = {slot.slot: slot for slot in cluster.topology.slots}
    found: dict[int, SourceRecord] = {}
    wanted: dict[Place, dict[int, list[int]]] = {}
    for root in roots:
        origin = origin_of(root)
        slot = slots.get(origin.slot)
        note = "" if slot is not None else f"the topology no longer has slot {origin.slot}"
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
    found: dict[int, Record | str] = dict.fromkeys(offsets, "its source record no longer exists")
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
            for log_range in cluster.scan({place: span}):
                if log_range.found in (Found.DAMAGED, Found.HIDDEN):
                    unread = (each for each in offsets if log_range.start <= each < log_range.end)
                    found |= dict.fromkeys(unread, f"its source record: {what_is_unread(log_range)}")
                found |= {each.offset() or 0: each for each in log_range.records if each.offset() in found}
            at = last + 1
    except NotAuthorized as error:
        return dict.fromkeys(offsets, f"its source record may not be read: {error}")
    return found
