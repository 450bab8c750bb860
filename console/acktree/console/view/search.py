"""Search the log for the records about one source record.

A root id is a bijection of (slot, generation, offset), so no generation is guessed: the root ids that control
records hold are inverted, and those of the record's slot and offset are its emissions. Then only partition
root mod n of `T.ack` is searched, for the eight bytes of the root, before anything is decoded.
Invariant: reading stops at a deadline, and the notes say what was left unread.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from confluent_kafka import Message as Record
from numpy.typing import NDArray

from acktree.console.view.cluster import Cluster, OffsetRange, Place
from acktree.console.view.payloads import MAX_PAYLOADS, RecordPayload, missing, payload_of
from acktree.console.view.tree import At, ControlEntry, FoundTuple, RootFindings, TraceResult
from acktree.schemas import world
from acktree.schemas.codec import decode_ack, decode_ack_init, decode_result_record
from acktree.schemas.control_records import AckInit, Result
from acktree.schemas.errors import MalformedRecord, NotAuthorized
from acktree.schemas.header import HEADER, decode_header, read_headers
from acktree.schemas.ids import IdArray, acker_partition, origin_of, root_id, unmix, unmix_array
from acktree.schemas.registry import Published, Slot

MARGIN_MS = 2_000
CHUNK = 2_000
_BUT_GENERATION = ~(0xFFF << 40) & (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """What is traced: a slot and an offset, which a root up to ``block`` - 1 offsets before may stand for."""

    slot: Slot
    offset: int
    block: int = 1


@dataclass(slots=True)
class Search:
    """One search: what it has found by root, and what it has read."""

    cluster: Cluster
    target: TraceTarget
    deadline_s: float
    since_ms: int | None
    payloads: bool = False
    found: dict[int, RootFindings] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    shown: int = 0
    notes: list[str] = field(default_factory=list)
    spout_tasks: set[int] = field(default_factory=set)
    """To which tasks inits ask for the result."""

    def findings_of(self, root: int) -> RootFindings:
        return self.found.setdefault(root, RootFindings(root, inits=[], messages=[], tuples=[], results=[]))

    def payload(self, record: Record) -> RecordPayload | None:
        """Return what a tuple holds; None where payloads are not wanted."""
        if not self.payloads:
            return None
        if self.shown >= MAX_PAYLOADS:
            return missing(f"the payloads of {MAX_PAYLOADS} tuples of this trace are shown, and no more")
        self.shown += 1
        return payload_of(record, self.cluster.schemas)

    def scan(self, spans: dict[Place, OffsetRange]) -> Iterable[list[Record]]:
        """Yield batches, counted; note what the deadline left unread."""
        left = dict(spans)
        for batch in self.cluster.scan(spans, self.deadline_s):
            self.records += len(batch)
            self.bytes += sum(map(len, batch))
            yield batch
            last = batch[-1]
            place = last.topic() or "", last.partition() or 0
            left[place] = OffsetRange((last.offset() or 0) + 1, spans[place].end)
        if world.monotonic_s() > self.deadline_s:
            topics = ", ".join(sorted({place[0] for place in spans}))
            self.notes.append(f"the time was up while reading {topics}; allow more with --time-limit")

    def spans(
        self, topics: Iterable[str], from_ms: int | None = None, until_ms: int | None = None
    ) -> dict[Place, OffsetRange]:
        """Return the spans of whole topics between two times."""
        places = self.cluster.partitions(topics)
        return self.spans_of(places, from_ms, until_ms)

    def spans_of(
        self, places: list[Place], from_ms: int | None, until_ms: int | None = None
    ) -> dict[Place, OffsetRange]:
        begin = self.since_ms if from_ms is None else max(from_ms, self.since_ms or 0)
        starts = self.cluster.starts(places) if begin is None else self.cluster.at_time(places, begin)
        ends = self.cluster.ends(places)
        if until_ms is not None:
            ends |= self.cluster.at_time(places, until_ms)
        return {
            place: OffsetRange(starts[place], ends[place])
            for place in places
            if place in starts and place in ends
        }


def _at(record: Record) -> At:
    return At(record.topic() or "", record.partition() or 0, record.offset() or 0, record.timestamp()[1])


def headers_of(record: Record) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record, in order; null is a value, too. None where they cannot be read."""
    try:
        return read_headers(record)
    except MalformedRecord:
        return []


