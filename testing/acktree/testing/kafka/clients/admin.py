"""Simulates the AdminClient: the part of confluent's that acktree uses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    ConfigEntry,
    ConfigResource,
    DeletedRecords,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicDescription,
)

from acktree.testing.kafka.broker.group_descriptions import describe_group
from acktree.testing.kafka.broker.log import TOPIC_DEFAULTS, PartitionLog
from acktree.testing.kafka.broker.metadata import list_topics, partition_infos
from acktree.testing.kafka.broker.network import Network, timed_out
from acktree.testing.kafka.broker.offsets import partition_of
from acktree.testing.kafka.broker.settings import (
    BROKER_SETTINGS,
    GROUP_DEFAULTS,
    changes_of,
    check_simulated,
    checked_changes,
)
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.virtual.errors import NotSimulated

_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class SimulatedFuture(Future[Any]):
    """A future whose ``result`` waits in virtual time."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._kernel = network.kernel

    def result(self, timeout: float | None = None) -> Any:
        """Return the answer. Raises KafkaException, TimeoutError."""
        until_s = self._kernel.now_s + (float("inf") if timeout is None else timeout)
        while not self.done():
            if self._kernel.now_s >= until_s:
                raise TimeoutError
            self._kernel.wait(min(0.005, until_s - self._kernel.now_s), "an answer of the broker")
        return super().result(0)


def _answer_of(ask: Callable[[], Any]) -> Any:
    """Return what the broker answers, or the error that it refuses with."""
    try:
        return ask()
    except Refused as refusal:
        return KafkaException(KafkaError(refusal.code, refusal.reason or None))


