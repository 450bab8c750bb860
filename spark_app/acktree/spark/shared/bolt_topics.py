"""Numbers the partitions of the topics that a bolt reads.

Invariant: a partition keeps its number while its topics stay the same.
"""

from confluent_kafka.admin import AdminClient

from acktree.core.topology.registry import Published
from acktree.producers.ledger.task import SourceSlot
from acktree.producers.spouts.driver.sources.source_topics import TopicEnds
from acktree.producers.spouts.driver.spout_options import BadOption
from acktree.spark.shared.options import SourceOptions


class BoltTopics(TopicEnds):
    """Partitions that a bolt reads, numbered in the order of their topics, behind those ``known`` before."""

    def __init__(
        self,
        admin: AdminClient,
        options: SourceOptions,
        topology: Published,
        known: tuple[SourceSlot, ...] = (),
    ) -> None:
        super().__init__(admin, options, _bolt_topics(options, topology), set())
        places = [
            (topic, partition, topic_state.topic_id)
            for topic, topic_state in sorted(self._topics.items())
            for partition in range(topic_state.partitions)
        ]
        numbered = {(source.topic, source.partition) for source in known}
        ids = {source.topic: source.topic_id for source in known}
        self.recreated = [
            topic for topic, now in self._topics.items() if ids.get(topic, now.topic_id) != now.topic_id
        ]
        """Topics that were known by another id."""
        added = [place for place in places if place[:2] not in numbered]
        fresh = (SourceSlot(number, *place) for number, place in enumerate(added, len(known)))
        self.partitions = (*known, *fresh)


def _bolt_topics(options: SourceOptions, topology: Published) -> tuple[str, ...]:
    table = topology.bolts.get(options.bolt)
    if table is None:
        raise BadOption(
            f"topology {topology.name} has no bolt {options.bolt!r}; "
            f"it must be one of: {', '.join(topology.bolts) or 'none'}"
        )
    if options.subscribe is not None and set(options.subscribe) != set(table.reads):
        raise BadOption(
            f"subscribe={','.join(options.subscribe)!r} differs from the topology, where bolt "
            f"{options.bolt!r} reads {', '.join(table.reads)}; leave it out or change the topology"
        )
    return table.reads
