"""Builds the trace of one source record: its emissions, their messages, and its state.

Invariant: the state comes from what the spout has committed and the dead letters, emissions from the control
topics.
"""

from dataclasses import dataclass, replace

from acktree.console.view.cluster import Cluster, CommittedOffset, OffsetRange, UnreadableRecord
from acktree.console.view.open_transactions import OpenTransactions
from acktree.console.view.records.committed_state import is_done_in, is_set_by_hand
from acktree.console.view.records.payloads import RecordPayload, missing, read_payload
from acktree.console.view.records.search import (
    Search,
    TraceTarget,
    drop_other_blocks,
    find_acks,
    find_inits,
    find_results,
    find_tuples,
    is_acked,
)
from acktree.console.view.records.traced_dead_letters import DeadLetterSummary, find_dead_letters
from acktree.console.view.records.tree import TracedEmission, make_emission
from acktree.console.view.records.tree_reader import headers_of
from acktree.core import world
from acktree.core.errors import NotAuthorized
from acktree.core.topology.registry import Published, Slot
from acktree.wire.dead_letter import CORRECTS
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import origin_of

LIMIT_S = 60.0
FINISHED = ("acked", "done, not yet reported")
"""The states of an emission whose tree is done."""


class UnknownRecord(AcktreeError):
    """No source partition of the topology has such a record, or no slot has such a root."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The document that `acktree trace` prints; `payload` is the source record's, None unless requested.

    `corrects` is TOPIC/PARTITION/OFFSET of the record that it replaces, "" if it replaces none that is known.
    `state` is done, pending, not emitted, not written yet, dead-lettered, expired, or not known.
    """

    topology: str
    spout: str
    topic: str
    partition: int
    offset: int
    slot: int
    state: str
    age_s: float | None
    frontier: int | None
    log_start: int | None
    log_end: int | None
    emissions: tuple[TracedEmission, ...]
    dead_letters: tuple[DeadLetterSummary, ...]
    time_ms: int
    searched_records: int
    searched_bytes: int
    took_s: float
    notes: tuple[str, ...]
    payload: RecordPayload | None = None
    corrects: str = ""

    def name_of(self, emission: TracedEmission) -> str:
        """Return what an emission is, in words; one after a dead letter is a replay, whatever its number."""
        if emission.attempt:
            return f"replay, attempt {emission.attempt}"
        begun_ms, *_ = _when(emission)
        is_later = any(each.time_ms < begun_ms for each in self.dead_letters)
        return "replay" if is_later or emission is not self.emissions[0] else "first emission"


def target_of_record(topology: Published, topic: str, partition: int, offset: int) -> TraceTarget:
    """Return what to trace for a source coordinate. Raises UnknownRecord."""
    for slot in reversed(topology.slots):
        if (slot.topic, slot.partition) == (topic, partition):
            return TraceTarget(slot, offset)
    sources = sorted({f"{slot.topic}/{slot.partition}" for slot in topology.slots if slot.topic})
    raise UnknownRecord(
        f"topology {topology.name} does not read {topic}/{partition}; "
        f"it reads: {', '.join(sources) or 'none'}"
    )


def target_of_root(topology: Published, root: int) -> TraceTarget:
    """Return what to trace for a root id. Raises UnknownRecord."""
    origin = origin_of(root)
    for slot in topology.slots:
        if slot.slot == origin.slot:
            return TraceTarget(slot, origin.offset)
    raise UnknownRecord(
        f"root {root:016x} is of slot {origin.slot}, which topology {topology.name} does not have"
    )


def find_trace(
    cluster: Cluster,
    target: TraceTarget,
    *,
    since_ms: int | None = None,
    limit_s: float = LIMIT_S,
    payloads: bool = False,
) -> Trace:
    """Read the log for a record's tree, with ``payloads`` also what the record and its tuples hold.

    A data topic that may not be read is a note of the trace, and its payloads are missing.

    Raises:
        BrokerUnreachable, BrokerRefused: see their docstrings.
    """
    began_s = world.monotonic_s()
    cluster.refresh()
    target = replace(target, block=cluster.history.largest_block(target.slot.spout))
    search = Search(cluster, began_s + limit_s, since_ms, payloads, target=target)
    topology = cluster.topology
    find_inits(search, topology)
    find_results(search, topology)
    drop_other_blocks(search)
    find_acks(search, topology)
    dead_letters = find_dead_letters(search, topology)
    commit = _commit(search)
    done = any(map(is_acked, search.found.values())) or _is_done(search, commit)
    find_tuples(search, topology)  # last: it may read until the deadline
    if search.is_late:
        search.mark_incomplete("allow more time with --time-limit")
    return _put_together(search, dead_letters, commit, done, began_s)


def _commit(search: Search) -> CommittedOffset | None:
    cluster, slot = search.cluster, search.target.slot
    place = slot.topic, slot.partition
    return (
        cluster.committed(cluster.topology.group_of(slot.spout), [place]).get(place) if slot.topic else None
    )


