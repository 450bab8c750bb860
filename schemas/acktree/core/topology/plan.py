"""Plans how a cluster must change for a topology: topics to create and to change, the next version. Pure.

Invariant: a plan changes nothing, and a plan made after it was applied is empty.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from acktree.core.errors import BadTopology
from acktree.core.topology.file import Topology
from acktree.core.topology.registry import History, Published, Slot
from acktree.wire.header import MAX_VERSION
from acktree.wire.ids import MAX_SLOTS
from acktree.wire.state_records import MAX_STATE_BYTES

STATS_RETENTION_S = 90_000
"""T.stats is kept for 25 hours: the longest window of the status page is a day."""

RETENTION, MIN_INSYNC, MAX_BYTES = "retention.ms", "min.insync.replicas", "max.message.bytes"
CLEANUP, COMPACT, SEGMENT = "cleanup.policy", "compact", "segment.bytes"
DEAD_LETTER_HEADERS_BYTES = 1 << 16
"""Room for what a dead letter adds to its source record: reasons, a stack trace, the tuple that failed."""
MOST_BYTES = (1 << 31) - 1
STATE_LIMITS = {MAX_BYTES: MAX_STATE_BYTES, SEGMENT: 2 * MAX_STATE_BYTES}
"""Limits of a state topic. A start reads what is not compacted, as the last segment never is."""


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """The facts about an existing topic that a plan needs; ``replicas`` is the lowest of its partitions.

    ``max_bytes``, the largest record size, and ``cleanup`` are None if the broker does not report them.
    """

    topic_id: str
    partitions: int
    replicas: int
    max_bytes: int | None = None
    cleanup: str | None = None


class Change(NamedTuple):
    """A topic's setting to change; None takes it back to the broker's default."""

    topic: str
    setting: str
    value: str | None

    def line(self) -> str:
        """Return the change as a sentence."""
        if self.setting == RETENTION and self.value is not None:
            return f"keep topic {self.topic} for {int(self.value) // 1000} s"
        return f"set {self.setting} of topic {self.topic} to {self.value or 'the default of the broker'}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that ``apply`` would make; ``publish`` is None if the same version is published.

    ``warnings`` are sentences about differences from the file that are left as they are.
    """

    create: tuple[tuple[str, int, Mapping[str, str]], ...]
    grow: tuple[tuple[str, int], ...]
    change: tuple[Change, ...]
    publish: Published | None
    current: Published | None
    replication_factor: int | None = None
    warnings: tuple[str, ...] = ()

    def topic_lines(self) -> list[str]:
        """Return the changes to topics as sentences, one per change."""
        factor = self.replication_factor
        copies = f", replication factor {factor}" if factor else ""
        lines = [f"create topic {name} with {count} partition(s){copies}" for name, count, _ in self.create]
        lines += [f"grow topic {name} to {count} partitions" for name, count in self.grow]
        return lines + [change.line() for change in self.change]

    def lines(self) -> list[str]:
        """Return the plan as sentences, one per change."""
        lines = self.topic_lines()
        if self.publish is not None:
            lines.append(f"publish version {self.publish.version} of topology {self.publish.name}")
        return lines


def plan_changes(
    topology: Topology, history: History, existing: Mapping[str, ExistingTopic], names: Collection[str]
) -> Plan:
    """Return what has to change on a cluster that has topics of these ``names``.

    ``existing`` are the sources, which must exist, and what the cluster has of ``wanted_topics``.

    Raises:
        BadTopology: see ``next_version``; or the broker would delete a spout's state; or the file states for
            a topic of tuples what that does not have.
    """
    for name in topology.state_topics():
        _refuse_deletion(name, existing.get(name))
    sources = [topic for table in topology.spouts.values() for topic in table.topics]
    current = history.versions[max(history.versions)] if history.versions else None
    partition_warnings = _other_partitions(topology, current, existing)
    default_partitions = max(
        (existing[topic].partitions for topic in sources), default=max(topology.ackers, 1)
    )
    create, grow = [], []
    for name, (count, config) in wanted_topics(topology).items():
        count = count or default_partitions
        if name not in existing:
            create.append((name, count, config))
        elif name in (topology.ack_init_topic, topology.ack_topic) and existing[name].partitions < count:
            grow.append((name, count))
    published = next_version(topology, history, existing)
    for task in sorted(
        {task for tasks in published.spout_tasks.values() for task in tasks} if published else ()
    ):
        name = topology.result_topic(task)
        if name not in names:
            create.append((name, 1, control_config(topology)))
    change = [] if current is None else _changes(topology, current, names)
    change += _dead_letter_limit(topology, existing)
    for name in topology.state_topics():
        change += _state_limits(name, existing.get(name))
    factor = topology.replication_factor
    warnings = [
        f"topic {name} has replication factor {existing[name].replicas}, the file says {factor}: acktree "
        "does not move replicas; use kafka-reassign-partitions"
        for name in wanted_topics(topology)
        if factor is not None and name in existing and existing[name].replicas != factor
    ]
    warnings += partition_warnings
    return Plan(tuple(create), tuple(grow), tuple(change), published, current, factor, tuple(warnings))


