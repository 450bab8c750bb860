"""What "stuck" means, in one place: the reasons for which commands end with exit code 1. Pure.

Invariant: a topology that is idle or merely busy is not stuck; each reason names what to look at. Causes come
before their symptoms: a frontier is held because a process is missing or stands still.
"""

from collections.abc import Collection, Iterable, Mapping

from acktree.console.view.cluster import GroupStatus
from acktree.console.view.documents import (
    AckerStatus,
    BoltStatus,
    PartitionStatus,
    PendingRecord,
    SpoutStatus,
    Standstill,
    Stuck,
)
from acktree.console.view.reports import SILENT_AFTER_S
from acktree.schemas.flow import Flow
from acktree.schemas.ids import origin_of
from acktree.schemas.registry import Published
from acktree.schemas.topology import Topology

KINDS = ("stuck-worker", "no-bolt", "silent-bolt", "no-spout", "no-acker", "open-breaker", "held-frontier")
"""All of them, in the order in which they are listed: causes first."""
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
    topology: Published,
    after_s: float,
    standstills: Iterable[Standstill],
    partitions: Iterable[PartitionStatus],
    spouts: Collection[SpoutStatus],
    bolts: Collection[BoltStatus],
    ackers: tuple[AckerStatus, ...],
    acker_lag: int,
    groups: Mapping[str, GroupStatus],
) -> tuple[Stuck, ...]:
    """Return everything that does not move, causes first."""
    found = [
        *_stuck_workers(topology, standstills, after_s),
        *_no_bolt(bolts),
        *_no_spout(spouts),
    ]
    if ackers or any(bolt.processes for bolt in bolts) or any(spout.processes for spout in spouts):
        # else no reports may have been read yet
        found += _silent_bolt(bolts, groups)
    members = groups.get(topology.acker_group)
    if topology.ackers and acker_lag and not ackers and not (members and members.members):
        text = f"{acker_lag} control records wait and no acker runs; start: acktree acker run"
        found.append(Stuck("no-acker", topology.acker_group, text))
    found += _open_breakers(topology.name, spouts)
    paused = {spout.name for spout in spouts if spout.flow == Flow.PAUSED}  # what failed is not replayed
    moving = [partition for partition in partitions if partition.spout not in paused]
    return (*found, *_held(topology.name, moving, after_s))


def _stuck_workers(topology: Published, standstills: Iterable[Standstill], after_s: float) -> Iterable[Stuck]:
    for each in standstills:
        if each.standstill_s <= min(after_s, each.stuck_after_s or after_s):
            continue
        what = f"stands still in {each.calling}" if each.calling else "stands still outside of user code"
        if each.executing is not None:
            what = f"executes {each.executing}{_source_of(topology, each.root)}"
        text = f"{each.role} {each.component} {what}, for {each.standstill_s:.0f} s"
        if each.root is not None:
            text += f"; look: acktree trace --topology {topology.name} --root {each.root}"
        yield Stuck("stuck-worker", each.instance, text)


def _source_of(topology: Published, root: str | None) -> str:
    """Return of which source record a root is, as text; nothing if it is not known."""
    if root is None:
        return ""
    origin = origin_of(int(root, 16))
    for slot in topology.slots:
        if slot.slot == origin.slot and slot.topic:
            return f" of source record {slot.topic}/{slot.partition}/{origin.offset}"
    return ""


def held_ages(partition: PartitionStatus) -> list[float]:
    """Return how long a frontier is held at least, in seconds: as its driver reports, and by the log."""
    held = partition.held_by
    return [age for age in (partition.held_s, held.known_age_s if held else None) if age is not None]


def is_older(pending: PendingRecord, than_s: float) -> bool:
    """Return whether a record may be older than this: one of unknown age is never taken for a young one.

    A record of which no init is in the log says nothing: every record begins so.
    """
    if (known_s := pending.known_age_s) is not None and known_s > than_s:
        return True
    return pending.age_s is None and pending.attempts is not None


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


def _open_breakers(topology: str, spouts: Iterable[SpoutStatus]) -> Iterable[Stuck]:
    for spout in spouts:
        if spout.breaker.state == "open":
            text = (
                f"its breaker is open, it emits a probe now and then: {spout.breaker.text}; it closes when a "
                f"probe is done, or by: acktree breaker close {topology} --spout {spout.name} --execute"
            )
            yield Stuck("open-breaker", spout.name, text)


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


def _silent_bolt(bolts: Iterable[BoltStatus], groups: Mapping[str, GroupStatus]) -> Iterable[Stuck]:
    for bolt in bolts:
        if bolt.lag and bolt.members and bolt.processes == 0:
            members = ", ".join(groups[bolt.group].members) if bolt.group in groups else ""
            text = (
                f"{bolt.lag} tuples wait and no member of group {bolt.group} has reported for "
                f"{SILENT_AFTER_S:.0f} s: suspended, in a call that blocks Python, or no worker: {members}"
            )
            yield Stuck("silent-bolt", bolt.name, text)
