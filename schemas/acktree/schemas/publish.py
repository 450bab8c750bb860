"""Publish a topology: look at the cluster, create what the plan says is missing, write the next version.

Invariant: applying a topology twice changes nothing the second time. Two operators who publish at once are
serialized by a transactional producer that reads the registry after fencing the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
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

from acktree.schemas import world
from acktree.schemas.client_settings import Settings, producer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_admin, make_producer, refuse_missing
from acktree.schemas.errors import BrokerUnreachable, TopologyChanged, UnknownTopology
from acktree.schemas.kafka_errors import as_clear_error, clear_errors
from acktree.schemas.registry import History, read_history
from acktree.schemas.topology import Topology
from acktree.schemas.topology_plan import Change, ExistingTopic, Plan, plan_changes, wanted_topics

BROKER_DEFAULT = -1


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
    known = [topic for topic in (*sources, *wanted_topics(topology)) if topic in names]
    history = History(topology.name)
    if topology.registry_topic in names:
        try:
            history = read_history(bootstrap, topology.name, user)
        except UnknownTopology:
            pass
    return plan_changes(topology, history, describe(admin, bootstrap, known), names)


def describe(admin: AdminClient, bootstrap: str, topics: Sequence[str]) -> dict[str, ExistingTopic]:
    """Return id, partition count and replication factor of existing topics."""
    if not topics:
        return {}
    found: dict[str, ExistingTopic] = {}
    with clear_errors(bootstrap):
        for topic, future in admin.describe_topics(TopicCollection(list(dict.fromkeys(topics)))).items():
            about = world.wait_for(future, BROKER_TIMEOUT_S)
            replicas = min((len(partition.replicas) for partition in about.partitions), default=0)
            found[topic] = ExistingTopic(str(about.topic_id), len(about.partitions), replicas)
    return found


def apply_topology(
    bootstrap: str,
    topology: Topology,
    user: Settings,
    *,
    dry_run: bool = False,
    based_on: int | None = None,
) -> Plan:
    """Apply a topology to the cluster; return what was done, or with ``dry_run`` what would be done.

    ``based_on`` is the version that the topology was made from; a newer one would be taken back by it.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        MissingTopic: a source topic does not exist.
        TopologyChanged: a version after ``based_on`` is published.
    """
    admin = make_admin(bootstrap, user)
    plan = make_plan(admin, bootstrap, topology, user)
    _refuse_newer(plan, based_on)
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
        _refuse_newer(again, based_on)
        _change_topics(admin, bootstrap, again)
        plan = replace(plan, publish=again.publish)
        if (publish := plan.publish) is not None:
            producer.begin_transaction()
            producer.produce(name, publish.model_dump_json(), str(publish.version).encode(), 0)
            producer.commit_transaction(BROKER_TIMEOUT_S)
            _await_visible(admin, name)
    return plan


def _refuse_newer(plan: Plan, based_on: int | None) -> None:
    if based_on is not None and plan.current is not None and plan.current.version != based_on:
        raise TopologyChanged(
            f"version {plan.current.version} was published meanwhile, and this change was made from version "
            f"{based_on}: nothing was published; make it again"
        )


def _await_visible(admin: AdminClient, registry_topic: str) -> None:
    """Return once readers see what was published: a commit is answered before its marker is written.

    Raises:
        BrokerUnreachable: the marker was not written within BROKER_TIMEOUT_S.
    """
    place = TopicPartition(registry_topic, 0)

    def end(isolation: IsolationLevel) -> int:
        asked = {place: cast(Any, OffsetSpec).latest()}
        (answer,) = admin.list_offsets(asked, isolation_level=isolation).values()
        return int(world.wait_for(answer, BROKER_TIMEOUT_S).offset)

    deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
    while end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
        if world.monotonic_s() > deadline_s:
            raise BrokerUnreachable(
                f"the new version is on {registry_topic}, and readers do not see it after "
                f"{BROKER_TIMEOUT_S:g} s; check with: acktree topology show"
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
            NewTopic(name, count, plan.replication_factor or BROKER_DEFAULT, config=dict(config))
            for name, count, config in plan.create
        ]
        pending |= admin.create_topics(topics)
    if plan.grow:
        pending |= admin.create_partitions([NewPartitions(name, count) for name, count in plan.grow])
    if plan.change:
        resources = [
            ConfigResource(
                ResourceType.TOPIC, name, incremental_configs=[_entry(change) for change in changes]
            )
            for name, changes in groupby(sorted(plan.change), lambda change: change.topic)
        ]
        pending |= admin.incremental_alter_configs(resources)
    for future in pending.values():
        try:
            world.wait_for(future, BROKER_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise as_clear_error(error.args[0], bootstrap) from error


def _entry(change: Change) -> ConfigEntry:
    kind = AlterConfigOpType.DELETE if change.value is None else AlterConfigOpType.SET
    return ConfigEntry(change.setting, change.value, incremental_operation=kind)