def may_be_emissions(target: TraceTarget, roots: IdArray) -> NDArray[np.bool_]:
    """Return which of many roots may be emissions of the target, of whatever generation."""
    last = unmix(root_id(target.slot.slot, 1 << 4, target.offset)) & _BUT_GENERATION
    first = last - min(target.block - 1, target.offset)
    places = unmix_array(roots) & np.uint64(_BUT_GENERATION)
    found: NDArray[np.bool_] = (np.uint64(first) <= places) & (places <= np.uint64(last))
    return found


def drop_other_blocks(search: Search) -> None:
    """Discard the emissions of records and blocks before the target's.

    A record is in its block in a first emission alone. Such a root says where its block begins, not where it
    ends: in one run that is where the next one begins.
    """
    origins = {root: origin_of(root) for root in search.found}
    last_of_run: dict[int, int] = {}
    for origin in origins.values():
        if not origin.attempt:
            last_of_run[origin.run] = max(origin.offset, last_of_run.get(origin.run, 0))
    for root, origin in origins.items():
        if origin.offset != (search.target.offset if origin.attempt else last_of_run[origin.run]):
            del search.found[root]


def find_results(search: Search, topology: Published) -> None:
    """Read the result topics of the tasks that inits name, and of those that have owned the slot."""
    slot, versions = search.target.slot, search.cluster.history.versions.values()
    owners = {v.task_of(slot) for v in versions if slot.spout in v.spout_tasks and slot in v.slots}
    tasks = sorted(search.spout_tasks | owners)
    for batch in search.scan(search.spans([topology.result_topic(task) for task in tasks])):
        for start in range(0, len(batch), CHUNK):
            _match_results(search, batch[start : start + CHUNK])


def _match_results(search: Search, records: list[Record]) -> None:
    decoded = []
    for record in records:
        try:
            result = decode_result_record(record.value() or b"")
        except MalformedRecord:
            continue
        if isinstance(result, Result):
            decoded.append((record, result))
    for record, result, root in _matches(search.target, decoded, lambda result: result.acked):
        _add_result(search, root, TraceResult("acked", result.acker, None, None, _at(record)))
    for record, result in decoded:
        for failure in result.failed:
            if may_be_emissions(search.target, np.array([failure.root], np.uint64))[0]:
                kind = failure.cause.name.lower().replace("_", " ")
                source = (failure.task or None, failure.reason or None)
                _add_result(search, failure.root, TraceResult(kind, result.acker, *source, _at(record)))


Decoded = TypeVar("Decoded", Result, AckInit)


def _matches(
    target: TraceTarget, decoded: list[tuple[Record, Decoded]], roots_of: Callable[[Decoded], IdArray]
) -> Iterator[tuple[Record, Decoded, int]]:
    """Yield the records that name an emission of the target, with its root; all are inverted in one go."""
    if not decoded:
        return
    arrays = [roots_of(each) for _, each in decoded]
    roots = np.concatenate(arrays)
    behind: NDArray[np.int64] = np.cumsum([len(array) for array in arrays])
    for row in np.flatnonzero(may_be_emissions(target, roots)).tolist():
        record, each = decoded[int(np.searchsorted(behind, row, "right"))]
        yield record, each, int(roots[row])


def _add_result(search: Search, root: int, result: TraceResult) -> None:
    results = search.findings_of(root).results
    assert results is not None
    results.append(result)


def find_inits(search: Search, topology: Published) -> None:
    """Read the inits of all partitions: the generations that are out there are not known before."""
    for batch in search.scan(search.spans([topology.ack_init_topic])):
        for start in range(0, len(batch), CHUNK):
            _match_inits(search, batch[start : start + CHUNK])


def _match_inits(search: Search, records: list[Record]) -> None:
    decoded = []
    for record in records:
        try:
            decoded.append((record, decode_ack_init(record.value() or b"")))
        except MalformedRecord:
            continue
    for record, init, root in _matches(search.target, decoded, lambda init: init.inits["root"]):
        gathered = search.findings_of(root)
        search.spout_tasks.add(init.spout_task)
        value = int(init.inits["value"][init.inits["root"] == root][0])
        gathered.version, gathered.partition = init.version, record.partition()
        message = ControlEntry("init", f"spout task {init.spout_task}", f"{value:016x}", None, _at(record))
        assert gathered.inits is not None
        gathered.inits.append((value, message))


