"""Operations of group members.

Which member gets which partitions depends on names that the broker draws. So a group is looked at as a whole,
and only when every member has what the assignor's rule gives it.
"""

from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, TopicPartition

from conformance import consumer_steps
from conformance.results import Result, error_result, is_ok, outcome
from conformance.script import SKIPPED, Place
from conformance.session import LIMIT_S, Reader, Session

SETTLE_S = 60.0
POLL_S = 0.01
RESTING = {ConsumerGroupState.DEAD, ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE}


def members(session: Session, group: str) -> list[Reader]:
    """Return the consumers that subscribe as members of a group."""
    return [reader for reader in session.readers.values() if reader.group == group and reader.topics]


def subscribe(session: Session, name: str, topics: list[str]) -> Result:
    """Become a member of the group, and wait until the partitions are shared out.

    Only with members of the same protocol and topics, and no more of them than partitions.
    """
    reader = session.readers.get(name)
    if reader is None or reader.is_closed or reader.assigned or reader.topics:
        return SKIPPED
    others = members(session, reader.group)
    partitions = sum(session.topics.get(topic, 0) for topic in topics)
    if len(others) >= partitions or any(topic not in session.topics for topic in topics):
        return SKIPPED
    if any(other.is_next != reader.is_next or other.topics != tuple(topics) for other in others):
        return SKIPPED
    _resume_all(others, session)
    settle(session, reader.group, before=True)

    def on_assign(_client: Any, partitions: list[TopicPartition]) -> None:
        places = [session.place(partition) for partition in partitions]
        reader.events.append(["assign", bool(places)])
        reader.forget(places)
        for place in places:
            reader.seen.pop(place, None)
        reader.assigned.update(dict.fromkeys(places))

    def on_revoke(_client: Any, partitions: list[TopicPartition]) -> None:
        places = [session.place(partition) for partition in partitions]
        reader.events.append(["revoke", bool(places)])
        reader.forget(places)
        for place in places:
            reader.assigned.pop(place, None)

    def on_lost(_client: Any, partitions: list[TopicPartition]) -> None:
        reader.events.append(["lost", bool(partitions)])
        reader.assigned.clear()

    names = [session.name(topic) for topic in topics]
    result = outcome(
        lambda: reader.client.subscribe(names, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
    )
    if is_ok(result):
        reader.topics = tuple(topics)
        result.append(settle(session, reader.group))
    return result


def take_over(session: Session, name: str, other: str) -> Result:
    """Let a second process join with the name of a static member; return what the first one hears of it."""
    reader = session.readers.get(name)
    if reader is None or reader.is_closed or not reader.topics or not reader.instance:
        return SKIPPED
    if other in session.readers:
        return SKIPPED
    settle(session, reader.group, before=True)
    topics, ends = reader.topics, [[*place, end] for place, end in sorted(reader.ends.items())]
    reader.topics, reader.events = (), []
    reader.assigned.clear()
    consumer_steps.consumer(session, other, reader.group, reader.settings)
    joined = subscribe(session, other, list(topics))
    errors: list[Result] = []

    def is_fenced() -> bool:
        message = reader.client.poll(POLL_S)
        error = None if message is None else message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            errors.append(error_result(error))
        return bool(errors)

    session.until(is_fenced)
    offsets = session.partitions(ends or [(topics[0], 0, 0)])
    committed = outcome(lambda: reader.client.commit(offsets=offsets, asynchronous=False) and None)
    closed = outcome(reader.client.close)
    reader.is_closed = True
    return [joined, errors, committed, closed, reader.events]


def pause_as_group(session: Session, group: str, topic: str, partition: int) -> Result:
    """Let the only member of a group read a partition no longer, through rebalances, too."""
    mine = members(session, group)
    if len(mine) != 1 or (topic, partition) not in mine[0].active or (topic, partition) not in mine[0].ends:
        return SKIPPED
    result = outcome(lambda: mine[0].client.pause(session.partitions([(topic, partition)])))
    mine[0].paused.add((topic, partition))
    return result


def resume_as_group(session: Session, group: str) -> Result:
    """Let the members of a group read everything again."""
    mine = members(session, group)
    return _resume_all(mine, session) if mine else SKIPPED


def _resume_all(mine: list[Reader], session: Session) -> Result:
    paused = [reader for reader in mine if reader.paused]
    results = [
        outcome(lambda: reader.client.resume(session.partitions(sorted(reader.paused))))  # noqa: B023
        for reader in paused
    ]
    for reader in paused:
        reader.paused.clear()
    return results


def close_consumer(session: Session, name: str) -> Result:
    """Close a consumer; the members that are left share what it had."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED
    is_member = bool(reader.topics) and not reader.is_closed
    if is_member:
        settle(session, reader.group, before=True)
    result = outcome(reader.client.close)
    reader.is_closed = True
    reader.assigned.clear()
    reader.topics = ()
    if not is_member:
        return result
    if reader.instance is not None:
        session.world.sleep(consumer_steps.SESSION_MS / 1000 + 1)
    return [*result, [] if reader.is_next else reader.events, settle(session, reader.group)]


def remove_consumer(session: Session, name: str) -> Result:
    """Forget a closed consumer, so that its name is free."""
    reader = session.readers.get(name)
    if reader is None or not reader.is_closed:
        return SKIPPED
    del session.readers[name]
    return "ok"


def settle(session: Session, group: str, *, before: bool = False) -> Result:
    """Poll all members until the partitions are shared out by the rule; return who got what, without names.

    ``before``: before a change, read and commit everything, so that nothing is read twice by chance.
    """
    mine = members(session, group)
    if not mine:
        return None
    if before:
        result = _read(session, group)
        if any(reader.is_next for reader in mine):
            _commit_everything(session, mine)
        return result
    wanted = {
        (topic, partition) for topic in mine[0].topics for partition in range(session.topics.get(topic, 0))
    }
    shares = sorted(
        sum(_range_size(session.topics.get(topic, 0), len(mine), index) for topic in mine[0].topics)
        for index in range(len(mine))
    )
    until_s = session.world.monotonic_s() + SETTLE_S
    while not _is_shared_out(session, mine, wanted, shares):
        for reader in mine:
            consumer_steps.receive(session, reader, reader.client.poll(POLL_S))
        if session.world.monotonic_s() >= until_s:
            return "never settled"
    # With KIP-848, how a share is reached depends on which member is asked first.
    events = sorted(reader.events for reader in mine if not reader.is_next)
    for reader in mine:
        reader.events = []
    return [_assigned(mine, [list(reader.assigned) for reader in mine]), events]


def _assigned(mine: list[Reader], shares: list[list[Place]]) -> Result:
    """Return who has what, without names; with KIP-848 how much, as members keep what they have."""
    if any(reader.is_next for reader in mine):
        return sorted(map(len, shares))
    return sorted(map(sorted, shares))


def _range_size(partitions: int, members: int, index: int) -> int:
    """Return how many partitions of a topic the range assignor gives to a member."""
    each, more = divmod(partitions, members)
    return each + (index < more)


def _is_shared_out(session: Session, mine: list[Reader], wanted: set[Place], shares: list[int]) -> bool:
    had = [place for reader in mine for place in reader.assigned]
    if set(had) != wanted or len(had) != len(wanted):
        return False
    return sorted(len(reader.assigned) for reader in mine) == shares


def _commit_everything(session: Session, mine: list[Reader]) -> None:
    ends = [[*place, end] for reader in mine for place, end in sorted(reader.ends.items())]
    if ends:
        mine[0].client.commit(offsets=session.partitions(ends), asynchronous=False)


def read_as_group(session: Session, group: str) -> Result:
    """Read everything that the members of a group have not read."""
    return _read(session, group) if members(session, group) else SKIPPED


def _read(session: Session, group: str) -> Result:
    """Return what all members read, and where that ends."""
    whole: dict[str, dict[str, Result]] = {}
    for reader in members(session, group):
        found = consumer_steps.drain(session, reader)
        for part, by_place in found.items():
            if isinstance(by_place, dict):
                whole.setdefault(part, {}).update(by_place)
            else:
                whole[part] = by_place
    return whole


def group_assignment(session: Session, group: str) -> Result:
    """Ask all members what they read."""
    mine = members(session, group)
    if not mine:
        return SKIPPED
    return _assigned(mine, [list(map(session.place, reader.client.assignment())) for reader in mine])


def delete_group(session: Session, group: str) -> Result:
    """Delete a group, and what it has committed."""
    name = session.name(group)
    result = outcome(lambda: session.admin.delete_consumer_groups([name])[name].result(LIMIT_S))
    if is_ok(result):
        session.drop_pending(lambda holder, _place: holder == group)
    return result


def describe_group(session: Session, group: str) -> Result:
    """Ask an admin client for a group's state and members, once these have their partitions."""
    name, mine = session.name(group), members(session, group)

    def ask() -> Any:
        return session.admin.describe_consumer_groups([name])[name].result(LIMIT_S)

    def is_quiet(about: Any) -> bool:
        if about.state not in RESTING or len(about.members) != len(mine):
            return False
        return all(
            member.target_assignment is None
            or set(member.assignment.topic_partitions) == set(member.target_assignment.topic_partitions)
            for member in about.members
        )

    def describe() -> Result:
        until_s = session.world.monotonic_s() + SETTLE_S
        while not is_quiet(about := ask()) and session.world.monotonic_s() < until_s:
            for reader in mine:
                consumer_steps.receive(session, reader, reader.client.poll(POLL_S))
        shares = [list(map(session.place, member.assignment.topic_partitions)) for member in about.members]
        return [
            *(about.state.name, about.type.name, about.is_simple_consumer_group, about.partition_assignor),
            sorted([member.client_id, member.group_instance_id] for member in about.members),
            _assigned(mine, shares),
        ]

    return outcome(describe)
