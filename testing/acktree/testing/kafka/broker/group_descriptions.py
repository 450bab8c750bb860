"""Describes groups to an admin client, in the classes of confluent's clients.

Invariant: describing a group changes nothing of it, and creates none.
"""

from confluent_kafka import ConsumerGroupState, ConsumerGroupType, Node, TopicPartition
from confluent_kafka.admin import ConsumerGroupDescription, MemberAssignment, MemberDescription

from acktree.testing.kafka.broker.assignors import Member
from acktree.testing.kafka.broker.cluster import LEADER
from acktree.testing.kafka.broker.groups import Group, Phase

HOST = "/127.0.0.1"
STATES = {
    Phase.EMPTY: ConsumerGroupState.EMPTY,
    Phase.JOINING: ConsumerGroupState.PREPARING_REBALANCING,
    Phase.SYNCING: ConsumerGroupState.COMPLETING_REBALANCING,
    Phase.STABLE: ConsumerGroupState.STABLE,
}


def describe_group(name: str, group: Group | None) -> ConsumerGroupDescription:
    """Return what the broker says of a group; one that it does not know is dead."""
    state, kind, assignor, members = ConsumerGroupState.DEAD, ConsumerGroupType.CLASSIC, "", []
    is_simple = group is None or not group.rebalances
    if group is not None and group.is_known:
        state = _state_of(group)
        kind = ConsumerGroupType.CONSUMER if group.is_incremental else ConsumerGroupType.CLASSIC
        members = [_describe_member(group, member) for member in group.members.values()]
        assignor = "uniform" if group.is_incremental else ""
        if state is ConsumerGroupState.STABLE:
            assignor = next(iter(group.members.values())).assignor
    return ConsumerGroupDescription(
        name, is_simple, members, assignor, state, Node(LEADER, "simulated", 9092), type=kind
    )


def _state_of(group: Group) -> ConsumerGroupState:
    if not group.members:
        return ConsumerGroupState.EMPTY
    if not group.is_incremental:
        return STATES[group.phase]
    is_reconciled = all(
        member.epoch == group.generation and set(member.assigned) == set(group.targets[member.member_id])
        for member in group.members.values()
    )
    # The broker says "Reconciling", for which librdkafka has no state.
    return ConsumerGroupState.STABLE if is_reconciled else ConsumerGroupState.UNKNOWN


def _describe_member(group: Group, member: Member) -> MemberDescription:
    def assignment(places: tuple[tuple[str, int], ...]) -> MemberAssignment:
        return MemberAssignment([TopicPartition(*place) for place in places])

    target = assignment(group.targets.get(member.member_id, ())) if group.is_incremental else None
    return MemberDescription(
        member.member_id,
        member.client_id,
        HOST,
        assignment(member.assigned),
        member.instance_id,
        target_assignment=target,
    )
