"""What "stuck" means, in one place: the reasons for which commands end with exit code 1. Pure.

Invariant: a topology that is idle or merely busy is not stuck; each reason names what to look at.
"""

from collections.abc import Iterable, Mapping

from acktree.console.view.cluster import GroupStatus
from acktree.console.view.documents import AckerStatus, BoltStatus, PartitionStatus, SpoutStatus, Stuck
from acktree.schemas.topology import Topology

HELD_TIMEOUTS = 3.0
NO_TIMEOUT_SHARE = 0.5


def stuck_after_s(topology: Topology, wanted_s: float | None = None) -> float:
    """Return the age from which a pending record counts as stuck: as wanted, else three message timeouts."""
    if wanted_s is not None:
        return wanted_s
    if topology.message_timeout_s:
        return HELD_TIMEOUTS * topology.message_timeout_s
    return NO_TIMEOUT_SHARE * topology.control_retention_s


def find_stuck(
    topology: Topology,
    after_s: float,
    partitions: Iterable[PartitionStatus],
    spouts: Iterable[SpoutStatus],
    bolts: Iterable[BoltStatus],
    ackers: tuple[AckerStatus, ...],
    acker_lag: int,
    groups: Mapping[str, GroupStatus],
) -> tuple[Stuck, ...]:
    """Return everything that does not move."""
    found = [*_held(topology.name, partitions, after_s), *_no_spout(spouts), *_no_bolt(bolts)]
    members = groups.get(topology.acker_group)
    if topology.ackers and acker_lag and not ackers and not (members and members.members):
        text = f"{acker_lag} control records wait and no acker runs; start: acktree acker run"
        found.append(Stuck("no-acker", topology.acker_group, text))
    return tuple(found)


def held_ages(partition: PartitionStatus) -> list[float]:
    """Return how long a frontier is held, in seconds: as its driver reports, and by the log."""
    held = partition.held_by
    return [age for age in (partition.held_s, held.age_s if held else None) if age is not None]


def _held(topology: str, partitions: Iterable[PartitionStatus], after_s: float) -> Iterable[Stuck]:
    for partition in partitions:
        ages = held_ages(partition)
        if partition.pending and ages and max(ages) > after_s:
            place = f"{partition.topic}/{partition.partition}"
            what = (
                f"offset {partition.held_by.offset} is {partition.held_by.state}; "
                if partition.held_by
                else ""
            )
            text = f"the frontier {partition.frontier} has been held for {max(ages):.0f} s; {what}"
            if partition.held_by:
                where = f"{partition.topic} {partition.partition} {partition.held_by.offset}"
                text += f"look: acktree trace --topology {topology} {where}"
            yield Stuck("held-frontier", place, text)


def _no_spout(spouts: Iterable[SpoutStatus]) -> Iterable[Stuck]:
    for spout in spouts:
        if spout.lag and not spout.processes:
            text = f"{spout.lag} records are not done and no process of the spout reports"
            yield Stuck("no-spout", spout.name, text)


def _no_bolt(bolts: Iterable[BoltStatus]) -> Iterable[Stuck]:
    for bolt in bolts:
        if bolt.lag and not bolt.members and not bolt.processes:
            text = f"{bolt.lag} tuples wait and nobody is in group {bolt.group}"
            yield Stuck("no-bolt", bolt.name, text)
