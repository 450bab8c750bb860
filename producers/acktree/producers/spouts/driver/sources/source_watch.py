"""Watches the source topics: publishes new partitions, reports lost records.

Invariant: a partition is read only under a slot that the registry knows, and no record is given up without
``failOnDataLoss=false``.
"""

from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable, TopologyChanged
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import was_fenced, was_transient
from acktree.core.topology.publish import PUBLISH_TRIES, apply_topology
from acktree.core.topology.registry import Registry
from acktree.producers.spouts.driver.sources.log_bounds import DataLoss, check_ends, check_starts
from acktree.producers.spouts.driver.sources.source_topics import SpoutTopics, UnknownPartition
from acktree.producers.spouts.driver.spout_options import SpoutOptions

CHECK_INTERVAL_S = 10.0


class SourceWatch:
    """Checks the source topics of one spout, at the start and from time to time."""

    def __init__(
        self, admin: AdminClient, options: SpoutOptions, registry: Registry, monotonic: Callable[[], float]
    ) -> None:
        self._admin, self._options, self._registry = admin, options, registry
        self._monotonic = monotonic
        self._next_check_s = monotonic() + CHECK_INTERVAL_S
        self._away: set[tuple[str, int]] = set()
        """The partitions without a leader, as was logged."""

    def topics(self) -> SpoutTopics:
        """Return the source topics; partitions that are new to the registry are published first.

        Raises:
            MissingTopic: a topic does not exist. DataLoss: it was recreated.
            UnknownPartition: a partition is new, and this client may not publish it.
        """
        topics = SpoutTopics(self._admin, self._options, self._registry.history.latest, self._away)
        if topics.unknown and topics.recreated:
            self._check_recreated(topics.recreated[0])
        for _ in range(PUBLISH_TRIES if topics.unknown else 0):
            self._publish(topics)
            topics = SpoutTopics(self._admin, self._options, self._registry.history.latest, self._away)
            if not topics.unknown:
                break
        return topics

    def _publish(self, topics: SpoutTopics) -> None:
        options, latest = self._options, self._registry.history.latest
        place = "/".join(map(str, topics.unknown[0]))
        try:
            plan = apply_topology(options.bootstrap, latest.file(), options.kafka, based_on=latest.version)
        except TopologyChanged:
            self._registry.catch_up()  # a newer version is published: it may know the partition
            return
        except BrokerRefused as refused:
            if was_fenced(refused) or was_transient(refused):  # other tasks do the same at the same time
                self._registry.catch_up()
                return
            raise UnknownPartition(
                f"topology {latest.name} version {latest.version} does not know partition {place}, and this "
                f"client may not publish it ({refused}); do it with: acktree topology apply FILE"
            ) from refused
        wanted = plan.publish.version if plan.publish else latest.version
        deadline = world.monotonic_s() + BROKER_TIMEOUT_S
        while self._registry.history.latest.version < wanted:
            if world.monotonic_s() > deadline:
                raise BrokerUnreachable(f"version {wanted} of topology {latest.name} could not be read")
            self._registry.refresh()
            world.sleep(0.02)

    def changed_topics(
        self, known: SpoutTopics, version: int, next_offsets: Mapping[int, int]
    ) -> SpoutTopics | None:
        """Return the topics if they have changed or a newer version was published, else None.

        Raises what ``topics`` raises, and DataLoss where a log begins behind the next offset to emit.
        """
        if not self.is_due(version):
            return None
        is_newer = self._registry.history.latest.version != version
        self._next_check_s = self._monotonic() + CHECK_INTERVAL_S
        found = self.topics()
        ids = {source.topic: source.topic_id for source in known.partitions}
        for source in found.partitions:
            if ids.get(source.topic, source.topic_id) != source.topic_id:
                self._check_recreated(source.topic)
        if is_newer or found.partitions != known.partitions:
            return found
        check_starts(known, self._options, next_offsets)
        return None

    def is_due(self, version: int) -> bool:
        """Return whether topics are to be checked: from time to time, and when a version is published."""
        return self._registry.history.latest.version != version or self._monotonic() >= self._next_check_s

    def check_next_time(self) -> None:
        """Check at the next call, whatever the time."""
        self._next_check_s = self._monotonic()

    def beyond_ends(
        self, topics: SpoutTopics, next_offsets: Mapping[int, int], ends_of_state: Mapping[int, int]
    ) -> dict[int, int]:
        """Return by slot the ends of logs that end before what is known of them.

        Raises:
            DataLoss: there is one, or a log begins behind it, and failOnDataLoss is true.
        """
        check_starts(topics, self._options, next_offsets)
        return check_ends(topics, self._options, ends_of_state)

    def check_topics(self, topics: SpoutTopics, is_former: Callable[[str, str], bool]) -> None:
        """Refuse a topic by name and id of which ``is_former`` says that another one was read before.

        Raises:
            DataLoss: there is one, and failOnDataLoss is true.
        """
        for topic, topic_id in topics.ids.items():
            if is_former(topic, topic_id):
                self._check_recreated(topic)

    def _check_recreated(self, topic: str) -> None:
        if self._options.fail_on_data_loss:
            group = self._options.group
            raise DataLoss(
                f"topic {topic!r} was deleted and recreated since group {group} read it: records of "
                "the old topic that were not done are lost. To read the new one from its start, start with "
                "failOnDataLoss=false; to start elsewhere, set the group's offset with kafka-consumer-groups "
                "and start with allowSkip=true"
            )