def _put_together(
    search: Search,
    dead_letters: list[DeadLetterSummary],
    commit: CommittedOffset | None,
    done: bool | None,
    began_s: float,
) -> Trace:
    cluster, slot, offset = search.cluster, search.target.slot, search.target.offset
    topology = cluster.topology
    log = _source_log(search)
    payload = _source_payload(search, log) if search.payloads else None
    corrects = _corrected_record(search, log)
    if log is not None and log.start <= offset < log.end:
        search.hidden[slot.topic, slot.partition] = log.end
    for each in OpenTransactions().find_at_once(cluster, search.hidden):
        if each.place != (slot.topic, slot.partition) or each.offset <= offset:
            search.mark_incomplete(each.text(world.wall_ms()))
    emissions = _emissions(search)
    state, notes = state_of(slot, offset, log, done, emissions, dead_letters), list(search.notes)
    if state == "expired" and done and log is not None:
        notes.append(
            f"{slot.topic}/{slot.partition} begins at offset {log.start}: nothing that was found says "
            "whether the record was executed before it was removed; the spout counts it as done"
        )
    if search.target.block > 1:
        notes.append(
            f"up to {search.target.block} records share a root in their first emission: they share its tree"
        )
    if not emissions and state in ("done", "expired", "pending"):
        notes.append("no emission is in the control topics, which keep records only for control_retention_s")
    now_ms = world.wall_ms()
    begun = [emission.init.at.time_ms for emission in emissions if emission.init]
    return Trace(
        topology=topology.name,
        spout=slot.spout,
        topic=slot.topic,
        partition=slot.partition,
        offset=offset,
        slot=slot.slot,
        state=state,
        age_s=(now_ms - min(begun)) / 1000 if begun and state == "pending" else None,
        frontier=commit.next_offset if commit else None,
        log_start=log.start if log else None,
        log_end=log.end if log else None,
        emissions=emissions,
        dead_letters=tuple(dead_letters),
        time_ms=now_ms,
        searched_records=search.records,
        searched_bytes=search.bytes,
        took_s=round(world.monotonic_s() - began_s, 3),
        notes=tuple(notes),
        payload=payload,
        corrects=corrects,
    )


def _is_done(search: Search, commit: CommittedOffset | None) -> bool | None:
    """Return whether the spout has committed the record as done, None if that is not known."""
    slot, offset = search.target.slot, search.target.offset
    if not slot.topic:
        return False
    if commit is not None and (offset < commit.next_offset or is_set_by_hand(commit)):
        return offset < commit.next_offset
    return is_done_in(search, search.cluster.topology.state_topic(slot.spout), slot, offset)


def _corrected_record(search: Search, log: OffsetRange | None) -> str:
    """Return the coordinates of the record that the source record replaces."""
    cluster, slot, offset = search.cluster, search.target.slot, search.target.offset
    if log is None or not log.start <= offset < log.end or cluster.topic_id(slot.topic) != slot.topic_id:
        return ""
    try:
        record = cluster.record_within((slot.topic, slot.partition), offset)
    except NotAuthorized:
        return ""
    except UnreadableRecord as error:
        search.mark_incomplete(str(error))
        return ""
    headers = {} if record is None else dict(headers_of(record))
    return (headers.get(CORRECTS) or b"").decode("utf-8", "replace")


def _source_log(search: Search) -> OffsetRange | None:
    """Return what the source partition holds, None where that may not be known; a note says so."""
    cluster, slot = search.cluster, search.target.slot
    place = slot.topic, slot.partition
    if not slot.topic:
        return OffsetRange(0, 0)
    try:
        existing = [place] if place in cluster.partitions([slot.topic]) else []
    except NotAuthorized as error:
        search.notes.append(f"start, end and committed offset of {slot.topic} are not shown: {error}")
        return None
    return OffsetRange(cluster.starts(existing).get(place, 0), cluster.ends(existing).get(place, 0))


def _source_payload(search: Search, log: OffsetRange | None) -> RecordPayload:
    cluster, slot = search.cluster, search.target.slot
    if not slot.topic:
        return missing(f"spout {slot.spout} is fed by Python: its messages are not in a source topic")
    if log is None:
        return missing(f"the payload is not shown: this user may not see {slot.topic}")
    if cluster.topic_id(slot.topic) != slot.topic_id:
        return missing(f"topic {slot.topic} was deleted or recreated since: the record is gone")
    return read_payload(cluster, (slot.topic, slot.partition), search.target.offset, log)


def _emissions(search: Search) -> tuple[TracedEmission, ...]:
    history, commits = search.cluster.history, search.read_commits()
    made = [make_emission(each, history, commits, not search.notes) for each in search.found.values()]
    return tuple(sorted(made, key=_when))


def _when(emission: TracedEmission) -> tuple[int, int, int]:
    times = [part.at.time_ms for part in (emission.init, emission.result) if part is not None]
    return min(times, default=1 << 62), emission.run, emission.attempt


def state_of(
    slot: Slot,
    offset: int,
    log: OffsetRange | None,
    done: bool | None,
    emissions: tuple[TracedEmission, ...],
    dead_letters: list[DeadLetterSummary],
) -> str:
    """Return the state of a record; ``done`` is what the spout has committed, None if that is not known.

    The spout also counts lost records as done. So one that is gone is done only if an emission says so.
    """
    if done:
        acked_ms = [each.result.at.time_ms for each in emissions if each.state == "acked" and each.result]
        given_up_ms = [each.time_ms for each in dead_letters]
        if given_up_ms and max(given_up_ms) > max(acked_ms, default=-1):
            return "dead-lettered"
        is_finished = any(each.state in FINISHED for each in emissions)
        return "expired" if log is not None and offset < log.start and not is_finished else "done"
    if log is None or (done is None and offset < log.end):
        return "not known"
    if emissions or (slot.topic == "" and offset >= 0):
        return "pending"
    if slot.topic and offset >= log.end:
        return "not written yet"
    return "expired" if offset < log.start else "not emitted"