class SimulatedAdmin:
    """An AdminClient of a simulated cluster."""

    def __init__(self, network: Network, _settings: dict[str, Any]) -> None:
        self._network, self._kernel, self._cluster = network, network.kernel, network.cluster
        self._known: dict[str, int] = {}
        """How many partitions a topic had when this client last saw it: it keeps leaders of what is gone."""

    def __getattr__(self, name: str) -> Any:
        raise NotSimulated(f"AdminClient.{name} is not simulated; test this against a real Kafka")

    def poll(self, timeout: float = 0) -> int:
        """Serve callbacks: there is none."""
        self._network.enter("admin.poll")
        if timeout:
            self._kernel.sleep(timeout)
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return metadata."""
        self._network.request("admin.list_topics", timeout)
        found = list_topics(self._cluster, topic)
        for name in self._cluster.topics if topic is None else (topic,):
            self._look_up(name)
        self._network.respond("admin.list_topics")
        return found

    def _answer(self, call: str, ask: Callable[[], Any], timeout_s: float = 60.0) -> SimulatedFuture:
        """Return the future answer to a request that is sent now."""
        return self._answers(call, [ask], timeout_s)[0]

    def _answers(
        self, call: str, asks: Sequence[Callable[[], Any]], timeout_s: float
    ) -> list[SimulatedFuture]:
        """Return the future answers to one request that asks for several things."""
        self._network.enter(call)
        futures = [SimulatedFuture(self._network) for _ in asks]
        until_s = self._kernel.now_s + timeout_s

        def time_out() -> None:
            for future in futures:
                future.set_exception(timed_out())

        def send() -> None:
            if not self._network.is_up:
                if self._kernel.now_s >= until_s:
                    time_out()
                else:
                    self._kernel.call_after(0.1, send)
                return
            answers = [_answer_of(ask) for ask in asks]

            def deliver() -> None:
                for future, answer in zip(futures, answers, strict=True):
                    if isinstance(answer, KafkaException):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)

            is_lost = self._network.lose_response(self._network.process, call)
            self._kernel.call_after(
                timeout_s if is_lost else self._network.delay_s(), time_out if is_lost else deliver
            )

        self._kernel.call_after(self._network.delay_s(), send)
        return futures

    def describe_cluster(self, *, request_timeout: float = 60.0, **_options: Any) -> SimulatedFuture:
        """Return an answer that says nothing but that it came."""
        return self._answer("admin.describe_cluster", lambda: None, request_timeout)

    # Topics.

    def describe_topics(self, topics: Any, **_options: Any) -> dict[str, SimulatedFuture]:
        """Return what topics are, by name."""
        return {name: self._describe(name) for name in topics.topic_names}

    def _describe(self, name: str) -> SimulatedFuture:
        def ask() -> TopicDescription:
            self._look_up(name)
            topic: Any = self._cluster.topic(name)
            return TopicDescription(name, topic.topic_id, False, partition_infos(topic))

        return self._answer("admin.describe_topics", ask)

    def create_topics(self, new_topics: Sequence[Any], **_options: Any) -> dict[str, SimulatedFuture]:
        """Create topics."""

        def create(new: Any) -> SimulatedFuture:
            count = max(new.num_partitions, 1)
            return self._answer(
                "admin.create_topics",
                lambda: self._cluster.create_topic(new.topic, count, new.config) and None,
            )

        return {new.topic: create(new) for new in new_topics}

    def create_partitions(self, new_partitions: Sequence[Any], **_options: Any) -> dict[str, SimulatedFuture]:
        """Add partitions."""

        def grow(new: Any) -> SimulatedFuture:
            return self._answer(
                "admin.create_partitions", lambda: self._cluster.grow_topic(new.topic, new.new_total_count)
            )

        return {new.topic: grow(new) for new in new_partitions}

    def delete_topics(self, topics: Sequence[str], **_options: Any) -> dict[str, SimulatedFuture]:
        """Delete topics."""

        def delete(name: str) -> SimulatedFuture:
            return self._answer("admin.delete_topics", lambda: self._cluster.delete_topic(name))

        return {name: delete(name) for name in topics}

    # Offsets.

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = 60.0,
    ) -> dict[TopicPartition, SimulatedFuture]:
        """Return where partitions begin or end, or the first offset of a time."""
        is_committed_only = isolation_level == IsolationLevel.READ_COMMITTED

        def answer(place: TopicPartition, spec: OffsetSpec) -> ListOffsetsResultInfo:
            log = self._leader_log(place)
            if self._cluster.is_leaderless(place.topic, place.partition):
                return ListOffsetsResultInfo(OFFSET_INVALID, -1, -1)
            end = log.stable_offset if is_committed_only else log.end_offset
            if spec is _LATEST:
                return ListOffsetsResultInfo(end, -1, log.epoch)
            if spec is _EARLIEST:
                return ListOffsetsResultInfo(log.start_offset, -1, 0)
            wanted_ms = spec._value
            for record in log.records:
                if record.timestamp_ms >= wanted_ms and record.offset < end:
                    return ListOffsetsResultInfo(record.offset, record.timestamp_ms, 0)
            return ListOffsetsResultInfo(-1, -1, -1)

        asks = [partial(answer, *wanted) for wanted in topic_partition_offsets.items()]
        futures = self._answers("admin.list_offsets", asks, request_timeout)
        return dict(zip(topic_partition_offsets, futures, strict=True))

    def _leader_log(self, place: TopicPartition) -> PartitionLog:
        """Return a log; a client asks for a leader that it does not know, and a missing one shows there."""
        if place.partition >= self._known.get(place.topic, 0):
            if not self._cluster.is_leaderless(place.topic, place.partition):
                self._look_up(place.topic)
            if place.partition >= self._known.get(place.topic, 0):
                raise Refused(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
        return self._cluster.log(place.topic, place.partition)

    def _look_up(self, topic: str) -> None:
        """Learn what there is of a topic; a list of all topics makes no client forget one."""
        if topic in self._cluster.topics:
            self._known[topic] = len(self._cluster.topics[topic].partitions)
        else:
            self._known.pop(topic, None)

    def delete_records(
        self, topic_partition_offsets: Sequence[TopicPartition], **_options: Any
    ) -> dict[TopicPartition, SimulatedFuture]:
        """Delete the records before an offset, -1 for all, partition by partition."""

        def delete(place: TopicPartition) -> DeletedRecords:
            log = self._leader_log(place)
            if "delete" not in log.topic.config["cleanup.policy"]:
                raise Refused(KafkaError.POLICY_VIOLATION)
            offset = log.end_offset if place.offset == OFFSET_END else place.offset
            if not 0 <= offset <= log.end_offset:
                raise Refused(KafkaError.OFFSET_OUT_OF_RANGE)
            log.delete_before(offset)
            return DeletedRecords(log.start_offset)

        return {
            place: self._answer("admin.delete_records", partial(delete, place))
            for place in topic_partition_offsets
        }

    # Groups.

    def delete_consumer_groups(self, group_ids: Sequence[str], **_options: Any) -> dict[str, SimulatedFuture]:
        """Delete groups without members, and what they have committed."""

        def delete(name: str) -> None:
            group = self._cluster.groups.get(name)
            if group is None or not group.is_known:
                raise Refused(KafkaError.GROUP_ID_NOT_FOUND)
            if group.members:
                raise Refused(KafkaError.NON_EMPTY_GROUP)
            group.offsets.clear()
            del self._cluster.groups[name]

        return {
            name: self._answer("admin.delete_consumer_groups", partial(delete, name)) for name in group_ids
        }

    def describe_consumer_groups(
        self, group_ids: Sequence[str], *, request_timeout: float = 60.0, **_options: Any
    ) -> dict[str, SimulatedFuture]:
        """Return state and members of groups, by name."""

        def describe(name: str) -> SimulatedFuture:
            return self._answer(
                "admin.describe_consumer_groups",
                lambda: describe_group(name, self._cluster.groups.get(name)),
                request_timeout,
            )

        return {name: describe(name) for name in group_ids}

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: Sequence[ConsumerGroupTopicPartitions],
        *,
        request_timeout: float = 60.0,
    ) -> dict[str, SimulatedFuture]:
        """Return what a group has committed, without the offsets of open transactions."""
        (request,) = list_consumer_group_offsets_request
        if request.topic_partitions is None:
            raise NotSimulated("list_consumer_group_offsets is simulated for explicit partitions only")
        places = sorted((place.topic, place.partition) for place in request.topic_partitions)

        def ask() -> ConsumerGroupTopicPartitions:
            group, found = self._cluster.groups.get(request.group_id), []
            for place in places:
                committed = None if group is None else group.offsets.get(place)
                offset, metadata = (
                    (OFFSET_INVALID, None) if committed is None else (committed.offset, committed.metadata)
                )
                found.append(partition_of(*place, offset, metadata))
            return ConsumerGroupTopicPartitions(request.group_id, found)

        return {request.group_id: self._answer("admin.list_consumer_group_offsets", ask, request_timeout)}

    # Settings.

    def describe_configs(
        self, resources: Iterable[ConfigResource], **_options: Any
    ) -> dict[ConfigResource, SimulatedFuture]:
        """Return the settings of topics and groups."""

        def ask(resource: ConfigResource) -> SimulatedFuture:
            return self._answer("admin.describe_configs", lambda: self._settings_of(resource))

        return {resource: ask(resource) for resource in resources}

    def _settings_of(self, resource: ConfigResource) -> dict[str, ConfigEntry]:
        if resource.restype is ConfigResource.Type.TOPIC:
            defaults, found = TOPIC_DEFAULTS, self._cluster.topic(resource.name).config
        elif resource.restype is ConfigResource.Type.GROUP:
            defaults, found = GROUP_DEFAULTS, GROUP_DEFAULTS | self._cluster.group(resource.name).config
        else:
            defaults = found = BROKER_SETTINGS
        return {
            name: ConfigEntry(name, value, is_default=defaults.get(name) == value)
            for name, value in found.items()
        }

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource], **_options: Any
    ) -> dict[ConfigResource, SimulatedFuture]:
        """Change settings of topics and groups."""
        resources = list(resources)
        for resource in resources:
            check_simulated(resource)

        def alter(resource: ConfigResource) -> None:
            if resource.restype is ConfigResource.Type.TOPIC:
                self._cluster.topic(resource.name).config.update(changes_of(resource, TOPIC_DEFAULTS))
            else:
                config = self._cluster.group(resource.name).config
                config.update(checked_changes(resource, config))

        return {
            resource: self._answer("admin.incremental_alter_configs", partial(alter, resource))
            for resource in resources
        }
