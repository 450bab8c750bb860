"""Publish a topology: check it against the cluster, create what is missing, write the next version.

Invariant: a plan changes nothing; applying it twice changes nothing the second time. Two operators who
publish at once are serialized by a transactional producer that reads the registry after fencing the other.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    Settings,
    as_clear_error,
    clear_errors,
    make_admin,
    make_producer,
    producer_settings,
    refuse_missing,
)
from acktree.schemas.errors import BadTopology, BrokerUnreachable, UnknownTopology
from acktree.schemas.header import MAX_VERSION
from acktree.schemas.ids import MAX_SLOTS
from acktree.schemas.registry import History, Published, Slot, read_history
from acktree.schemas.topology import Topology

STATS_RETENTION_S = 90_000
"""T.stats is kept for 25 hours: the longest window of the status page is a day."""
BROKER_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """What the plan needs to know about an existing topic."""

    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``apply`` would do; ``publish`` is None if the published version is the same already."""

    create: tuple[tuple[str, int, Mapping[str, str]], ...]
    grow: tuple[tuple[str, int], ...]
    retention: tuple[tuple[str, int], ...]
    publish: Published | None
    current: Published | None

    def topic_lines(self) -> list[str]:
        """Return the changes to topics as sentences, one per change."""
        lines = [f"create topic {name} with {count} partition(s)" for name, count, _ in self.create]
        lines += [f"grow topic {name} to {count} partitions" for name, count in self.grow]
        return lines + [f"keep topic {name} for {seconds} s" for name, seconds in self.retention]

    def lines(self) -> list[str]:
        """Return the plan as sentences, one per change."""
        lines = self.topic_lines()
        if self.publish is not None:
            lines.append(f"publish version {self.publish.version} of topology {self.publish.name}")
        return lines


def next_version(
    topology: Topology, history: History, sources: Mapping[str, ExistingTopic]
) -> Published | None:
    """Return the version to publish after those in ``history``, or None if nothing changed (pure).

    Slots and spout task numbers of earlier versions are kept; new ones are appended behind the highest.

    Raises:
        BadTopology: more than 4096 slots or 65535 versions would be needed.
    """
    current = history.versions[max(history.versions)] if history.versions else None
    tasks = _spout_tasks(topology, history)
    slots = _slots(topology, current, sources)
    made = Published.model_validate(
        {**topology.model_dump(), "version": 1, "spout_tasks": tasks, "slots": slots}
    )
    if current is None:
        return made
    made = made.model_copy(update={"version": current.version + 1})
    if made.model_copy(update={"version": current.version}) == current:
        return None
    if made.version > MAX_VERSION:
        raise BadTopology(f"topology {topology.name} has used all {MAX_VERSION} versions; give it a new name")
    return made


def _spout_tasks(topology: Topology, history: History) -> dict[str, tuple[int, ...]]:
    known: dict[str, tuple[int, ...]] = {}
    for version in sorted(history.versions):
        for spout, tasks in history.versions[version].spout_tasks.items():
            known[spout] = max(known.get(spout, ()), tasks, key=len)
    unused = 1 + max((task for tasks in known.values() for task in tasks), default=-1)
    given: dict[str, tuple[int, ...]] = {}
    for spout, table in topology.spouts.items():
        mine = known.get(spout, ())[: table.tasks]
        fresh = table.tasks - len(mine)
        given[spout] = (*mine, *range(unused, unused + fresh))
        unused += fresh
    return given


def _slots(
    topology: Topology, current: Published | None, sources: Mapping[str, ExistingTopic]
) -> tuple[Slot, ...]:
    slots = list(current.slots if current else ())
    taken = {(slot.spout, slot.topic, slot.topic_id, slot.partition) for slot in slots}
    for spout, table in topology.spouts.items():
        wanted = [
            (spout, topic, sources[topic].topic_id, partition)
            for topic in table.topics
            for partition in range(sources[topic].partitions)
        ] or [(spout, "", "", index) for index in range(table.tasks)]
        for place in wanted:
            if place not in taken:
                slots.append(_slot(len(slots), *place))
    if len(slots) > MAX_SLOTS:
        raise BadTopology(
            f"topology {topology.name} needs {len(slots)} slots, one per source partition ever read; "
            f"{MAX_SLOTS} is the limit: split it into several topologies"
        )
    return tuple(slots)


def _slot(number: int, spout: str, topic: str, topic_id: str, partition: int) -> Slot:
    return Slot(slot=number, spout=spout, topic=topic, topic_id=topic_id, partition=partition)


def make_plan(admin: AdminClient, bootstrap: str, topology: Topology, user: Settings) -> Plan:
    """Compare a topology with the cluster and return what has to change.

    Raises:
        MissingTopic: a source topic does not exist.
    """
    with clear_errors(bootstrap):
        names = set(admin.list_topics(timeout=BROKER_TIMEOUT_S).topics)
    sources = [topic for table in topology.spouts.values() for topic in table.topics]
    for topic in (topic for topic in sources if topic not in names):
        refuse_missing(
            admin,
            bootstrap,
            topic,
            f"source topic {topic!r} does not exist; acktree reads source topics and never makes them: "
            "create it first or correct the name",
        )
        names.add(topic)
    wanted = _wanted_topics(topology)
    existing = describe(admin, bootstrap, [topic for topic in (*sources, *wanted) if topic in names])
    history = History(topology.name)
    if topology.registry_topic in names:
        try:
            history = read_history(bootstrap, topology.name, user)
        except UnknownTopology:
            pass
    current = history.versions[max(history.versions)] if history.versions else None
    default_partitions = max(
        (existing[topic].partitions for topic in sources), default=max(topology.ackers, 1)
    )
    create, grow = [], []
    for name, (count, config) in wanted.items():
        count = count or default_partitions
        if name not in existing:
            create.append((name, count, config))
        elif name in (topology.ack_init_topic, topology.ack_topic) and existing[name].partitions < count:
            grow.append((name, count))
    retention = []
    if current is not None and current.control_retention_s != topology.control_retention_s:
        seconds = int(topology.control_retention_s)
        retention = [(name, seconds) for name in wanted if name in existing and _is_control(topology, name)]
    published = next_version(topology, history, existing)
    for task in sorted(
        {task for tasks in published.spout_tasks.values() for task in tasks} if published else ()
    ):
        name = topology.result_topic(task)
        if name not in names:
            create.append((name, 1, _control_config(topology)))
    return Plan(tuple(create), tuple(grow), tuple(retention), published, current)


