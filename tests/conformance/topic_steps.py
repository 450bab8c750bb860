"""Operations on topics: what operators do with an admin client."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from acktree.testing.world import SimulatedWorld
from conformance.consumer_steps import drain
from conformance.group_steps import read_as_group, settle
from conformance.producer_steps import flush_all
from conformance.results import Result, is_ok, outcome
from conformance.script import SKIPPED, Place
from conformance.session import LIMIT_S, SHORT_S, Session

FETCHED_S = 0.05
"""By then, the last fetch of a partition that nobody reads any more is answered: it may show the deletion."""
SEGMENT_S = 0.05
"""How long a segment of a compacted topic is appended to."""
DESCRIBED = {
    "TOPIC": ("cleanup.policy", "max.message.bytes", "message.timestamp.type", "retention.ms"),
    "GROUP": ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"),
}


def answer(futures: dict[Any, Any]) -> Any:
    """Return the answer to a request about one thing."""
    (future,) = futures.values()
    return future.result(LIMIT_S)


def create_topic(session: Session, topic: str, partitions: int, config: dict[str, str]) -> Result:
    """Create a topic, and wait until everybody can see it."""
    session.created[topic] = session.created.get(topic, 0) + (topic not in session.topics)
    new = NewTopic(session.name(topic), num_partitions=partitions, replication_factor=1, config=config)
    result = outcome(lambda: answer(session.admin.create_topics([new])))
    if is_ok(result):
        session.topics[topic] = partitions
        session.versions[topic] = session.versions.get(topic, 0) + 1
        session.until(lambda: _partitions_of(session, topic) == partitions)
        result.append(_read_alone(session, topic))
    return result


def _read_alone(session: Session, topic: str) -> Result:
    """Let the consumers that chose a topic themselves read on: its bounds may decide where they are."""
    return {
        name: drain(session, reader)
        for name, reader in session.readers.items()
        if not reader.topics and any(place[0] == topic for place in reader.assigned)
    }


def _partitions_of(session: Session, topic: str) -> int:
    name = session.name(topic)
    found = session.admin.list_topics(name, timeout=LIMIT_S).topics[name]
    return 0 if found.error else len(found.partitions)


def _subscribed_groups(session: Session, topic: str) -> list[str]:
    found = {reader.group for reader in session.readers.values() if topic in reader.topics}
    return sorted(found)


def _finish_reading(session: Session, topic: str) -> None:
    """Let consumers return what they have fetched."""
    for reader in session.readers.values():
        if any(place[0] == topic for place in reader.assigned):
            drain(session, reader)


def grow_topic(session: Session, topic: str, partitions: int) -> Result:
    """Add partitions; groups that read the topic share them out."""
    for group in _subscribed_groups(session, topic):
        settle(session, group, before=True)
    new = NewPartitions(session.name(topic), partitions)
    result = outcome(lambda: answer(session.admin.create_partitions([new])))
    if is_ok(result):
        session.topics[topic] = partitions
        session.versions[topic] = session.versions.get(topic, 0) + 1
        session.until(lambda: _partitions_of(session, topic) == partitions)
        result.append([settle(session, group) for group in _subscribed_groups(session, topic)])
        result.append(_read_alone(session, topic))
    return result


def delete_topic(session: Session, topic: str) -> Result:
    """Delete a topic that nobody reads."""
    if any(
        topic in reader.topics or any(place[0] == topic for place in reader.assigned)
        for reader in session.readers.values()
    ):
        return SKIPPED
    flushed = flush_all(session)
    result = outcome(lambda: answer(session.admin.delete_topics([session.name(topic)])))
    result.append(flushed)
    if is_ok(result):
        session.drop_pending(lambda _group, place: place[0] == topic)
        del session.topics[topic]
        session.versions[topic] += 1
        session.until(lambda: _partitions_of(session, topic) == 0)
        for bounds in (session.starts, session.ends):
            for place in [place for place in bounds if place[0] == topic]:
                del bounds[place]
    return result


def delete_records(session: Session, topic: str, partition: int, offset: int) -> Result:
    """Delete the records before an offset; -1 deletes all."""
    waiting = [reader for reader in session.readers.values() if (topic, partition) in reader.active]
    if session.is_open([(topic, partition)]) and any(reader.is_committed_only for reader in waiting):
        return SKIPPED
    _finish_reading(session, topic)
    session.world.sleep(FETCHED_S)
    session.log_ends([(topic, partition)], is_committed_only=False)  # until the client knows the topic
    request = session.partitions([(topic, partition, offset)])
    result = outcome(lambda: answer(session.admin.delete_records(request)).low_watermark)
    if is_ok(result):
        session.starts[topic, partition] = result[1]
        _await_start(session, (topic, partition), result[1])
        result.append(_read_alone(session, topic))
        result.append([read_as_group(session, group) for group in _subscribed_groups(session, topic)])
    return result


def _await_start(session: Session, place: Place, start: int) -> None:
    """Wait until everyone who reads a partition knows its start: an assignment from there relies on it."""
    (asked,) = session.partitions([place])
    for reader in session.readers.values():
        if not reader.is_closed and place in reader.active and place in reader.ends:
            client = reader.client
            session.until(lambda: client.get_watermark_offsets(asked, cached=True)[0] == start, SHORT_S)  # noqa: B023


def clean(session: Session, topic: str, partition: int) -> Result:
    """Have the log cleaner pass: it never touches the last segment, so three records begin new ones.

    It has passed where the first of the three is gone; it may have to stop before.
    """
    place, client = (topic, partition), session.producer()
    offsets = []
    for _ in range(3):
        session.world.sleep(2 * SEGMENT_S)
        client.produce(
            session.name(topic), "", "roll", partition, on_delivery=lambda _, it: offsets.append(it.offset())
        )
        client.flush(LIMIT_S)
    session.appended(place, offsets[-1] + 1)
    if isinstance(session.world, SimulatedWorld):
        session.world.cluster.log(session.name(topic), partition).compact()
    reader = session.consumer("cleaned", **{"isolation.level": "read_uncommitted"})

    def is_there() -> bool:
        reader.assign(session.partitions([(*place, offsets[0])]))
        return bool(reader.poll(LIMIT_S).offset() == offsets[0])

    is_done = session.until(lambda: not is_there(), SHORT_S if session.is_open([place]) else LIMIT_S)
    reader.close()
    return is_done


def list_offsets(session: Session, topic: str, partition: int, spec: str, is_committed_only: bool) -> Result:
    """Ask where a log begins or ends."""
    level = IsolationLevel.READ_COMMITTED if is_committed_only else IsolationLevel.READ_UNCOMMITTED
    specs: dict[str, Callable[[], Any]] = {"earliest": OffsetSpec.earliest, "latest": OffsetSpec.latest}
    request = {session.partitions([(topic, partition)])[0]: specs[spec]()}

    def ask() -> Result:
        found = answer(session.admin.list_offsets(request, isolation_level=level))
        return [found.offset, found.timestamp]

    session.log_ends([(topic, partition)], is_committed_only=False)  # until the client knows the topic

    return outcome(ask)


def describe_topics(session: Session, topics: list[str]) -> Result:
    """Ask what topics are."""
    futures = session.admin.describe_topics(TopicCollection([session.name(topic) for topic in topics]))

    def ask(future: Any) -> Result:
        found = future.result(LIMIT_S)
        return [session.script_name(found.name), found.is_internal, len(found.partitions)]

    return {
        session.script_name(name): outcome(lambda: ask(future))  # noqa: B023
        for name, future in futures.items()
    }


def list_topics(session: Session, client: str, topic: str) -> Result:
    """Ask a client for the metadata of one topic."""
    if client == "admin":
        asked = session.admin
    elif client in session.readers:
        asked = session.readers[client].client
    elif client in session.writers:
        asked = session.writers[client].client
        session.writers[client].known.add((topic, session.versions.get(topic, 0)))
    else:
        return SKIPPED

    def ask() -> Result:
        found = asked.list_topics(session.name(topic), timeout=LIMIT_S)
        return {
            session.script_name(name): [
                session.script_name(about.topic),
                about.error.name() if about.error else None,
                {number: [partition.id, partition.error] for number, partition in about.partitions.items()},
            ]
            for name, about in found.topics.items()
        }

    return outcome(ask)


def _resource(session: Session, kind: str, name: str, changes: list[ConfigEntry] | None = None) -> Any:
    return ConfigResource(ConfigResource.Type[kind], session.name(name), incremental_configs=changes)


def describe_configs(session: Session, kind: str, name: str) -> Result:
    """Ask for the settings of a topic or group."""

    def ask() -> Result:
        found = answer(session.admin.describe_configs([_resource(session, kind, name)]))
        return {setting: [found[setting].value, found[setting].is_default] for setting in DESCRIBED[kind]}

    return outcome(ask)


def alter_config(session: Session, kind: str, name: str, setting: str, value: str) -> Result:
    """Change a setting of a topic or group, and wait until it can be seen."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    resource = _resource(session, kind, name, [entry])
    result = outcome(lambda: answer(session.admin.incremental_alter_configs([resource])))

    def is_there() -> bool:
        try:
            return bool(answer(session.admin.describe_configs([resource]))[setting].value == value)
        except KafkaException:
            return True

    if is_ok(result):
        session.until(is_there)
    return result
