"""Reads a cluster for the console: log ends, groups, records. It never joins a group and never commits.

Invariant: reading changes nothing on the cluster, and each offset of a scan is accounted for. One thread at a
time: the consumer is assigned again for every scan. It does not interpret the records.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
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
from acktree.core.kafka.errors import clear_errors, is_missing, was_transient
from acktree.core.kafka.log_reader import LAG_S, LOOK_S, Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.core.topology.publish import describe
from acktree.core.topology.registry import History, Published, Registry
from acktree.wire.errors import AcktreeError

BATCH = 1_000
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


class UnreadableRecord(AcktreeError):
    """A record is damaged in the log, or hidden by an open transaction: what it holds is not known."""


def what_is_unread(log_range: LogRange) -> str:
    """Return in words what of a partition was not read, and why."""
    (topic, partition), found, start, end, *_ = log_range
    place, offsets = f"{topic}/{partition}", f"offsets {start} to {end - 1}"
    if found is Found.HIDDEN:
        return f"an open transaction hides what {place} holds from offset {start} on"
    if found is Found.GONE:
        return f"{place} no longer exists: it is not shown"
    if found is Found.FELL:
        return f"{place} ends at offset {start}: its records up to offset {end - 1} were lost"
    if found is Found.REMOVED:
        return f"{offsets} of {place} were removed before they were read"
    return f"{offsets} of {place} are damaged in the log and are not shown"


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
        self._user = user
        self._consumer: Consumer = make_consumer(self._settings())

    def _settings(self) -> dict[str, Any]:
        return reader_settings(self.bootstrap, self._group, self._user, fetch_wait_max_ms=50)

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

    def stable_ends(self, places: Iterable[Place], timeout_s: float = BROKER_TIMEOUT_S) -> Offsets:
        """Return where partitions end for readers of committed records: before any open transaction."""
        level = IsolationLevel.READ_COMMITTED
        return self._list_offsets(places, cast(Any, OffsetSpec).latest, level, timeout_s)

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

    def _list_offsets(
        self,
        places: Iterable[Place],
        spec: Callable[[], Any],
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_s: float = BROKER_TIMEOUT_S,
    ) -> Offsets:
        wanted = {TopicPartition(*place): spec() for place in dict.fromkeys(places)}
        if not wanted:
            return {}
        found: Offsets = {}
        with clear_errors(self.bootstrap):
            answers = self._admin.list_offsets(wanted, isolation_level=level, request_timeout=timeout_s)
            for place, future in answers.items():
                try:
                    found[place.topic, place.partition] = listed_offset(future, timeout_s)
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
    ) -> Iterator[LogRange]:
        """Yield what the spans of some partitions hold, each partition in order and without a gap.

        What cannot be read is a range without records; ``what_is_unread`` says why. Behind where a
        transaction is open all is HIDDEN; with ``whole`` its end is waited for. Records of aborted
        transactions are not returned. Ends early, in front of a span's end, at ``deadline_s`` of the
        monotonic clock only.

        Raises:
            BrokerUnreachable: nothing arrives for BROKER_TIMEOUT_S.
        """
        yield from self._scan(self._consumer, spans, deadline_s, whole)

    def _scan(
        self, consumer: Consumer, spans: Mapping[Place, OffsetRange], deadline_s: float | None, whole: bool
    ) -> Iterator[LogRange]:
        left = {place: span for place, span in spans.items() if span.start < span.end}
        if not left:
            return
        reader = LogReader(consumer, self.bootstrap, self._group, self._user)
        with clear_errors(self.bootstrap):
            reader.begin({place: span.start for place, span in left.items()})
            try:
                yield from self._read(reader, left, deadline_s, whole)
            finally:
                reader.end(reader.places)

    def _read(
        self, reader: LogReader, left: dict[Place, OffsetRange], deadline_s: float | None, whole: bool
    ) -> Iterator[LogRange]:
        last_read_s = world.monotonic_s()
        while left:
            ranges = reader.read(BATCH, SILENCE_S)
            now_s = world.monotonic_s()
            if ranges:
                last_read_s = now_s
            for log_range in ranges:
                if (span := left.get(log_range.place)) is not None:
                    yield _within(log_range, span)
                    if log_range.found in (Found.GONE, Found.FELL) or log_range.end >= span.end:
                        _drop(reader, left, log_range.place)
            is_silent = now_s - last_read_s > BROKER_TIMEOUT_S
            waiting = [place for place in left if not ranges or reader.is_at_end(place)]
            for log_range in self._unread(reader, {place: left[place] for place in waiting}):
                if log_range.found is Found.HIDDEN and whole:
                    if is_silent:
                        text = f"{what_is_unread(log_range)}; try again when it has ended or timed out"
                        raise BrokerUnreachable(text)
                elif log_range.found is Found.HIDDEN or now_s - last_read_s > LAG_S:
                    yield log_range
                    _drop(reader, left, log_range.place)
            if left and is_silent:
                raise BrokerUnreachable(
                    f"no answer from {self.bootstrap} while reading {next(iter(left))[0]}"
                )
            if deadline_s is not None and now_s > deadline_s:
                return

    def _unread(self, reader: LogReader, spans: Mapping[Place, OffsetRange]) -> Iterator[LogRange]:
        """Yield the rest of partitions of which nothing comes, as far as a broker says why."""
        try:
            stable, ends = self.stable_ends(spans, LOOK_S), Offsets()
            if spans:
                ends = self._list_offsets(spans, cast(Any, OffsetSpec).latest, timeout_s=LOOK_S)
        except AcktreeError as error:
            if not was_transient(error):
                raise
            return  # a broker that does not answer says nothing
        for place, span in spans.items():
            at = reader.next_offset(place)
            if place in ends and stable.get(place, ends[place]) <= at < span.end:
                found = Found.HIDDEN if stable[place] < ends[place] else Found.FELL
                if found is Found.HIDDEN or at == ends[place]:
                    yield LogRange(place, found, at, span.end)

    def record(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return one record, None if the partition does not hold that offset. Raises UnreadableRecord."""
        place = topic, partition
        if place not in self.partitions([topic]):
            return None
        start, end = self.starts([place]).get(place, 0), self.ends([place]).get(place, 0)
        return self.record_within(place, offset) if start <= offset < end else None

    def record_within(self, place: Place, offset: int) -> Message | None:
        """Return one record between a log's start and end, None if there is none at that offset.

        Raises UnreadableRecord.
        """
        for log_range in self.scan({place: OffsetRange(offset, offset + 1)}):
            if log_range.found in (Found.DAMAGED, Found.HIDDEN):
                raise UnreadableRecord(f"cannot read {place[0]}/{place[1]}/{offset}: {_why(log_range)}")
            for record in log_range.records:
                return record
        return None

    def uncommitted_times(self, offsets: Offsets) -> Offsets:
        """Return the times of records, also of open transactions, as far as they can be read at once."""
        found: Offsets = {}
        spans = {place: OffsetRange(offset, offset + 1) for place, offset in offsets.items()}
        consumer = make_consumer({**self._settings(), "isolation.level": "read_uncommitted"})
        try:
            for log_range in self._scan(consumer, spans, world.monotonic_s() + LOOK_S, whole=False):
                for record in log_range.records:
                    found[log_range.place] = record.timestamp()[1]
        finally:
            consumer.close()
        return found


def _why(log_range: LogRange) -> str:
    return "it is damaged in the log" if log_range.found is Found.DAMAGED else what_is_unread(log_range)


def _within(log_range: LogRange, span: OffsetRange) -> LogRange:
    """Return what of a range is in a span, up to the span's end if nothing more follows."""
    if log_range.found in (Found.GONE, Found.FELL):
        return log_range._replace(end=span.end)
    records = log_range.records
    if log_range.end > span.end:
        records = [record for record in records if (record.offset() or 0) < span.end]
    start, end = max(log_range.start, span.start), min(log_range.end, span.end)
    return log_range._replace(start=min(start, end), end=end, records=records)


def _drop(reader: LogReader, left: dict[Place, OffsetRange], place: Place) -> None:
    """Read a partition no more."""
    del left[place]
    if place in reader.places:
        reader.end([place])
