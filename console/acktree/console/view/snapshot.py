"""Reads one snapshot of a topology for a Status: offsets and groups, in one pass.

Invariant: the ends of the logs are read before the commits, so records written meanwhile make no lag. No
record is read, except dead letters to count them, and the first one of an open transaction: pending figures
are those that processes report.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from acktree.console.view.cluster import Cluster, CommittedOffset, GroupStatus, Offsets, Place
from acktree.console.view.dead_letter_count import DeadLetterCount
from acktree.console.view.open_transactions import OpenTransaction, OpenTransactions
from acktree.console.view.report_log import REPORTS_SPAN_S, read_reports
from acktree.console.view.reports import Reports
from acktree.core import world
from acktree.core.topology.flow import Flow
from acktree.core.topology.registry import Published, Slot


@dataclass(slots=True)
class Snapshot:
    """The result of one pass; ``inputs`` are the spouts' commits of their source partitions."""

    topology: Published
    time_ms: int
    starts: Offsets
    ends: Offsets
    groups: Mapping[str, GroupStatus]
    inputs: Mapping[Place, CommittedOffset]
    slots: Sequence[Slot]
    cut_lag: int
    bolt_commits: Mapping[str, Mapping[Place, CommittedOffset]]
    notes: list[str] = field(default_factory=list)
    flows: Mapping[str, Flow] = field(default_factory=dict)
    dead_letters: int = 0
    """An upper bound; see ``DeadLetterCount``."""
    transactions: Sequence[OpenTransaction] = ()
    """Those that hold back a partition."""


def live_slots(topology: Published, cluster_topics: Iterable[str]) -> list[Slot]:
    """Return the slots in use: of a re-created topic only the newest, of a removed spout none."""
    newest = {(s.spout, s.topic, s.partition): s for s in topology.slots if s.spout in topology.spouts}
    existing = set(cluster_topics)
    return [slot for slot in newest.values() if not slot.topic or slot.topic in existing]


def read_with_reports(cluster: Cluster) -> tuple[Snapshot, Reports]:
    """Read the offsets and groups of a topology, and what its processes have reported lately.

    Raises:
        BrokerUnreachable, BrokerRefused: see their docstrings.
    """
    reports = Reports()
    read_reports(cluster, reports, REPORTS_SPAN_S)
    return read_snapshot(cluster), reports


def read_snapshot(
    cluster: Cluster,
    dead_letters: DeadLetterCount | None = None,
    transactions: OpenTransactions | None = None,
) -> Snapshot:
    """Read the offsets and groups of a topology.

    ``dead_letters`` and ``transactions`` keep what they have found from one look to the next.

    Raises:
        BrokerUnreachable, BrokerRefused: see their docstrings.
    """
    cluster.refresh()
    topology = cluster.topology
    control = (topology.ack_init_topic, topology.ack_topic)
    sources = [topic for table in topology.spouts.values() for topic in table.topics]
    places = cluster.partitions((*sources, *topology.emitted_topics(), *control, topology.dead_letter_topic))
    ends, starts = cluster.ends(places), cluster.starts(places)
    groups = cluster.groups([topology.acker_group, *map(topology.group_of, topology.bolts)])
    bolts = {
        name: cluster.committed(topology.group_of(name), [p for p in places if p[0] in table.reads])
        for name, table in topology.bolts.items()
    }
    cuts = cluster.committed(topology.acker_group, [place for place in places if place[0] in control])
    commits: dict[Place, CommittedOffset] = {}
    for spout, table in topology.spouts.items():
        mine = [place for place in places if place[0] in table.topics]
        commits |= cluster.committed(topology.group_of(spout), mine)
    slots = live_slots(topology, (place[0] for place in places))
    lags = [
        end - max(starts.get(p, 0), cuts[p].next_offset if p in cuts else 0)
        for p, end in ends.items()
        if p[0] in control
    ]
    cut_lag = sum(max(0, lag) for lag in lags)
    snapshot = Snapshot(topology, world.wall_ms(), starts, ends, groups, commits, slots, cut_lag, bolts)
    snapshot.dead_letters = (dead_letters or DeadLetterCount()).count(cluster, starts, ends)
    look = OpenTransactions().find_at_once if transactions is None else transactions.find
    snapshot.transactions = look(cluster, ends)
    snapshot.flows = {spout: cluster.history.flow(spout).flow for spout in topology.spouts}
    for spout in topology.spouts:
        if (block := cluster.history.largest_block(spout)) > 1:
            snapshot.notes.append(
                f"up to {block} records of spout {spout} share a root in their first emission: "
                "the root of the block's first record"
            )
    return snapshot
