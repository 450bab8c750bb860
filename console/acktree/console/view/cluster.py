"""Reads a cluster for the console: log ends, groups, records. It never joins a group and never commits.

Invariant: reading changes nothing on the cluster. One thread at a time: the consumer is assigned again for
every scan. It does not interpret the records.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from acktree.console.view.wire_format import Schemas
from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    existing_topics,
    listed_offset,
    make_admin,
    make_consumer,
    metadata_of,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors, is_missing
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.topology.publish import describe
from acktree.core.topology.registry import History, Published, Registry

BATCH = 1_000
QUEUED_KB = 16_384
"""So much a scan reads ahead; with records at their largest memory is a multiple of it."""
SILENCE_S = 0.5

Place = tuple[str, int]
Offsets = dict[Place, int]


class CommittedOffset(NamedTuple):
    """A group's offset of one partition, and the text beside it."""

    next_offset: int
    metadata: str


class GroupStatus(NamedTuple):
    """A consumer group as the broker describes it; ``members`` are client ids at their hosts."""

    state: str
    members: tuple[str, ...]


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    start: int
    end: int


class Cluster:
    """One topology's topics and groups, read only."""

    def __init__(self, bootstrap: str, topology: str, user: Settings) -> None:
        """Connect and read the topology.

        Raises:
            BrokerUnreachable, UnknownTopology, RefusedSetting: see their docstrings.
        """
        self.bootstrap = bootstrap
        self.schemas = Schemas(user)
        self._admin = make_admin(bootstrap, user)
        self._registry = Registry(bootstrap, topology, user)
        self._group = f"{topology}.console"
        settings = consumer_settings(
            bootstrap,
            self._group,
            user,
            enable_partition_eof=True,
            fetch_wait_max_ms=50,
            queued_max_messages_kbytes=QUEUED_KB,
        )
        self._consumer: Consumer = make_consumer(settings)

    @property
    def history(self) -> History:
        return self._registry.history

    @property
    def topology(self) -> Published:
        """The newest version, as last read."""
        return self._registry.history.latest

    def refresh(self) -> None:
        """Read newer versions of the topology."""
        self._registry.refresh()

    def close(self) -> None:
        self._consumer.close()
        self._registry.close()

    def partitions(self, topics: Iterable[str]) -> list[Place]:
        """Return the partitions of those topics that exist, in order.

        Asked through the consumer, which then knows their leaders: it waits a second for a topic new to it.

        Raises:
            NotAuthorized: a topic may not be seen; it would look as if it were not there.
        """
        with clear_errors(self.bootstrap):
            known = self._consumer.list_topics(timeout=BROKER_TIMEOUT_S).topics
        asked = list(dict.fromkeys(topics))
        # A topic that is kept from us is not listed either; this raises.
        existing_topics(self._admin, self.bootstrap, [topic for topic in asked if topic not in known])
        return [
            (topic, number) for topic in asked if topic in known for number in sorted(known[topic].partitions)
        ]

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic, None if there is none; a recreated topic has another."""
        if not self.partitions([topic]):
            return None
        return describe(self._admin, self.bootstrap, [topic])[topic].topic_id

    def ends(self, places: Iterable[Place]) -> Offsets:
        """Return where partitions end (exclusive); ask only for those that exist."""
        return self._list_offsets(places, cast(Any, OffsetSpec).latest)

    def starts(self, places: Iterable[Place]) -> Offsets:
        """Return the first offset that partitions still hold."""
        return self._list_offsets(places, cast(Any, OffsetSpec).earliest)

    def at_time(self, places: Iterable[Place], time_ms: int) -> Offsets:
        """Return the first offset of records not older than a time; the end where there is none."""
        asked = list(places)
        found = self._list_offsets(asked, lambda: OffsetSpec.for_timestamp(time_ms))
        if late := [place for place, offset in found.items() if offset < 0]:
            found |= self.ends(late)
        return found

    def _list_offsets(self, places: Iterable[Place], spec: Callable[[], Any]) -> Offsets:
        wanted = {TopicPartition(*place): spec() for place in dict.fromkeys(places)}
        if not wanted:
            return {}
        found: Offsets = {}
        with clear_errors(self.bootstrap):
            answers = self._admin.list_offsets(wanted, request_timeout=BROKER_TIMEOUT_S)
            for place, future in answers.items():
                try:
                    found[place.topic, place.partition] = listed_offset(future)
                except KafkaException as error:
                    if not is_missing(error.args[0]):
                        raise
        return found

    def committed(self, group: str, places: Iterable[Place]) -> dict[Place, CommittedOffset]:
        """Return what a group has committed; partitions without a commit are left out."""
        wanted = [TopicPartition(*place) for place in dict.fromkeys(places)]
        if not wanted:
            return {}
        with clear_errors(self.bootstrap, f"group {group}"):
            asked = [ConsumerGroupTopicPartitions(group, wanted)]
            answer = self._admin.list_consumer_group_offsets(asked, request_timeout=BROKER_TIMEOUT_S)
            found = world.wait_for(answer[group], BROKER_TIMEOUT_S).topic_partitions
        return {
            (entry.topic, entry.partition): CommittedOffset(entry.offset, metadata_of(entry))
            for entry in found
            if entry.error is None and entry.offset not in (OFFSET_INVALID, -1)
        }

    def groups(self, names: Sequence[str]) -> dict[str, GroupStatus]:
        """Return state and members of groups; one that does not exist is DEAD and empty."""
        if not names:
            return {}
        found = {}
        with clear_errors(self.bootstrap):
            answers = self._admin.describe_consumer_groups(
                list(dict.fromkeys(names)), request_timeout=BROKER_TIMEOUT_S
            )
        for name, future in answers.items():
            with clear_errors(self.bootstrap, f"group {name}"):
                try:
                    about = world.wait_for(future, BROKER_TIMEOUT_S)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                        raise
                    found[name] = GroupStatus("DEAD", ())
                    continue
                members = tuple(f"{member.client_id}{member.host}" for member in about.members)
                found[name] = GroupStatus(about.state.name, members)
        return found

    def scan(
        self, spans: Mapping[Place, OffsetRange], deadline_s: float | None = None, whole: bool = False
    ) -> Iterator[list[Message]]:
        """Yield the records of some partitions in batches, each partition in order.

        Ends early at ``deadline_s`` of the monotonic clock. Aborted transactions are not seen. A partition
        ends before its span where a transaction is open; with ``whole`` it is waited for.

        Raises:
            BrokerUnreachable: nothing arrives for BROKER_TIMEOUT_S.
        """
        left = {place: span for place, span in spans.items() if span.start < span.end}
        if not left:
            return
        with clear_errors(self.bootstrap):
            self._consumer.assign([TopicPartition(*place, span.start) for place, span in left.items()])
            try:
                yield from self._read(left, deadline_s, whole)
            finally:
                self._consumer.unassign()

    def _read(
        self, left: dict[Place, OffsetRange], deadline_s: float | None, whole: bool
    ) -> Iterator[list[Message]]:
        last_message_s, held_back = world.monotonic_s(), ""
        while left:
            messages = self._consumer.consume(BATCH, 0) or self._consumer.consume(1, SILENCE_S)
            now_s = world.monotonic_s()
            if messages:
                last_message_s = now_s
            elif now_s - last_message_s > BROKER_TIMEOUT_S:
                raise BrokerUnreachable(
                    held_back or f"no answer from {self.bootstrap} while reading {next(iter(left))[0]}"
                )
            batch = []
            for message in messages:
                place = message.topic() or "", message.partition() or 0
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        if whole and place in left and (message.offset() or 0) < left[place].end:
                            held_back = (
                                f"an open transaction hides what {place[0]}/{place[1]} holds from offset "
                                f"{message.offset()} on; try again when it has ended or timed out"
                            )
                            continue
                        left.pop(place, None)
                    elif not error.retriable():
                        what = f"topic {message.topic()}, read as group {self._group}"
                        raise as_clear_error(error, self.bootstrap, what)
                    continue
                if (span := left.get(place)) is None:
                    continue
                offset, last = message.offset() or 0, span.end - 1
                if offset <= last:
                    batch.append(message)
                if offset >= last:
                    del left[place]
            if batch:
                yield batch
            if deadline_s is not None and now_s > deadline_s:
                return

    def record(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return one record, None if the partition does not hold that offset."""
        place = topic, partition
        if place not in self.partitions([topic]):
            return None
        start, end = self.starts([place]).get(place, 0), self.ends([place]).get(place, 0)
        return self.record_within(place, offset) if start <= offset < end else None

    def record_within(self, place: Place, offset: int) -> Message | None:
        """Return one record between a log's start and end, None if there is none at that offset."""
        for batch in self.scan({place: OffsetRange(offset, offset + 1)}):
            return batch[0] if batch[0].offset() == offset else None
        return None
