"""One snapshot of a topology: what is durable, read in one pass, for a Status.

Invariant: the ends of the logs are read before the commits, so records written meanwhile make no lag; what is
read of control topics is bounded by the ackers' cut and the drivers' result positions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from acktree.console.view.cluster import Cluster, CommittedOffset, GroupStatus, OffsetRange, Offsets, Place
from acktree.console.view.open_roots import AppendedRecord, OpenRoots
from acktree.console.view.reports import Reports
from acktree.console.view.source_view import SlotView, add_open, add_results
from acktree.producers.kafka.claim import DamagedClaim, decode_claim
from acktree.schemas import world
from acktree.schemas.codec import decode_ack, decode_ack_init, decode_result_record
from acktree.schemas.control_records import Absent, ReplayCommand, Result
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.registry import Published, Slot

FOLD_LIMIT_S = 8.0
REPORTS_SPAN_S = 60.0


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


def live_slots(topology: Published, cluster_topics: Iterable[str]) -> list[Slot]:
    """Return the slots in use: of a re-created topic only the newest, of a removed spout none."""
    newest = {(s.spout, s.topic, s.partition): s for s in topology.slots if s.spout in topology.spouts}
    existing = set(cluster_topics)
    return [slot for slot in newest.values() if not slot.topic or slot.topic in existing]


def read_snapshot(cluster: Cluster, *, fold: bool = True) -> Snapshot:
    """Read the state of a topology; ``fold=False`` leaves the open roots out, which costs the most.

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
    lags = [
        end - max(starts.get(p, 0), cuts[p].next_offset if p in cuts else 0)
        for p, end in ends.items()
        if p[0] in control
    ]
    snapshot.cut_lag = sum(max(0, lag) for lag in lags)
    if fold:
        _add_results(cluster, snapshot, results)
        _add_open(cluster, snapshot, control, cuts)
    for view in views.values():
        view.normalize()
    return snapshot


def _add_results(cluster: Cluster, snapshot: Snapshot, topics: Iterable[str]) -> None:
    """Read the results that no commit of the spout holds yet."""
    spans: dict[Place, OffsetRange] = {}
    floors: dict[int, int] = {}
    for topic in topics:
        place = topic, 0
        if place not in snapshot.ends:
            continue
        committed = snapshot.inputs.get(place)
        start = max(snapshot.starts[place], committed.next_offset if committed else 0)
        spans[place] = OffsetRange(start, snapshot.ends[place])
        if committed is not None:
            try:
                floors |= decode_claim(committed.metadata, committed.next_offset).floors
            except DamagedClaim as error:
                snapshot.notes.append(str(error))
    results_read: list[tuple[int, Result | Absent]] = []
    for batch in cluster.scan(spans, world.monotonic_s() + FOLD_LIMIT_S):
        for message in batch:
            try:
                record = decode_result_record(message.value() or b"")
            except MalformedRecord:
                snapshot.skipped += 1
                continue
            if not isinstance(record, ReplayCommand):
                results_read.append((message.timestamp()[1], record))
    add_results(snapshot.views, results_read, floors)


def _add_open(
    cluster: Cluster, snapshot: Snapshot, control: tuple[str, str], cuts: Mapping[Place, CommittedOffset]
) -> None:
    """Fold the control topics from the ackers' cut on; a root is in one partition, so all fold together."""
    spans = {}
    for place, end in snapshot.ends.items():
        if place[0] in control:
            start = cuts[place].next_offset if place in cuts else 0
            spans[place] = OffsetRange(max(snapshot.starts[place], start), end)
    roots = OpenRoots()
    deadline_s = world.monotonic_s() + FOLD_LIMIT_S
    for batch in cluster.scan(spans, deadline_s):
        appended = []
        for message in batch:
            decode = decode_ack_init if message.topic() == control[0] else decode_ack
            try:
                record = decode(message.value() or b"")
            except MalformedRecord:
                snapshot.skipped += 1
                continue
            appended.append(AppendedRecord(record, message.offset() or 0, message.timestamp()[1]))
        roots.fold(appended)
    if world.monotonic_s() > deadline_s:
        snapshot.notes.append(
            f"the open roots are not complete: more control records lie above the ackers' cut than were read "
            f"in {FOLD_LIMIT_S:g} s"
        )
    add_open(snapshot.views, roots.pending())


def read_reports(cluster: Cluster, reports: Reports, since_s: float) -> None:
    """Read what was reported since the last call, at first what the last ``since_s`` seconds hold."""
    place = cluster.topology.stats_topic, 0
    if place not in cluster.partitions([place[0]]):
        return
    end = cluster.ends([place])[place]
    if not reports.next_offset:
        since_ms = int((world.wall_s() - since_s) * 1000)
        reports.next_offset = cluster.at_time([place], since_ms).get(place, end)
    for batch in cluster.scan({place: OffsetRange(reports.next_offset, end)}):
        for message in batch:
            reports.add_record(message.value(), message.timestamp()[1])
    reports.next_offset = max(reports.next_offset, end)
