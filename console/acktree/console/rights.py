"""Lists the least rights of each role of a topology on the cluster: Kafka ACLs from the topology (pure).

Invariant: the tests run each role with exactly these rights, against an authorizer that denies the rest. Read
and Write imply Describe. A principal that may write to `T.ack` or `T.ack-init` can forge a "done": only
workers and stages may; never a reader of figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from acktree.core.topology.file import Topology
from acktree.wire.errors import AcktreeError


class Role(StrEnum):
    """A role whose rights are listed; a component is named beside ``bolt``, ``spout`` and ``spark``."""

    ACKER = "acker"
    BOLT = "bolt"
    SPOUT = "spout"
    SPARK = "spark"
    OPERATOR = "operator"
    UI = "ui"
    TRACES = "traces"
    EDITOR = "editor"


class NoSuchRole(AcktreeError):
    """The topology has no component of that name that can run in that role."""


@dataclass(frozen=True, slots=True)
class Right:
    """One Kafka ACL without its principal; ``is_prefix`` covers every name that begins with ``name``."""

    resource: str
    name: str
    operation: str
    is_prefix: bool = False

    def options(self, principal: str, host: str) -> str:
        """Return the options that make kafka-acls add it.

        >>> Right("topic", "t.ack", "Read").options("User:a", "*")
        '--add --allow-principal "User:a" --operation Read --topic t.ack'
        """
        allowed = f'--add --allow-principal "{principal}"' + (f" --allow-host {host}" if host != "*" else "")
        pattern = " --resource-pattern-type prefixed" if self.is_prefix else ""
        return f"{allowed} --operation {self.operation} --{self.resource} {self.name}{pattern}"


def rights(topology: Topology, role: Role, component: str | None) -> tuple[Right, ...]:
    """Return the rights of a role, each once. Without a component: of every one that can run in the role.

    Raises:
        NoSuchRole: nothing in the topology runs in that role, or not by that name.
    """
    if role is Role.OPERATOR:
        given = [*_operator(topology)]
    elif role is Role.UI:
        given = [*_ui(topology)]
    elif role is Role.TRACES:
        given = [*_traces(topology)]
    elif role is Role.EDITOR:
        given = [*_editor(topology)]
    elif role is Role.ACKER:
        given = [*_everybody(topology), *_acker(topology)]
    else:
        given = [*_everybody(topology)]
        for name in _components(topology, role, component):
            is_spout = name in topology.spouts
            given += _spout(topology, name) if is_spout else _bolt(topology, name)
            given += _limits(topology, name)
            if role is Role.SPARK:
                given += _spark(topology, name)
            elif is_spout and topology.spouts[name].topics:
                given.append(Right("group", topology.members_group(name), "Read"))
                given += _topic("Read", topology.stats_topic)  # does Spark run this spout?
    return tuple(dict.fromkeys(given))


def _components(topology: Topology, role: Role, component: str | None) -> list[str]:
    fed_by_code = [name for name, spout in topology.spouts.items() if not spout.topics]
    in_spark = [name for name in topology.spouts if name not in fed_by_code]
    candidates = {
        Role.BOLT: list(topology.bolts),
        Role.SPOUT: [*fed_by_code, *in_spark],
        Role.SPARK: [*in_spark, *topology.bolts],
    }[role]
    if component is not None and component in candidates:
        return [component]
    if component is None and candidates:
        usual = {Role.SPARK: in_spark, Role.SPOUT: fed_by_code}
        return usual.get(role) or candidates
    raise NoSuchRole(
        f"topology {topology.name} has no {component or 'component'} that runs as {role}; "
        f"it must be one of: {', '.join(candidates) or 'none'}"
    )


def _topic(operation: str, *names: str) -> Iterator[Right]:
    return (Right("topic", name, operation) for name in names)


def _results(topology: Topology, operation: str) -> Right:
    """Result topics are numbered when a topology is published, so the right is for their prefix."""
    return Right("topic", f"{topology.name}.spout-", operation, is_prefix=True)


def _registry(topology: Topology) -> Iterator[Right]:
    yield from _topic("Read", topology.registry_topic)
    yield Right("group", topology.group_of("registry"), "Describe")


def _everybody(topology: Topology) -> Iterator[Right]:
    """What runs the topology follows what is published, and reports."""
    yield from _registry(topology)
    yield from _topic("Write", topology.stats_topic)


def _acker(topology: Topology) -> Iterator[Right]:
    yield from _topic("Read", topology.ack_init_topic, topology.ack_topic)
    yield _results(topology, "Write")
    yield Right("group", topology.acker_group, "Read")
    for name, bolt in topology.bolts.items():
        yield from _topic("Describe", *bolt.reads)
        yield Right("group", topology.group_of(name), "Describe")


def _bolt(topology: Topology, name: str) -> Iterator[Right]:
    bolt = topology.bolts[name]
    yield from _topic("Read", *bolt.reads)
    yield from _topic("Write", *bolt.emits, topology.ack_topic)
    yield Right("group", topology.group_of(name), "Read")
    if bolt.exactly_once:
        yield Right("transactional-id", f"{topology.group_of(name)}-", "Write", is_prefix=True)


def _limits(topology: Topology, name: str) -> Iterator[Right]:
    """What writes asks what its topics take; without the answer a record they never take ends it."""
    if name in topology.spouts:
        own = () if topology.spouts[name].topics else (topology.dead_letter_topic,)
        yield from _topic("DescribeConfigs", *topology.spouts[name].emits, topology.ack_init_topic, *own)
    else:
        yield from _topic("DescribeConfigs", *topology.bolts[name].emits, topology.ack_topic)


def _spark(topology: Topology, name: str) -> Iterator[Right]:
    """Spark writes in transactions with a batch commit record, and reports why it rejects a row."""
    yield from _topic("Write", topology.ack_topic)
    stage = f"{topology.group_of(name)}.stage"
    yield Right("group", stage, "Read")
    if name in topology.bolts:  # a spout has its id as a prefix
        yield Right("transactional-id", f"{stage}-", "Write", is_prefix=True)


def _spout(topology: Topology, name: str) -> Iterator[Right]:
    """A spout with topics runs in Spark, or its tasks in Python: either fences the other's ids."""
    spout = topology.spouts[name]
    yield from _topic("Read", *spout.topics)
    yield from _topic("Write", *spout.emits, topology.ack_init_topic)
    yield _results(topology, "Read")
    yield from _topic("Read", topology.state_topic(name))
    yield from _topic("Write", topology.state_topic(name))
    if spout.topics:
        yield _results(topology, "Write")
        yield Right("transactional-id", topology.group_of(name), "Write")
        yield from failed_values(topology)
    yield Right("transactional-id", f"{topology.group_of(name)}.", "Write", is_prefix=True)
    yield from _topic("Write", topology.dead_letter_topic)
    yield Right("group", topology.group_of(name), "Read")