def _other_partitions(
    topology: Topology, current: Published | None, existing: Mapping[str, ExistingTopic]
) -> list[str]:
    """Return warnings of topics that do not have the partitions stated for them.

    A partition count that is already published is not refused: a topic may have grown since, and a driver
    publishes it again.
    """
    published, warnings = current.stated_partitions() if current else {}, []
    for topic, stated in topology.stated_partitions().items():
        if topic not in existing or (has := existing[topic].partitions) == stated:
            continue
        grow = f", or grow it: kafka-topics --alter --topic {topic} --partitions {stated}"
        text = (
            f"topic {topic} has {has} partition(s), the file says {stated}: acktree does not change the "
            f"partitions of a topic of tuples; write partitions = {has}{grow if stated > has else ''}"
        )
        if published.get(topic) != stated:
            raise BadTopology(text)
        warnings.append(text)
    return warnings


def _refuse_deletion(topic: str, found: ExistingTopic | None) -> None:
    if found is not None and found.cleanup not in (None, COMPACT):
        raise BadTopology(
            f"topic {topic} has {CLEANUP}={found.cleanup}, so the broker may delete the state of a spout. If "
            f"it is a topic of acktree, set it: kafka-configs --alter --topic {topic} --add-config "
            f"{CLEANUP}={COMPACT}; if not, give the topology another name"
        )


def _state_limits(topic: str, found: ExistingTopic | None) -> list[Change]:
    """Return what a state topic is given behind its creation, which a broker that refuses it would refuse."""
    if found is None:
        return [Change(topic, setting, str(value)) for setting, value in STATE_LIMITS.items()]
    is_low = found.max_bytes is not None and found.max_bytes < MAX_STATE_BYTES
    return [Change(topic, MAX_BYTES, str(MAX_STATE_BYTES))] if is_low else []


def _dead_letter_limit(topology: Topology, existing: Mapping[str, ExistingTopic]) -> list[Change]:
    """Return what makes the dead-letter topic take what its sources take, as far as that is known."""
    held = [topic for spout in topology.spouts.values() for topic in spout.topics or spout.emits]
    known = [size for topic in held if topic in existing and (size := existing[topic].max_bytes) is not None]
    wanted = min(max(known, default=0) + DEAD_LETTER_HEADERS_BYTES, MOST_BYTES)
    topic = topology.dead_letter_topic
    limit = existing[topic].max_bytes if topic in existing else 0
    return [Change(topic, MAX_BYTES, str(wanted))] if known and limit is not None and limit < wanted else []


def _changes(topology: Topology, current: Published, names: Collection[str]) -> list[Change]:
    """Return what a new file changes in topics of acktree's own; those of tuples are the user's."""
    results = [topology.result_topic(task) for tasks in current.spout_tasks.values() for task in tasks]
    control = [topology.ack_init_topic, topology.ack_topic, *results]
    own = [topology.registry_topic, topology.dead_letter_topic, topology.stats_topic, *control]
    own += topology.state_topics()
    changes = []
    if current.control_retention_s != topology.control_retention_s:
        kept = control_config(topology)[RETENTION]
        changes += [Change(name, RETENTION, kept) for name in control if name in names]
    if current.min_insync_replicas != topology.min_insync_replicas:
        wanted = topology.min_insync_replicas
        value = None if wanted is None else str(wanted)
        changes += [Change(name, MIN_INSYNC, value) for name in own if name in names]
    return changes


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


_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def control_config(topology: Topology) -> dict[str, str]:
    """Return the settings of the topics that control records are on."""
    return {
        **_APPEND_TIME,
        CLEANUP: "delete",
        RETENTION: str(int(topology.control_retention_s * 1000)),
        **_durability(topology),
    }


def _durability(topology: Topology) -> dict[str, str]:
    return {MIN_INSYNC: str(topology.min_insync_replicas)} if topology.min_insync_replicas else {}


def wanted_topics(topology: Topology) -> dict[str, tuple[int, Mapping[str, str]]]:
    """Return topic -> (partitions, config) of all but the result topics; 0 partitions = as the sources."""
    control, durability = control_config(topology), _durability(topology)
    wanted: dict[str, tuple[int, Mapping[str, str]]] = {
        topology.registry_topic: (1, {CLEANUP: COMPACT, **durability}),
        topology.dead_letter_topic: (1, durability),
        topology.stats_topic: (1, {**_APPEND_TIME, RETENTION: str(STATS_RETENTION_S * 1000), **durability}),
    }
    for topic in topology.state_topics():
        wanted[topic] = (1, {**_APPEND_TIME, CLEANUP: COMPACT, **durability})
    if topology.ackers:
        wanted[topology.ack_init_topic] = (topology.ackers, control)
        wanted[topology.ack_topic] = (topology.ackers, control)
    stated = topology.stated_partitions()
    for topic in topology.emitted_topics():
        wanted.setdefault(topic, (stated.get(topic, 0), durability))
    return wanted
