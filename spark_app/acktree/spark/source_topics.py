"""The source partitions of a spout as the cluster has them, matched with the slots of the registry.

Invariant: a partition is read only under the slot that the registry gave to this very topic (by its id).
"""

from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from acktree.schemas.clients import BROKER_TIMEOUT_S, clear_errors, make_admin
from acktree.schemas.errors import AcktreeError, MissingTopic
from acktree.schemas.publish import describe
from acktree.schemas.registry import Published, read_history
from acktree.spark.options import BadOption, SourceOptions
from acktree.spark.task_ledger import SourcePartition

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class UnknownPartition(AcktreeError):
    """A source topic has a partition, or an identity, that the published topology does not know."""


def check_source(options: SourceOptions) -> None:
    """Raise the AcktreeError that a source with these options would raise, without Spark."""
    admin = make_admin(options.bootstrap, options.kafka)
    topology = read_history(options.bootstrap, options.topology, options.kafka).latest
    (SpoutTopics if options.spout else BoltTopics)(admin, options, topology)


class TopicEnds:
    """Topics that are read, and where they begin and end."""

    partitions: tuple[SourcePartition, ...]

    def __init__(self, admin: AdminClient, options: SourceOptions, topics: tuple[str, ...]) -> None:
        self._admin = admin
        self._bootstrap = options.bootstrap
        self._starting = options.starting_offsets
        with clear_errors(self._bootstrap):
            names = admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
        for topic in topics:
            if topic not in names:
                raise MissingTopic(f"topic {topic!r}, which {options.component} reads, does not exist")
        self._there = describe(admin, self._bootstrap, topics)

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see."""
        return self._list(self.partitions, _LATEST)

    def starting_offsets(self, sources: Iterable[SourcePartition]) -> dict[int, int]:
        """Return by slot where a partition without a committed offset begins."""
        return self._list(tuple(sources), _LATEST if self._starting == "latest" else _EARLIEST)

    def _list(self, sources: tuple[SourcePartition, ...], spec: OffsetSpec) -> dict[int, int]:
        if not sources:
            return {}
        asked = {TopicPartition(source.topic, source.partition): spec for source in sources}
        with clear_errors(self._bootstrap):
            answers = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
            found: Mapping[tuple[str, int], int] = {
                (place.topic, place.partition): future.result(timeout=BROKER_TIMEOUT_S).offset
                for place, future in answers.items()
            }
        return {source.slot: found[source.topic, source.partition] for source in sources}


class SpoutTopics(TopicEnds):
    """Partitions, slots and spout tasks of one spout."""

    def __init__(self, admin: AdminClient, options: SourceOptions, topology: Published) -> None:
        super().__init__(admin, options, _spout_topics(options, topology))
        slots = {(s.topic, s.topic_id, s.partition): s for s in topology.slots_of(options.spout)}
        partitions: list[SourcePartition] = []
        self.task_of: dict[int, int] = {}
        for topic, there in self._there.items():
            for partition in range(there.partitions):
                slot = slots.get((topic, there.topic_id, partition))
                if slot is None:
                    raise UnknownPartition(
                        f"topology {topology.name} version {topology.version} does not know partition "
                        f"{partition} of topic {topic!r} (it was added, or the topic was re-created); "
                        "publish the topology again with: acktree topology apply FILE"
                    )
                partitions.append(SourcePartition(slot.slot, topic, partition, there.topic_id))
                self.task_of[slot.slot] = topology.task_of(slot)
        self.partitions = tuple(partitions)


class BoltTopics(TopicEnds):
    """Partitions that a bolt reads, numbered in the order of their topics."""

    def __init__(self, admin: AdminClient, options: SourceOptions, topology: Published) -> None:
        super().__init__(admin, options, _bolt_topics(options, topology))
        places = [
            (topic, partition, there.topic_id)
            for topic, there in sorted(self._there.items())
            for partition in range(there.partitions)
        ]
        self.partitions = tuple(SourcePartition(number, *place) for number, place in enumerate(places))


def _spout_topics(options: SourceOptions, topology: Published) -> tuple[str, ...]:
    table = topology.spouts.get(options.spout)
    if table is None:
        raise BadOption(
            f"topology {topology.name} has no spout {options.spout!r}; "
            f"it may be one of: {', '.join(topology.spouts) or 'none'}"
        )
    if not table.topics:
        raise BadOption(f"spout {options.spout!r} has no topics: it is fed by Python code, not by Spark")
    if options.subscribe is not None and set(options.subscribe) != set(table.topics):
        raise BadOption(
            f"subscribe={','.join(options.subscribe)!r} differs from the topology, where spout "
            f"{options.spout!r} reads {', '.join(table.topics)}; leave it out or change the topology"
        )
    return table.topics


def _bolt_topics(options: SourceOptions, topology: Published) -> tuple[str, ...]:
    table = topology.bolts.get(options.bolt)
    if table is None:
        raise BadOption(
            f"topology {topology.name} has no bolt {options.bolt!r}; "
            f"it may be one of: {', '.join(topology.bolts) or 'none'}"
        )
    if options.subscribe is not None and set(options.subscribe) != set(table.reads):
        raise BadOption(
            f"subscribe={','.join(options.subscribe)!r} differs from the topology, where bolt "
            f"{options.bolt!r} reads {', '.join(table.reads)}; leave it out or change the topology"
        )
    return table.reads