def failed_values(topology: Topology) -> Iterator[Right]:
    """Keep with a dead letter what its failed tuple held; without this the dead letter says so."""
    for bolt in topology.bolts.values():
        yield from _topic("Read", *bolt.reads)


def _editor(topology: Topology) -> Iterator[Right]:
    """Correct dead letters: the only role that writes to source topics."""
    for spout in topology.spouts.values():
        yield from _topic("Write", *spout.topics)
    yield from _topic("Write", topology.dead_letter_topic)
    yield Right("transactional-id", f"{topology.dead_letter_topic}.editor", "Write")
    yield from _ui(topology)


def _operator(topology: Topology) -> Iterator[Right]:
    """Apply the topology, read everything, replay and rewind."""
    control = (topology.ack_init_topic, topology.ack_topic)
    ours = (topology.registry_topic, topology.dead_letter_topic, topology.stats_topic)
    own = (*ours, *control, *topology.state_topics())
    yield from _topic("Create", *own, *topology.emitted_topics())
    yield _results(topology, "Create")
    yield from _topic("Alter", *control)
    yield from _topic("AlterConfigs", *own)
    for spout in topology.spouts.values():
        yield from _topic("DescribeConfigs", *(spout.topics or spout.emits))
    yield _results(topology, "AlterConfigs")
    yield from _topic("Write", topology.registry_topic)
    yield Right("transactional-id", f"{topology.registry_topic}.publisher", "Write")
    yield _results(topology, "Write")
    for name, spout in topology.spouts.items():
        if spout.topics:  # a rewind is a commit of its group
            yield Right("group", topology.group_of(name), "Read")
    yield from _ui(topology)


def _ui(topology: Topology) -> Iterator[Right]:
    """Look at figures, groups and the log; change nothing, join no group."""
    yield from _registry(topology)
    yield Right("group", topology.group_of("console"), "Describe")
    yield from _topic("Read", topology.stats_topic, topology.dead_letter_topic, *topology.state_topics())
    yield from _topic("Read", topology.ack_init_topic, topology.ack_topic, *topology.emitted_topics())
    yield _results(topology, "Read")
    for spout in topology.spouts.values():
        yield from _topic("Read", *spout.topics)
    for group in ("acker", *topology.spouts, *topology.bolts):
        yield Right("group", topology.group_of(group), "Describe")


def _traces(topology: Topology) -> Iterator[Right]:
    """Read the trees of finished records, and remember in a separate group which are exported."""
    yield from _registry(topology)
    yield Right("group", topology.group_of("console"), "Describe")
    yield Right("group", topology.group_of("traces"), "Read")
    yield from _topic("Read", topology.ack_init_topic, topology.ack_topic, *topology.emitted_topics())
    yield _results(topology, "Read")
    for spout in topology.spouts.values():
        yield from _topic("Read", *spout.topics)
    for bolt in topology.bolts:
        yield Right("group", topology.group_of(bolt), "Describe")
