"""One snapshot of a topology: what is durable, read in one pass, for a Status.

Invariant: the ends of the logs are read before the commits, so records written meanwhile make no lag; what is
read of control topics is bounded by the ackers' cut and the drivers' result positions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acktree.console.view.cluster import Cluster, CommittedOffset, GroupStatus, OffsetRange, Offsets, Place
from acktree.console.view.emission_log import EmissionLog
from acktree.console.view.open_roots import AppendedRecord, OpenRoots
from acktree.console.view.source_view import SlotView, add_open, add_results
from acktree.producers.kafka.claim import Claim, DamagedClaim, decode_claim
from acktree.schemas import world
from acktree.schemas.codec import decode_ack, decode_ack_init, decode_result_record
from acktree.schemas.control_records import Absent, ReplayCommand, Result
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.flow import Flow
from acktree.schemas.registry import Published, Slot

LIMIT_S = 3.0
"""A snapshot reads control records for so long: a command then answers within 5 s."""
FOLD_SHARE = 0.6
"""Of that time, for the open roots; the rest is for first emissions."""


@dataclass(slots=True)
class Snapshot:
    """What one pass has read; ``notes`` say what is missing and why."""

    topology: Published
    time_ms: int
    starts: Offsets
    ends: Offsets
    groups: Mapping[str, GroupStatus]
    inputs: Mapping[Place, CommittedOffset]
    views: dict[int, SlotView]
    cut_lag: int
    bolt_commits: Mapping[str, Mapping[Place, CommittedOffset]]
    acker_lag: int
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    is_complete: bool = True
    """Whether all open roots were read: if not, nothing follows from what is not in the views."""
    flows: Mapping[str, Flow] = field(default_factory=dict)


def live_slots(topology: Published, cluster_topics: Iterable[str]) -> list[Slot]:
    """Return the slots in use: of a re-created topic only the newest, of a removed spout none."""
    newest = {(s.spout, s.topic, s.partition): s for s in topology.slots if s.spout in topology.spouts}
    existing = set(cluster_topics)
    return [slot for slot in newest.values() if not slot.topic or slot.topic in existing]


def read_snapshot(
    cluster: Cluster, emissions: EmissionLog | None = None, limit_s: float = LIMIT_S
) -> Snapshot:
    """Read the state of a topology; of control records as much as can be read in ``limit_s``.

    ``emissions`` remembers first emissions from one snapshot to the next, so that they are not read again.

    Raises:
        BrokerUnreachable, BrokerRefused: see there.
    """
    cluster.refresh()
    topology = cluster.topology
    control = (topology.ack_init_topic, topology.ack_topic)
    sources = [topic for table in topology.spouts.values() for topic in table.topics]
    tasks = {task: spout for spout, numbers in topology.spout_tasks.items() for task in numbers}
    results = [topology.result_topic(task) for task in tasks]
    places = cluster.partitions(
        (*sources, *topology.emitted_topics(), *control, *results, topology.dead_letter_topic)
    )
    ends, starts = cluster.ends(places), cluster.starts(places)
    groups = cluster.groups([topology.acker_group, *map(topology.group_of, topology.bolts)])
    bolts = {
        name: cluster.committed(topology.group_of(name), [p for p in places if p[0] in table.reads])
        for name, table in topology.bolts.items()
    }
    cuts = cluster.committed(topology.acker_group, [place for place in places if place[0] in control])
    commits: dict[Place, CommittedOffset] = {}
    for spout, table in topology.spouts.items():
        mine = {topology.result_topic(task) for task in topology.spout_tasks[spout]}
        asked = [place for place in places if place[0] in table.topics or place[0] in mine]
        commits |= cluster.committed(topology.group_of(spout), asked)
    views = {
        slot.slot: SlotView.of_commit(
            slot, commits.get((slot.topic, slot.partition)), cluster.history.largest_block(slot.spout)
        )
        for slot in live_slots(topology, (place[0] for place in places))
    }
    snapshot = Snapshot(topology, world.wall_ms(), starts, ends, groups, commits, views, 0, bolts, 0)
    snapshot.flows = {spout: cluster.history.flow(spout).flow for spout in topology.spouts}
    lags = [
        end - max(starts.get(p, 0), cuts[p].next_offset if p in cuts else 0)
        for p, end in ends.items()
        if p[0] in control
    ]
    snapshot.cut_lag = sum(max(0, lag) for lag in lags)
    began_s = world.monotonic_s()
    claims = _add_results(cluster, snapshot, results, began_s + FOLD_SHARE * limit_s)
    _add_open(cluster, snapshot, control, cuts, began_s + FOLD_SHARE * limit_s)
    for view in views.values():
        view.normalize()
    log = emissions or EmissionLog()
    floors = {slot: floor for claim in claims for slot, floor in claim.floors.items()}
    command_runs = {run for claim in claims for run, _ in claim.replays.values()}
    deadline_s = began_s + limit_s
    snapshot.notes += log.update(cluster, views, snapshot.time_ms, ends, floors, command_runs, deadline_s)
    return snapshot


def _add_results(
    cluster: Cluster, snapshot: Snapshot, topics: Iterable[str], deadline_s: float
) -> list[Claim]:
    """Read the results that no commit of the spout holds yet; return the claims on its tasks."""
    spans: dict[Place, OffsetRange] = {}
    claims: list[Claim] = []
    for topic in topics:
        place = topic, 0
        if place not in snapshot.ends:
            continue
        committed = snapshot.inputs.get(place)
        start = max(snapshot.starts[place], committed.next_offset if committed else 0)
        spans[place] = OffsetRange(start, snapshot.ends[place])
        if committed is not None:
            try:
                claims.append(decode_claim(committed.metadata, committed.next_offset))
            except DamagedClaim as error:
                snapshot.notes.append(str(error))
    results_read: list[tuple[int, Result | Absent]] = []
    count = 0
    for batch in cluster.scan(spans, deadline_s):
        count += len(batch)
        for message in batch:
            try:
                record = decode_result_record(message.value() or b"")
            except MalformedRecord:
                snapshot.skipped += 1
                continue
            if not isinstance(record, ReplayCommand):
                results_read.append((message.timestamp()[1], record))
    _say_unread(snapshot, "results since the spout's last commits", count, spans, deadline_s)
    floors = {slot: floor for claim in claims for slot, floor in claim.floors.items()}
    add_results(snapshot.views, results_read, floors)
    return claims


def _add_open(
    cluster: Cluster,
    snapshot: Snapshot,
    control: tuple[str, str],
    cuts: Mapping[Place, CommittedOffset],
    deadline_s: float,
) -> None:
    """Fold the control topics from the ackers' cut on; a root is in one partition, so all fold together."""
    spans = {}
    for place, end in snapshot.ends.items():
        if place[0] in control:
            start = cuts[place].next_offset if place in cuts else 0
            spans[place] = OffsetRange(max(snapshot.starts[place], start), end)
    roots = OpenRoots()
    count = 0
    for batch in cluster.scan(spans, deadline_s):
        appended = []
        count += len(batch)
        for message in batch:
            decode = decode_ack_init if message.topic() == control[0] else decode_ack
            try:
                record = decode(message.value() or b"")
            except MalformedRecord:
                snapshot.skipped += 1
                continue
            appended.append(AppendedRecord(record, message.offset() or 0, message.timestamp()[1]))
        roots.fold(appended)
    _say_unread(snapshot, "control records above the ackers' cut", count, spans, deadline_s)
    add_open(snapshot.views, roots.pending())


def _say_unread(
    snapshot: Snapshot, what: str, count: int, spans: Mapping[Place, OffsetRange], deadline_s: float
) -> None:
    """Note what a deadline left unread, if it did."""
    offsets = sum(max(0, span.end - span.start) for span in spans.values())
    if world.monotonic_s() > deadline_s and count < offsets:
        snapshot.is_complete = False
        snapshot.notes.append(
            f"the open roots are not complete: {count:,} of up to {offsets:,} {what} were read in time; "
            "allow more with --time-limit"
        )
