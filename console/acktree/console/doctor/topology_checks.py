"""Checks what a published topology relies on: the settings of its topics, and the rights of its roles.

Invariant: nothing is written, and nothing is changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from acktree.console.doctor import conclusions
from acktree.console.doctor.acls import Acl, lacking
from acktree.console.doctor.answers import Answer, Conclusion, worst
from acktree.console.doctor.checks import Check, Unknown
from acktree.console.doctor.scratch import REQUEST_S, Scratch
from acktree.console.rights import NoSuchRole, Right, Role, rights
from acktree.core import world
from acktree.core.kafka.errors import is_missing
from acktree.core.topology.plan import control_config, wanted_topics
from acktree.core.topology.registry import Published

_APPLY = "acktree topology apply FILE, or kafka-configs"
_DESCRIBE_ACLS = "Describe on the cluster"


def topology_checks(
    scratch: Scratch, topology: Published, principals: Mapping[Role, Sequence[str]]
) -> Iterator[Check]:
    """Yield the checks of a topology; ``principals`` are who has which role, as far as it was said."""
    tasks = sorted({task for tasks in topology.spout_tasks.values() for task in tasks})
    wanted = {name: config for name, (_, config) in wanted_topics(topology).items()}
    wanted |= {topology.result_topic(task): control_config(topology) for task in tasks}
    of_tuples = set(topology.emitted_topics())
    for name, config in wanted.items():
        is_own = name not in of_tuples
        asked = "settings, replicas, record size" if is_own else "replicas"
        ask = _settings_of(scratch, name, config, is_own, is_state=name in topology.state_topics())
        yield Check(f"topic {name}", asked, ask, _APPLY, _describes(name))
    for name in dict.fromkeys(topic for spout in topology.spouts.values() for topic in spout.topics):
        ask = _settings_of(scratch, name, {}, is_own=False)
        yield Check(f"source {name}", "replicas", ask, "", _describes(name))
    if any(spout.topics for spout in topology.spouts.values()):
        right = _describes(topology.dead_letter_topic)
        yield Check("dead letters", "they fit", _dead_letters_fit(scratch, topology), "", right)
    acls = _acls_of(scratch)
    for role in Role:
        try:
            needed = rights(topology, role, None)
        except NoSuchRole:
            continue
        ask = _rights_of(acls, needed, principals.get(role, ()))
        yield Check(f"rights of {role}", f"{len(needed)} rights in ACLs", ask, "", _DESCRIBE_ACLS)


def _describes(topic: str) -> str:
    return f"Describe and DescribeConfigs on topic {topic}"


def _settings_of(
    scratch: Scratch, topic: str, wanted: Mapping[str, str], is_own: bool, is_state: bool = False
) -> Callable[[], Conclusion]:
    """Return what asks for a topic's settings; the limits of tuples and sources are the user's choice."""

    def ask() -> Conclusion:
        try:
            partitions = scratch.describe(topic).partitions
        except KafkaException as error:
            if not is_missing(error.args[0]):
                raise
            return Conclusion(Answer.FAILS, "the topic does not exist", _APPLY)
        found = scratch.settings(topic)
        copies = min((len(partition.replicas) for partition in partitions), default=None)
        in_sync = conclusions.number(found.get("min.insync.replicas"))
        parts = [conclusions.of_replication(None, copies, in_sync), conclusions.of_elections(found)]
        if is_own:
            parts.append(conclusions.of_own_limits(found))
        if is_state:
            parts.append(conclusions.of_state(found, len(partitions)))
        if wanted:
            parts.append(conclusions.of_settings(wanted, found))
        return worst(parts)

    return ask


def _dead_letters_fit(scratch: Scratch, topology: Published) -> Callable[[], Conclusion]:
    def limit_of(topic: str) -> int | None:
        return conclusions.number(scratch.settings(topic).get("max.message.bytes"))

    def ask() -> Conclusion:
        sources = {topic for spout in topology.spouts.values() for topic in spout.topics}
        limits = {topic: limit_of(topic) for topic in sorted(sources)}
        return conclusions.of_dead_letters(limit_of(topology.dead_letter_topic), limits)

    return ask


def _acls_of(scratch: Scratch) -> Callable[[], list[Acl]]:
    """Return what asks for all ACLs, once."""
    kept: list[list[Acl]] = []

    def ask() -> list[Acl]:
        if not kept:
            kept.append(_ask_acls(scratch))
        return kept[0]

    return ask


def _ask_acls(scratch: Scratch) -> list[Acl]:
    """Return all ACLs of the cluster. Raises Unknown where they may not be seen."""
    everything = cast(Any, AclBindingFilter)(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = world.wait_for(scratch.admin.describe_acls(everything, request_timeout=REQUEST_S), REQUEST_S)
    if not found:
        _refuse_blindness(scratch)
    return [
        Acl(
            binding.principal,
            binding.restype.name.lower().replace("_", "-"),
            binding.name,
            binding.resource_pattern_type is ResourcePatternType.PREFIXED,
            binding.operation.name.title().replace("_", ""),
            binding.permission_type is AclPermissionType.DENY,
        )
        for binding in found
    ]


def _refuse_blindness(scratch: Scratch) -> None:
    """Raise Unknown if ACLs may not be seen: librdkafka drops the broker's error, and shows none."""
    answer = scratch.admin.describe_cluster(include_authorized_operations=True, request_timeout=REQUEST_S)
    allowed = world.wait_for(answer, REQUEST_S).authorized_operations or ()  # None for no right at all
    if AclOperation.DESCRIBE not in allowed:
        raise Unknown(Answer.FORBIDDEN, "according to the broker, this principal may not see ACLs")


def _rights_of(
    acls: Callable[[], list[Acl]], needed: Sequence[Right], named: Sequence[str]
) -> Callable[[], Conclusion]:
    def ask() -> Conclusion:
        return conclusions.of_rights(lacking(acls(), needed), named)

    return ask