def _is_control(topology: Topology, topic: str) -> bool:
    return topic in (topology.ack_init_topic, topology.ack_topic)


def _control_config(topology: Topology) -> dict[str, str]:
    return {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(int(topology.control_retention_s * 1000)),
    }


def _wanted_topics(topology: Topology) -> dict[str, tuple[int, Mapping[str, str]]]:
    """Return topic -> (partitions, config) of all but the result topics; 0 partitions = as the sources."""
    control = _control_config(topology)
    wanted: dict[str, tuple[int, Mapping[str, str]]] = {
        topology.registry_topic: (1, {"cleanup.policy": "compact"}),
        topology.dead_letter_topic: (1, {}),
        topology.stats_topic: (1, {"retention.ms": str(STATS_RETENTION_S * 1000)}),
    }
    if topology.ackers:
        wanted[topology.ack_init_topic] = (topology.ackers, control)
        wanted[topology.ack_topic] = (topology.ackers, control)
    for topic in topology.emitted_topics():
        wanted.setdefault(topic, (0, {}))
    return wanted


def describe(admin: AdminClient, bootstrap: str, topics: Sequence[str]) -> dict[str, ExistingTopic]:
    """Return id and partition count of existing topics."""
    if not topics:
        return {}
    found: dict[str, ExistingTopic] = {}
    with clear_errors(bootstrap):
        for topic, future in admin.describe_topics(TopicCollection(list(dict.fromkeys(topics)))).items():
            about = future.result(timeout=BROKER_TIMEOUT_S)
            found[topic] = ExistingTopic(str(about.topic_id), len(about.partitions))
    return found


def apply_topology(bootstrap: str, topology: Topology, user: Settings, *, dry_run: bool = False) -> Plan:
    """Apply a topology to the cluster; return what was done, or with ``dry_run`` what would be done.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        MissingTopic: a source topic does not exist.
    """
    admin = make_admin(bootstrap, user)
    plan = make_plan(admin, bootstrap, topology, user)
    if dry_run:
        return plan
    _change_topics(admin, bootstrap, plan)
    if plan.publish is None:
        return plan
    name = topology.registry_topic
    producer = make_producer(producer_settings(bootstrap, user, transactional_id=f"{name}.publisher"))
    with clear_errors(bootstrap):
        producer.init_transactions(BROKER_TIMEOUT_S)
        again = make_plan(admin, bootstrap, topology, user)
        _change_topics(admin, bootstrap, again)
        plan = replace(plan, publish=again.publish)
        if (publish := plan.publish) is not None:
            producer.begin_transaction()
            producer.produce(name, publish.model_dump_json().encode(), str(publish.version).encode(), 0)
            producer.commit_transaction(BROKER_TIMEOUT_S)
            _await_visible(admin, name)
    return plan


def _await_visible(admin: AdminClient, registry_topic: str) -> None:
    """Return once readers see what was published: a commit is answered before its marker is written.

    Raises:
        BrokerUnreachable: the marker was not written within BROKER_TIMEOUT_S.
    """
    place = TopicPartition(registry_topic, 0)

    def end(isolation: IsolationLevel) -> int:
        asked = {place: cast(Any, OffsetSpec).latest()}
        (answer,) = admin.list_offsets(asked, isolation_level=isolation).values()
        return int(answer.result(BROKER_TIMEOUT_S).offset)

    deadline_s = time.monotonic() + BROKER_TIMEOUT_S
    while end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
        if time.monotonic() > deadline_s:
            raise BrokerUnreachable(
                f"the new version is on {registry_topic}, and readers do not see it after "
                f"{BROKER_TIMEOUT_S:g} s; look with: acktree topology show"
            )
        admin.poll(0.02)


def create_topics(bootstrap: str, topology: Topology, user: Settings, *, dry_run: bool = False) -> Plan:
    """Create and grow the topics of a topology without publishing it; errors as of ``apply_topology``."""
    admin = make_admin(bootstrap, user)
    plan = make_plan(admin, bootstrap, topology, user)
    if not dry_run:
        _change_topics(admin, bootstrap, plan)
    return plan


def _change_topics(admin: AdminClient, bootstrap: str, plan: Plan) -> None:
    pending: dict[Any, Any] = {}
    if plan.create:
        topics = [
            NewTopic(name, count, replication_factor=BROKER_DEFAULT, config=dict(config))
            for name, count, config in plan.create
        ]
        pending |= admin.create_topics(topics)
    if plan.grow:
        pending |= admin.create_partitions([NewPartitions(name, count) for name, count in plan.grow])
    if plan.retention:
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(
                        "retention.ms", str(seconds * 1000), incremental_operation=AlterConfigOpType.SET
                    )
                ],
            )
            for name, seconds in plan.retention
        ]
        pending |= admin.incremental_alter_configs(resources)
    for future in pending.values():
        try:
            future.result(timeout=BROKER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise as_clear_error(error.args[0], bootstrap) from error
