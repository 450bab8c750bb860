"""Publishes a topology: reads the cluster, creates the topics missing from it, writes the next version.

Invariant: applying a topology twice changes nothing the second time. Two operators who publish concurrently
are serialized by a transactional producer that reads the registry after fencing the other.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
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

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable, TopologyChanged, UnknownTopology
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    listed_offset,
    make_admin,
    make_producer,
    refuse_missing,
    retry_until_ready,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors, is_forbidden, was_fenced
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.core.topology.file import Topology
from acktree.core.topology.plan import (
    CLEANUP,
    MAX_BYTES,
    SEGMENT,
    Change,
    ExistingTopic,
    Plan,
    plan_changes,
    wanted_topics,
)
from acktree.core.topology.registry import History, Published, read_history

BROKER_DEFAULT = -1
PUBLISH_TRIES = 5
"""How often a publisher that is fenced by others tries."""
_REFUSED_SETTING = ("INVALID_CONFIG", "POLICY_VIOLATION")

log = logging.getLogger("acktree.kafka")


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
            f"source topic {topic!r} does not exist; acktree never creates source topics: "
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
    existing = retry_until_ready(lambda: describe(admin, bootstrap, known), are_listed=True)
    settings = retry_until_ready(lambda: _settings(admin, bootstrap, known), are_listed=True)
    for name, (max_bytes, cleanup) in settings.items():
        existing[name] = replace(existing[name], max_bytes=max_bytes, cleanup=cleanup)
    return plan_changes(topology, history, existing, names)


def _settings(
    admin: AdminClient, bootstrap: str, topics: Sequence[str]
) -> dict[str, tuple[int | None, str | None]]:
    """Return how large a record of each topic may be, and its cleanup policy, as far as the broker tells."""
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    found: dict[str, tuple[int | None, str | None]] = {}
    with clear_errors(bootstrap):
        for resource, future in admin.describe_configs(resources, request_timeout=BROKER_TIMEOUT_S).items():
            try:
                entries = world.wait_for(future, BROKER_TIMEOUT_S)
                values = {name: entries[name].value for name in (MAX_BYTES, CLEANUP) if name in entries}
                limit = values.get(MAX_BYTES) or ""
                cleanup = values.get(CLEANUP) or None
                found[resource.name] = int(limit) if limit.isdecimal() else None, cleanup
            except KafkaException as error:
                if not is_forbidden(error.args[0]):
                    raise
    return found


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

    ``based_on`` is the version that the topology was made from; a newer one is not overwritten.

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
    for tries_left in reversed(range(PUBLISH_TRIES if plan.publish is not None else 0)):
        try:
            return replace(plan, publish=_publish(admin, bootstrap, topology, user, based_on))
        except BrokerRefused as error:
            if not was_fenced(error) or not tries_left:
                raise
    return plan


def _publish(
    admin: AdminClient, bootstrap: str, topology: Topology, user: Settings, based_on: int | None
) -> Published | None:
    """Publish a topology as the next version, and return that; None if it is published already.

    Raises:
        BrokerRefused: another publisher has fenced this one, as when an operator and a driver publish
            at the same time.
    """
    name = topology.registry_topic
    producer = make_producer(producer_settings(bootstrap, user, transactional_id=f"{name}.publisher"))
    with clear_errors(bootstrap):
        retry_until_ready(lambda: producer.init_transactions(BROKER_TIMEOUT_S))
        plan = make_plan(admin, bootstrap, topology, user)
        _refuse_newer(plan, based_on)
        _change_topics(admin, bootstrap, plan)
        if plan.publish is not None:
            producer.begin_transaction()
            producer.produce(name, plan.publish.model_dump_json(), str(plan.publish.version).encode(), 0)
            producer.commit_transaction(BROKER_TIMEOUT_S)
            _await_visible(admin, name)
    return plan.publish


def _refuse_newer(plan: Plan, based_on: int | None) -> None:
    is_newer = plan.current is not None and plan.current.version != based_on
    if based_on is not None and is_newer and plan.publish is not None:
        assert plan.current is not None
        raise TopologyChanged(
            f"version {plan.current.version} was published meanwhile, and this change is based on version "
            f"{based_on}: nothing was published; start again from the newer one"
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
        return listed_offset(answer)

    deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
    while end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
        if world.monotonic_s() > deadline_s:
            raise BrokerUnreachable(
                f"the new version is on {registry_topic}, but readers still do not see it after "
                f"{BROKER_TIMEOUT_S:g} s; check with: acktree topology show"
            )
        admin.poll(0.02)


def create_topics(bootstrap: str, topology: Topology, user: Settings, *, dry_run: bool = False) -> Plan:
    """Create and grow the topics of a topology without publishing it; raises what ``apply_topology`` does."""
    admin = make_admin(bootstrap, user)
    plan = make_plan(admin, bootstrap, topology, user)
    if not dry_run:
        _change_topics(admin, bootstrap, plan)
    return plan


def _change_topics(admin: AdminClient, bootstrap: str, plan: Plan) -> None:
    """Create, grow and change topics; a limit of sizes that the broker refuses stays as it is."""
    pending: dict[Any, Any] = {}
    if plan.create:
        topics = [
            NewTopic(name, count, plan.replication_factor or BROKER_DEFAULT, config=dict(config))
            for name, count, config in plan.create
        ]
        pending |= admin.create_topics(topics)
    if plan.grow:
        pending |= admin.create_partitions([NewPartitions(name, count) for name, count in plan.grow])
    for future in pending.values():
        _wait_for(future, bootstrap, "TOPIC_ALREADY_EXISTS")
    changing = [(change, _start(admin, change)) for change in plan.change]
    for change, future in changing:
        passes = _REFUSED_SETTING if change.setting in (MAX_BYTES, SEGMENT) else ()
        if (refusal := _wait_for(future, bootstrap, *passes)) is not None:
            log.warning(
                "the broker refused to %s: %s; for the consequences, run: acktree doctor --topology NAME",
                change.line(),
                refusal,
                extra={"action": "limit_refused"},
            )


def _wait_for(future: Any, bootstrap: str, *passes: str) -> str | None:
    """Wait for a change of a topic; return the text of an error whose name passes, and raise another."""
    try:
        world.wait_for(future, BROKER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].name() not in passes:
            raise as_clear_error(error.args[0], bootstrap) from error
        return str(error.args[0].str())
    return None


def _start(admin: AdminClient, change: Change) -> Any:
    """Start to change a setting; return its future."""
    resource = ConfigResource(ResourceType.TOPIC, change.topic, incremental_configs=[_entry(change)])
    (future,) = admin.incremental_alter_configs([resource]).values()
    return future


def _entry(change: Change) -> ConfigEntry:
    kind = AlterConfigOpType.DELETE if change.value is None else AlterConfigOpType.SET
    return ConfigEntry(change.setting, change.value, incremental_operation=kind)
