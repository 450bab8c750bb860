"""Operations on the offsets that groups have committed."""

from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions

from conformance.consumer_steps import POLL_S, drain, places_of, receive
from conformance.results import Result, is_ok, outcome
from conformance.script import SKIPPED
from conformance.session import LIMIT_S, SHORT_S, Session


def commit(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Commit offsets and wait for the answer."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED
    offsets = session.partitions(places)
    return outcome(lambda: places_of(session, reader.client.commit(offsets=offsets, asynchronous=False)))


def commit_later(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Commit offsets; the answer comes to the callback."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED
    offsets = session.partitions(places)
    result = outcome(lambda: reader.client.commit(offsets=offsets, asynchronous=True))
    if is_ok(result):
        until_s = session.world.monotonic_s() + LIMIT_S
        while not reader.commits and session.world.monotonic_s() < until_s:
            receive(session, reader, reader.client.poll(POLL_S))
        result.append(reader.commits)
        reader.commits = []
        if not reader.topics:
            # How much it has read while it waited is a matter of timing; so it goes on to the end.
            result.append(drain(session, reader))
    return result


def committed(session: Session, name: str, places: list[list[Any]]) -> Result:
    """Ask what the consumer's group has committed."""
    reader = session.readers.get(name)
    if reader is None:
        return SKIPPED
    asked = session.partitions(places)
    held = session.is_pending(reader.group, [session.place(place) for place in asked])
    limit_s = SHORT_S if held and reader.is_committed_only else LIMIT_S
    return outcome(lambda: places_of(session, reader.client.committed(asked, timeout=limit_s)))


def listed_offsets(session: Session, group: str, places: list[list[Any]]) -> Result:
    """Ask an admin client what a group has committed."""
    name = session.name(group)
    asked = [ConsumerGroupTopicPartitions(name, session.partitions(places))]

    def ask() -> Result:
        (future,) = session.admin.list_consumer_group_offsets(asked).values()
        found = future.result(LIMIT_S).topic_partitions
        return [[*session.place(place), place.offset, place.metadata] for place in found]

    return outcome(ask)
