"""Defines "stuck" in one place: the reasons for which commands end with exit code 1. Pure.

Invariant: a topology that is idle or merely busy is not stuck; each reason names what to look at. Causes come
before their symptoms: a frontier is held because a process is missing or stalled.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from acktree.console.view.cluster import GroupStatus
from acktree.console.view.documents import (
    AckerStatus,
    BoltStatus,
    Limit,
    PartitionStatus,
    SpoutStatus,
    Stall,
    Stuck,
)
from acktree.console.view.open_transactions import OpenTransaction
from acktree.console.view.reports import SILENT_AFTER_S
from acktree.console.view.source_view import is_retried, state_text, trace_command
from acktree.core.topology.file import Topology
from acktree.core.topology.flow import Flow
from acktree.core.topology.registry import Published
from acktree.wire.ids import origin_of

KINDS = (
    *("open-transaction", "stuck-worker", "no-bolt", "silent-bolt", "no-spout", "no-acker", "stalled-bolt"),
    *("open-breaker", "held-frontier"),
)
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
    stalls: Iterable[Stall],
    partitions: Iterable[PartitionStatus],
    spouts: Collection[SpoutStatus],
    bolts: Collection[BoltStatus],
    ackers: tuple[AckerStatus, ...],
    acker_lag: int,
    groups: Mapping[str, GroupStatus],
    limits: Collection[Limit],
    transactions: Iterable[Stuck],
) -> tuple[Stuck, ...]:
    """Return everything that does not move, causes first; what waits in a bolt's queue does."""
    found = [
        *transactions,
        *_stuck_workers(topology, stalls, after_s),
        *_no_bolt(bolts),
        *_no_spout(spouts),
    ]
    if ackers or any(bolt.processes for bolt in bolts) or any(spout.processes for spout in spouts):
        # else no reports may have been read yet
        found += _silent_bolt(bolts, groups)
    members = groups.get(topology.acker_group)
    if topology.ackers and acker_lag and not ackers and not (members and members.members):
        text = f"{acker_lag} control records wait and no acker runs; start one: acktree acker run"
        found.append(Stuck("no-acker", topology.acker_group, text))
    found += _stalled_bolt(limits, after_s, {each.where.partition("@")[0] for each in found})
    found += _open_breakers(topology.name, spouts)
    paused = {spout.name for spout in spouts if spout.flow == Flow.PAUSED}  # what failed is not replayed
    moving = [partition for partition in partitions if partition.spout not in paused]
    queued_s = {limit.spout: limit.behind_s for limit in limits}
    return (*found, *_held(topology.name, moving, after_s, queued_s))


def stuck_transactions(found: Iterable[OpenTransaction], now_ms: int, after_s: float) -> Iterator[Stuck]:
    """Yield the open transactions that hold back a partition for longer than ``after_s``."""
    for each in found:
        if now_ms - each.since_ms > 1000 * after_s:
            yield Stuck("open-transaction", "{}/{}".format(*each.place), each.text(now_ms))


def _stuck_workers(topology: Published, stalls: Iterable[Stall], after_s: float) -> Iterable[Stuck]:
    for each in stalls:
        if each.stalled_s <= min(after_s, each.stuck_after_s or after_s):
            continue
        what = f"has been stalled in {each.calling}" if each.calling else "has been stalled outside user code"
        if each.executing is not None:
            what = f"has been executing {each.executing}{_source_of(topology, each.root)}"
        text = f"{each.role} {each.component} {what} for {each.stalled_s:.0f} s"
        if each.root is not None:
            text += f"; see: acktree trace --topology {topology.name} --root {each.root}"
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


def _held(
    topology: str, partitions: Iterable[PartitionStatus], after_s: float, queued_s: Mapping[str, float]
) -> Iterable[Stuck]:
    for partition in partitions:
        held_s, held = partition.held_s, partition.held_by
        limit_s = after_s + queued_s.get(partition.spout, 0.0)
        if held_s is None or held_s <= limit_s or (held is not None and is_retried(held, limit_s)):
            continue
        place = f"{partition.topic or partition.spout}/{partition.partition}"
        text = f"its oldest message has been pending for {held_s:.0f} s"
        if held is not None:
            text = f"the frontier {held.offset} has been held for {held_s:.0f} s; it is {state_text(held)}"
            text += f"; see: {trace_command(topology, held)}"
        yield Stuck("held-frontier", place, text)


def _open_breakers(topology: str, spouts: Iterable[SpoutStatus]) -> Iterable[Stuck]:
    for spout in spouts:
        if spout.breaker.state == "open":
            text = (
                f"its breaker is open, it emits only occasional probes: {spout.breaker.text}; it closes when "
                f"a probe is done, or with: acktree breaker close {topology} --spout {spout.name} --execute"
            )
            yield Stuck("open-breaker", spout.name, text)


def _no_spout(spouts: Iterable[SpoutStatus]) -> Iterable[Stuck]:
    for spout in spouts:
        if spout.lag and not spout.processes:
            text = f"{spout.lag} records are not committed and no process of the spout reports; start it"
            yield Stuck("no-spout", spout.name, text)


def _no_bolt(bolts: Iterable[BoltStatus]) -> Iterable[Stuck]:
    for bolt in bolts:
        if bolt.lag and not bolt.members and not bolt.processes:
            text = f"{bolt.lag} tuples wait and group {bolt.group} has no members; start the bolt"
            yield Stuck("no-bolt", bolt.name, text)


def _stalled_bolt(limits: Iterable[Limit], after_s: float, named: Collection[str]) -> Iterable[Stuck]:
    """Yield the bolts that commit nothing though tuples wait, and of which nothing else says why."""
    for limit in {each.bolt: each for each in limits}.values():
        if limit.since_commit_s > after_s and limit.bolt not in named:
            place = f"of {limit.partition} " if limit.partition else ""
            text = f"it has committed nothing {place}for {limit.since_commit_s:.0f} s, and tuples wait there"
            yield Stuck("stalled-bolt", limit.bolt, text)


def _silent_bolt(bolts: Iterable[BoltStatus], groups: Mapping[str, GroupStatus]) -> Iterable[Stuck]:
    for bolt in bolts:
        if bolt.lag and bolt.members and bolt.processes == 0:
            members = ", ".join(groups[bolt.group].members) if bolt.group in groups else ""
            text = (
                f"{bolt.lag} tuples wait and no member of group {bolt.group} has reported for "
                f"{SILENT_AFTER_S:.0f} s: each is suspended, in a call that blocks Python, or not a worker: "
                f"{members}"
            )
            yield Stuck("silent-bolt", bolt.name, text)
