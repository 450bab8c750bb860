"""Finds the bolt that limits each spout: the one whose unread tuples its trees wait for. Pure.

Once trees are old, a running acker reports it. Before that a spout reports how much it may have pending, and
if it has that much, the bolt with the longest queue is the one. Invariant: only spouts and bolts that the
topology has.
"""

from collections.abc import Collection, Iterable, Iterator

from acktree.console.view.documents import BoltStatus, Limit, SpoutStatus
from acktree.console.view.reports import Process, figure
from acktree.core.reports.stats import BEHIND, LIMITED_AT, LIMITED_BY, SINCE_COMMIT
from acktree.core.topology.file import Topology, reached_bolts

FULL = 0.8
"""How much of its limit a spout has pending whose limit holds back records."""


def find_limits(
    ackers: Iterable[Process], spouts: Iterable[str], bolts: Collection[BoltStatus]
) -> tuple[Limit, ...]:
    """Return the limit of each spout that has one; of several ackers the one that sees it furthest behind."""
    reports, found = list(ackers), []
    for spout in spouts:
        limits = [limit for acker in reports if (limit := _limit(acker, spout, bolts)) is not None]
        if limits:
            found.append(max(limits, key=lambda limit: limit.behind_s))
    return tuple(found)


def find_queues(
    spouts: Iterable[SpoutStatus], bolts: Collection[BoltStatus], topology: Topology, known: Collection[str]
) -> tuple[Limit, ...]:
    """Return for each spout that is full, apart from those known, the bolt with the longest queue.

    Nobody knows which that is while the rate of a bolt with a queue is not known, or it does nothing.
    """
    found = []
    for spout in spouts:
        pending, allowed = spout.pending or 0, spout.pending_limit
        if spout.name in known or not allowed or pending < FULL * allowed:
            continue
        reached = reached_bolts([topology], spout.name)
        waiting = [bolt for bolt in bolts if bolt.name in reached and bolt.lag]
        queues = [(bolt.lag / bolt.executed_per_s, bolt) for bolt in waiting if bolt.executed_per_s]
        if queues and len(queues) == len(waiting):
            queue_s, bolt = max(queues, key=lambda each: each[0])
            fullest = max(bolt.inputs, key=lambda each: each.lag)
            place = f"{fullest.topic}/{fullest.partition}"
            found.append(Limit(spout.name, bolt.name, place, queue_s, 0.0, _text(bolt, queue_s, place)))
    return tuple(found)


def _limit(acker: Process, spout: str, bolts: Iterable[BoltStatus]) -> Limit | None:
    values, behind_s = acker.latest.values, figure(acker, f"{BEHIND}{spout}")
    name, partition = values.get(f"{LIMITED_BY}{spout}"), values.get(f"{LIMITED_AT}{spout}")
    bolt = next((bolt for bolt in bolts if bolt.name == name), None)
    if bolt is None or behind_s is None:
        return None
    place = partition if isinstance(partition, str) else ""
    since_commit_s = figure(acker, f"{SINCE_COMMIT}{spout}") or 0.0
    return Limit(spout, bolt.name, place, behind_s, since_commit_s, _text(bolt, behind_s, place))


def _text(bolt: BoltStatus, behind_s: float, partition: str) -> str:
    about = [*_rate(bolt), f"{behind_s:.0f} s behind", *_most_of(bolt, partition)]
    return f"limited by bolt {bolt.name} ({', '.join(about)})"


def _rate(bolt: BoltStatus) -> Iterator[str]:
    if not bolt.members and not bolt.processes:
        yield "no process runs it"
    elif bolt.executed_per_s is not None:
        yield f"{bolt.executed_per_s:.0f}/s"


def _most_of(bolt: BoltStatus, partition: str) -> Iterator[str]:
    """Yield how much of what waits for a bolt waits in the partition that holds it the most."""
    if not partition:
        yield "the acker cannot read its position"
    for each in bolt.inputs:
        if f"{each.topic}/{each.partition}" == partition and 0 < each.lag < bolt.lag:
            yield f"{partition} holds {100 * each.lag / bolt.lag:.0f} %"