def find_acks(search: Search, topology: Published) -> None:
    """Search the partition of each root for its eight bytes, from before its init until its result."""
    existing = set(search.cluster.partitions([topology.ack_topic]))
    for root, gathered in list(search.found.items()):
        from_ms, until_ms = _times(gathered, topology)
        counts = {version.ackers for version in search.cluster.history.versions.values() if version.ackers}
        if gathered.version is not None:
            counts = {search.cluster.history.at(gathered.version).ackers}
        places = sorted({(topology.ack_topic, acker_partition(root, ackers)) for ackers in counts} & existing)
        needle = root.to_bytes(8, "little")
        for batch in search.scan(search.spans_of(places, from_ms, until_ms)):
            for record in batch:
                value = record.value() or b""
                if needle in value:
                    _add_ack(gathered, root, record, value)


def _times(gathered: RootFindings, topology: Published) -> tuple[int | None, int | None]:
    """Return the append times between which messages of a root may lie; acks may precede the init."""
    inits, results = gathered.inits or [], gathered.results or []
    from_ms = until_ms = None
    if inits:
        from_ms = int(inits[0][1].at.time_ms - 1000 * topology.orphan_timeout_s)
    if results:
        until_ms = int(results[-1].at.time_ms + MARGIN_MS + 1000 * topology.message_timeout_s)
    return from_ms, until_ms


def _add_ack(gathered: RootFindings, root: int, record: Record, value: bytes) -> None:
    try:
        ack = decode_ack(value)
    except MalformedRecord:
        return
    at, messages = _at(record), gathered.messages
    assert messages is not None
    if gathered.partition is None:
        gathered.version, gathered.partition = ack.version, record.partition()
    for fail in ack.fails:
        if fail.root == root:
            messages.append((0, ControlEntry("fail", ack.task, None, fail.reason, at)))
    for entry in ack.acks[ack.acks["root"] == root]:
        folded = int(entry["value"])
        messages.append((folded, ControlEntry("ack", ack.task, f"{folded:016x}", None, at)))
    if root in ack.resets.tolist():
        messages.append((0, ControlEntry("reset", ack.task, None, None, at)))


def find_tuples(search: Search, topology: Published) -> None:
    """Search the emitted topics for headers that name one of the roots, while its tree was under way."""
    if not search.found:
        return
    bounds = [_times(gathered, topology) for gathered in search.found.values()]
    begins = [first for first, _ in bounds]
    until = [last for _, last in bounds]
    from_ms = None if None in begins else min(first for first in begins if first is not None)
    until_ms = None if None in until else max(last for last in until if last is not None)
    needles = [root.to_bytes(8, "little") for root in search.found]
    topics = {
        topic for version in search.cluster.history.versions.values() for topic in version.emitted_topics()
    }

    def find(topics: list[str]) -> None:
        for batch in search.scan(search.spans(topics, from_ms, until_ms)):
            for record in batch:
                for key, header in headers_of(record):
                    if key != HEADER or header is None:
                        continue
                    for needle in needles:
                        if needle in header:
                            _add_tuple(search, record, header)
                            break

    _in_permitted_topics(search, sorted(topics), find)


def _in_permitted_topics(search: Search, topics: list[str], find: Callable[[list[str]], None]) -> None:
    """Find tuples in all topics at once; where one may not be read, in each of the others, and say so."""
    try:
        find(topics)
        return
    except NotAuthorized:
        for gathered in search.found.values():
            gathered.tuples = []
        search.shown = 0
    for topic in topics:
        try:
            find([topic])
        except NotAuthorized as error:
            search.notes.append(f"the tuples on {topic} are not shown: {error}")


def _add_tuple(search: Search, record: Record, header: bytes) -> None:
    try:
        decoded = decode_header(header)
    except MalformedRecord:
        return
    for anchor in decoded.anchors:
        if (gathered := search.found.get(anchor.root)) is not None:
            assert gathered.tuples is not None
            payload = search.payload(record)
            gathered.tuples.append(FoundTuple(anchor.edge, decoded.version, _at(record), payload))
