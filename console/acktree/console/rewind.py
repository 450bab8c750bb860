"""Rewinds a spout: a plan that changes nothing, and the commit of its group that carries it out.

Invariant: only backwards. A partition that is done up to its target, or not that far, stays where it is: an
offset that is set forward skips unfinished records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition

from acktree.console.view.cluster import Cluster, Offsets, Place
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.topology.registry import Published
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.wire.errors import AcktreeError


class NotRewindable(AcktreeError):
    """The spout does not read that partition, or has no completed record there that it could emit again."""


@dataclass(frozen=True, slots=True)
class RewoundPartition:
    """A source partition whose group goes back from one offset to another."""

    topic: str
    partition: int
    frontier: int
    target: int


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The offsets that ``execute_rewind`` would commit; ``notes`` say which partitions stay, and why."""

    topology: str
    group: str
    partitions: tuple[RewoundPartition, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the plan as sentences."""
        return [
            *(
                f"{each.topic}/{each.partition} will go back from {each.frontier} to {each.target}: "
                "everything from there on is emitted again, done or not"
                for each in self.partitions
            ),
            *(f"note: {note}" for note in self.notes),
        ]

    def to_json(self, executed: bool) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        partitions = [
            {"topic": each.topic, "partition": each.partition, "from": each.frontier, "to": each.target}
            for each in self.partitions
        ]
        about = {"topology": self.topology, "group": self.group, "executed": executed}
        return {**about, "partitions": partitions, "notes": list(self.notes)}


def places_of(published: Published, spout: str, wanted: Sequence[Place]) -> list[Place]:
    """Return the source partitions of a spout, of those wanted if there are any. Raises NotRewindable."""
    if spout not in published.spouts:
        known = ", ".join(published.spouts)
        raise NotRewindable(f"topology {published.name} has no spout {spout!r}; it must be one of: {known}")
    topics = published.spouts[spout].topics
    if not topics:
        raise NotRewindable(f"spout {spout} is fed by Python code: rewind its source instead")
    slots = [slot for slot in published.slots_of(spout) if slot.topic in topics]
    mine = sorted({(slot.topic, slot.partition) for slot in slots})
    for topic, partition in wanted:
        if (topic, partition) not in mine:
            shown = ", ".join(f"{topic}/{partition}" for topic, partition in mine)
            raise NotRewindable(f"spout {spout} does not read {topic}/{partition}; it reads: {shown}")
    return [place for place in mine if place in wanted or not wanted]


def plan_rewind(
    published: Published, spout: str, targets: Offsets, starts: Offsets, frontiers: Mapping[Place, int]
) -> RewindPlan:
    """Return the plan that takes each partition back to its target (pure). Raises NotRewindable."""
    found, notes = [], []
    for place, wanted in sorted(targets.items()):
        name = f"{place[0]}/{place[1]}"
        target = max(wanted, starts.get(place, 0))
        if target > wanted >= 0:
            notes.append(f"{name} begins at {target}: older records are gone")
        if (frontier := frontiers.get(place)) is None:
            notes.append(f"{name} is not read yet")
        elif target >= frontier:
            notes.append(f"{name} stays at {frontier}, which is not above {target}")
        else:
            found.append(RewoundPartition(*place, frontier, target))
    if not found:
        raise NotRewindable(f"no partition of spout {spout} can be rewound: {'; '.join(notes)}")
    return RewindPlan(published.name, published.group_of(spout), tuple(found), tuple(notes))


def read_and_plan_rewind(cluster: Cluster, spout: str, targets: Offsets) -> RewindPlan:
    """Return the plan for a cluster. Raises NotRewindable, BrokerUnreachable."""
    published = cluster.topology
    commits = cluster.committed(published.group_of(spout), targets)
    frontiers = {place: commit.next_offset for place, commit in commits.items()}
    return plan_rewind(published, spout, targets, cluster.starts(targets), frontiers)


def execute_rewind(bootstrap: str, plan: RewindPlan, user: Settings) -> None:
    """Commit the targets for the spout's group, as Kafka's own tool does.

    Raises:
        GroupInUse: the group has members, which no spout of acktree is.
        BrokerUnreachable, BrokerRefused: it is not known to be done.
    """
    consumer = make_consumer(consumer_settings(bootstrap, plan.group, user))
    try:
        offsets = [TopicPartition(each.topic, each.partition, each.target) for each in plan.partitions]
        commit_offsets(consumer, offsets, plan.group, bootstrap)
    finally:
        consumer.close()
