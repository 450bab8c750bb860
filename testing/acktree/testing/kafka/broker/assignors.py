"""Assigns partitions to the members of a group, as Kafka's own assignors do.

Invariant: every partition of a topic that anybody subscribes to has one member.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Place = tuple[str, int]


@dataclass(eq=False)
class Member:
    """One member, as the coordinator sees it."""

    member_id: str
    topics: tuple[str, ...]
    session_s: float
    rebalance_s: float
    instance_id: str | None = None
    assignor: str = "range"
    client_id: str = "rdkafka"
    heard_s: float = 0.0
    has_joined: bool = False
    assigned: tuple[Place, ...] = ()
    epoch: int = 0
    """KIP-848: the epoch that the member has confirmed."""
    owned: frozenset[Place] = frozenset()
    """KIP-848: what the member says that it still has."""


def assign(
    members: Iterable[Member],
    partitions: dict[str, int],
    present: Mapping[str, Sequence[Place]] = MappingProxyType({}),
) -> dict[str, list[Place]]:
    """Assign by the assignor of the members; ``present``: what each of them has been given before."""
    everyone = sorted(members, key=lambda member: member.instance_id or member.member_id)
    found: dict[str, list[Place]] = {member.member_id: [] for member in everyone}
    is_uniform = all(member.assignor == "uniform" for member in everyone)
    if everyone and is_uniform and len({member.topics for member in everyone}) == 1:
        _uniform(everyone, partitions, present, found)
    elif everyone and all(member.assignor == "roundrobin" for member in everyone):
        _round_robin(everyone, partitions, found)
    else:
        _range(everyone, partitions, found)
    return found


def _round_robin(everyone: list[Member], partitions: dict[str, int], found: dict[str, list[Place]]) -> None:
    turn = 0
    for topic in sorted(partitions):
        mine = [member for member in everyone if topic in member.topics]
        for partition in range(partitions[topic] if mine else 0):
            found[mine[turn % len(mine)].member_id].append((topic, partition))
            turn += 1


def _uniform(
    everyone: list[Member],
    partitions: dict[str, int],
    present: Mapping[str, Sequence[Place]],
    found: dict[str, list[Place]],
) -> None:
    """Let every member keep its share of what it has, and hand out the rest; all read the same topics."""
    left = {(topic, partition) for topic in partitions for partition in range(partitions[topic])}
    each, more = divmod(len(left), len(everyone))
    for member in everyone:
        kept = [place for place in present.get(member.member_id, ()) if place in left]
        has_more = len(kept) > each and more > 0
        more -= has_more
        found[member.member_id] = kept[: each + has_more]
        left.difference_update(found[member.member_id])
    for member in everyone:
        mine = found[member.member_id]
        has_more = len(mine) <= each and more > 0
        more -= has_more
        mine += sorted(left)[: max(each + has_more - len(mine), 0)]
        left.difference_update(mine)


def _range(everyone: list[Member], partitions: dict[str, int], found: dict[str, list[Place]]) -> None:
    for topic in sorted(partitions):
        mine = [member for member in everyone if topic in member.topics]
        if not mine:
            continue
        each, more = divmod(partitions[topic], len(mine))
        first = 0
        for index, member in enumerate(mine):
            count = each + (index < more)
            found[member.member_id] += [(topic, partition) for partition in range(first, first + count)]
            first += count
