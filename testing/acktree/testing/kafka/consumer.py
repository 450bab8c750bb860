"""The simulated Consumer: the interface of confluent's, for group members and for those who assign.

Invariant: records of one partition come in order and each once, from the position on; callbacks run inside
``poll``, ``consume`` and ``close``, in the task that calls them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from acktree.testing.errors import NotSimulated
from acktree.testing.kafka.log import PartitionLog
from acktree.testing.kafka.membership import ClassicMembership, Event, Membership, NextMembership
from acktree.testing.kafka.message import SimulatedMessage
from acktree.testing.kafka.metadata import list_topics
from acktree.testing.kafka.network import RETRY_S, Network, timed_out
from acktree.testing.kafka.producer import GroupMetadata
from acktree.testing.kafka.transactions import Refused

Place = tuple[str, int]


@dataclass(eq=False, slots=True)
class Fetch:
    """How far one partition is read."""

    start: int
    """Where to begin: an offset, or one of the logical ones."""
    next_offset: int | None = None
    """The next offset to fetch, None until the start is resolved."""
    position: int = OFFSET_INVALID
    """What ``position`` returns: behind the last record or control record."""
    assigned: tuple[int, str | None] = (OFFSET_INVALID, None)
    """Offset and metadata that it was assigned with."""
    end_reported: int | None = None
    ready_s: float = 0.0
    is_missing: bool = False


class SimulatedConsumer:
    """See the module."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        self._network, self._kernel, self._cluster = network, network.kernel, network.cluster
        self._settings = settings
        self._group_name = str(settings.get("group.id", ""))
        self._is_committed_only = settings.get("isolation.level", "read_committed") == "read_committed"
        self._reports_ends = str(settings.get("enable.partition.eof", "false")).lower() == "true"
        self._reset = str(settings.get("auto.offset.reset", "latest"))
        self._on_commit: Callable[..., object] | None = settings.get("on_commit")
        self._callbacks: dict[str, Callable[..., object] | None] = {}
        self._events: deque[Event | Callable[[], object]] = deque()
        self._errors: deque[SimulatedMessage] = deque()
        self._fetches: dict[Place, Fetch] = {}
        self._seen: set[str] = set()
        """Topics that it has read from."""
        self._paused: set[Place] = set()
        """What the application has paused: that outlasts an assignment, as librdkafka's flag does."""
        self._fetched_ends: dict[Place, tuple[int, int]] = {}
        """Where the log began and ended when it was fetched last."""
        self._pending_seeks = False
        self._wakes: list[Any] = []
        self._is_closed = False
        self._has_assigned = False
        is_next = str(settings.get("group.protocol", "classic")).lower() == "consumer"
        make = NextMembership if is_next else ClassicMembership
        self._is_incremental = is_next
        self._membership: Membership = make(network, self._group, settings, self._notify)

    def __getattr__(self, name: str) -> Any:
        raise NotSimulated(f"Consumer.{name} is not simulated; test this against a real Kafka")

    def _group(self) -> Any:
        return self._cluster.group(self._group_name)

    def _notify(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, []
        for task in wakes:
            self._kernel.wake(task)

    # Membership.

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callable[..., object] | None = None,
        on_revoke: Callable[..., object] | None = None,
        on_lost: Callable[..., object] | None = None,
    ) -> None:
        """Join the group; the callbacks run when the application polls."""
        self._enter("consumer.subscribe")
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}
        self._membership.polled()
        self._membership.subscribe(topics)

    def memberid(self) -> str | None:
        """Return the name that the group gave, None for none."""
        self._enter("consumer.memberid")
        return self._membership.member_id or None

    def consumer_group_metadata(self) -> GroupMetadata:
        """Return what a transactional producer needs."""
        self._enter("consumer.consumer_group_metadata")
        return GroupMetadata(self._group_name, self._membership.member_id, self._membership.generation)

    def _serve(self) -> None:
        """Serve what the group and the broker have sent."""
        self._membership.polled()
        while self._events:
            event = self._events.popleft()
            if not isinstance(event, Event):
                event()
                continue
            if event.kind == "error":
                if self._membership.is_fatal:
                    self._fetches.clear()
                self._errors.append(SimulatedMessage("", -1, None, error=event.error))
                continue
            self._rebalance(event)
            self._membership.served(event)

    def _rebalance(self, event: Event) -> None:
        places = [TopicPartition(*place) for place in event.places]
        callback = self._callbacks.get(event.kind)
        self._has_assigned = False
        if callback is not None:
            callback(self, places)
        if event.kind == "assign":
            if not self._has_assigned:
                self._assign(places, is_whole=not self._is_incremental)
        elif self._is_incremental:
            for place in event.places:
                self._fetches.pop(place, None)
        else:
            self._fetches.clear()

    # Assignments.

    def assign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions, each from its offset."""
        self._enter("consumer.assign")
        self._assign(partitions, is_whole=True)

    def incremental_assign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions, too. Raises KafkaException: one is read already."""
        self._enter("consumer.incremental_assign")
        for place in partitions:
            if (place.topic, place.partition) in self._fetches:
                text = f"{place.topic} [{place.partition}] is already part of the current assignment"
                raise KafkaException(KafkaError(KafkaError._CONFLICT, text))
        self._assign(partitions, is_whole=False)

    def incremental_unassign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions no longer. Raises KafkaException: one is not read."""
        self._enter("consumer.incremental_unassign")
        for place in partitions:
            if (place.topic, place.partition) not in self._fetches:
                text = f"{place.topic} [{place.partition}] is not in the current assignment"
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
        for place in partitions:
            self._fetches.pop((place.topic, place.partition), None)

    def unassign(self) -> None:
        """Read nothing."""
        self._enter("consumer.unassign")
        self._fetches.clear()
        self._has_assigned = True

    def _assign(self, partitions: Sequence[TopicPartition], *, is_whole: bool) -> None:
        if len({(place.topic, place.partition) for place in partitions}) < len(partitions):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "Failed to set assignment"))
        self._has_assigned = True
        self._seen |= {place.topic for place in partitions}
        if is_whole:
            self._fetches.clear()
        for place in partitions:
            ready_s = self._kernel.now_s + self._network.delay_s()
            assigned = OFFSET_STORED if place.offset == OFFSET_INVALID else place.offset, place.metadata
            self._fetches[place.topic, place.partition] = Fetch(
                place.offset, ready_s=ready_s, assigned=assigned
            )

    def assignment(self) -> list[TopicPartition]:
        """Return what is read."""
        self._enter("consumer.assignment")
        return [_partition(*place, *fetch.assigned) for place, fetch in self._fetches.items()]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these for now."""
        self._enter("consumer.pause")
        self._paused |= {(place.topic, place.partition) for place in partitions if place.topic in self._seen}

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        self._enter("consumer.resume")
        self._paused -= {(place.topic, place.partition) for place in partitions}

    def seek(self, partition: TopicPartition) -> None:
        """Go on from another offset. Raises KafkaException: the partition is not assigned."""
        place = partition
        if place.offset == OFFSET_STORED:
            raise NotSimulated(
                "Consumer.seek to OFFSET_STORED stops librdkafka; ask committed() for the offset"
            )
        self._enter("consumer.seek")
        key = place.topic, place.partition
        fetch = self._fetches.get(key)
        if fetch is None:
            raise KafkaException(KafkaError(KafkaError._STATE, f"Failed to seek to offset {place.offset}"))
        ready_s = self._kernel.now_s + self._network.delay_s()
        self._fetches[key] = Fetch(place.offset, ready_s=ready_s, assigned=fetch.assigned)
        if place.offset == OFFSET_INVALID:
            self._fetches[key].next_offset = -1  # not what is committed, but auto.offset.reset

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the offset behind the last record that was returned, by partition."""
        self._enter("consumer.position")
        found = []
        for place in partitions:
            fetch = self._fetches.get((place.topic, place.partition))
            offset = OFFSET_INVALID if fetch is None else fetch.position
            found.append(_partition(place.topic, place.partition, offset, place.metadata))
        return found

    # Records.

    def poll(self, timeout: float = -1) -> SimulatedMessage | None:
        """Return one record or event, None after the timeout."""
        found = self._consume(1, timeout, "consumer.poll")
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[SimulatedMessage]:
        """Return up to so many records and events; wait for all of them until the timeout."""
        if not 0 <= num_messages <= 1_000_000:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        return self._consume(num_messages, timeout, "consumer.consume")

    def _consume(self, limit: int, timeout: float, call: str) -> list[SimulatedMessage]:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        self._network.turn(call)
        until_s = float("inf") if timeout < 0 else self._kernel.now_s + timeout
        found: list[SimulatedMessage] = []
        while True:
            self._serve()
            while self._errors and len(found) < limit:
                found.append(self._errors.popleft())
            if self._network.is_up:
                self._fetch(found, limit)
            if len(found) >= limit or self._kernel.now_s >= until_s:
                return found
            self._wait(until_s)

    def _wait(self, until_s: float) -> None:
        """Wait for a record, an event, or the end of the time."""
        task = self._kernel.current
        self._wakes.append(task)
        for place, fetch in self._fetches.items():
            if fetch.ready_s > self._kernel.now_s:
                until_s = min(until_s, fetch.ready_s)
            elif place not in self._paused and (log := self._log(place)) is not None:
                log.waiting[self._wake] = None
            if fetch.next_offset is None:
                until_s = min(until_s, self._kernel.now_s + RETRY_S)
        if not self._network.is_up:
            until_s = min(until_s, self._kernel.now_s + RETRY_S)
        self._kernel.wait(until_s - self._kernel.now_s, f"records for group {self._group_name}")

    def _log(self, place: Place) -> PartitionLog | None:
        try:
            return self._cluster.log(*place)
        except Refused:
            return None

    def _fetch(self, found: list[SimulatedMessage], limit: int) -> None:
        """Add what is there, partition by partition, in an order that differs from call to call."""
        places = list(self._fetches)
        if len(places) > 1:
            self._kernel.random.shuffle(places)
        for place in places:
            fetch = self._fetches[place]
            if len(found) >= limit:
                return
            if place in self._paused or fetch.ready_s > self._kernel.now_s:
                continue
            log = self._log(place)
            if log is None:
                self._report_missing(found, place, fetch)
            elif self._resolve(found, place, fetch, log):
                self._fetch_one(found, limit, place, fetch, log)

    def _report_missing(self, found: list[SimulatedMessage], place: Place, fetch: Fetch) -> None:
        if not fetch.is_missing:
            fetch.is_missing = True
            error = KafkaError(
                KafkaError.UNKNOWN_TOPIC_OR_PART, f"Subscribed topic not available: {place[0]}"
            )
            found.append(SimulatedMessage(*place, None, error=error))

    def _resolve(self, found: list[SimulatedMessage], place: Place, fetch: Fetch, log: PartitionLog) -> bool:
        """Find out where to begin; return whether that is known."""
        if fetch.next_offset is None:
            start = fetch.start
            if start in (OFFSET_STORED, OFFSET_INVALID):
                if self._is_committed_only and place in self._cluster.transactions.pending(self._group_name):
                    return False
                stored = self._group().offsets.get(place)
                start = OFFSET_INVALID if stored is None else stored.offset
            if start == OFFSET_BEGINNING:
                start = log.start_offset
            elif start == OFFSET_END:
                start = log.stable_offset if self._is_committed_only else log.end_offset
            fetch.next_offset = start
        if log.start_offset <= fetch.next_offset <= log.end_offset:
            return True
        if self._reset in ("earliest", "smallest", "beginning"):
            fetch.next_offset = log.start_offset
        elif self._reset in ("latest", "largest", "end"):
            fetch.next_offset = log.stable_offset if self._is_committed_only else log.end_offset
        else:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"no valid offset for {place[0]} [{place[1]}]")
            found.append(SimulatedMessage(*place, max(fetch.next_offset, 0), error=error))
            fetch.ready_s = float("inf")
            return False
        return True

    def _fetch_one(
        self, found: list[SimulatedMessage], limit: int, place: Place, fetch: Fetch, log: PartitionLog
    ) -> None:
        assert fetch.next_offset is not None
        self._fetched_ends[place] = log.start_offset, log.end_offset
        end = log.stable_offset if self._is_committed_only else log.end_offset
        for record in log.read(fetch.next_offset, self._is_committed_only):
            if len(found) >= limit:
                return
            fetch.next_offset = fetch.position = record.offset + 1
            if not record.is_control:
                found.append(SimulatedMessage(*place, record.offset, record))
        if fetch.next_offset > end:
            return  # ahead of an open transaction: there is no end to report before it ends
        fetch.next_offset = end
        if self._reports_ends and fetch.end_reported != fetch.next_offset and len(found) < limit:
            fetch.end_reported = fetch.next_offset
            error = KafkaError(KafkaError._PARTITION_EOF)
            found.append(SimulatedMessage(*place, fetch.next_offset, error=error))

    # Offsets.

    def commit(
        self,
        message: SimulatedMessage | None = None,
        *,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit offsets, as a member of the group or as a stranger to an empty one."""
        if message is not None or offsets is None:
            raise NotSimulated("Consumer.commit is simulated for explicit offsets only; pass offsets=[…]")
        wanted = [_with_error(place, None) for place in offsets if place.offset >= 0]
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored"))
        if self._membership.is_fatal:
            raise KafkaException(KafkaError(KafkaError._FATAL, "Commit failed: Local: Fatal error"))
        if not asynchronous:
            self._request("consumer.commit", 60.0)
            answer, error = self._commit(wanted)
            self._network.respond("consumer.commit")
            if error is not None:
                raise KafkaException(error)
            return answer
        self._enter("consumer.commit")
        member, generation = self._membership.member_id, self._membership.generation

        def send() -> None:
            if not self._network.process.is_alive:
                return
            if not self._network.is_up or self._network.process.is_stopped:
                self._kernel.call_after(RETRY_S, send)
                return
            answer, error = self._commit(wanted, member, generation)
            if self._on_commit is not None:
                on_commit = self._on_commit
                self._events.append(lambda: on_commit(error, answer))
                self._wake()

        self._kernel.call_after(self._network.delay_s(), send)
        return None

    def _commit(
        self, wanted: list[TopicPartition], member: str | None = None, generation: int | None = None
    ) -> tuple[list[TopicPartition], KafkaError | None]:
        """Commit what can be committed; return the partitions, each with its error or else the last one's."""
        member = self._membership.member_id if member is None else member
        generation = self._membership.generation if generation is None else generation
        offsets = [(place.topic, place.partition, place.offset, place.metadata) for place in wanted]
        codes = [self._cluster.why_unacceptable(offset) for offset in offsets]
        good = [offset for offset, code in zip(offsets, codes, strict=True) if code is None]
        code = max((code for code in codes if code is not None), default=None)
        try:
            self._cluster.before_commit(self._network.process)
            self._group().commit(good, member, generation, self._network.process.name)
        except Refused as refusal:
            code = refusal.code  # what the broker does not know, it has answered before it asks the group
            codes = [own if own == KafkaError.UNKNOWN_TOPIC_OR_PART else None for own in codes]
        error = None if code is None else KafkaError(code)
        errors = [error if own is None else KafkaError(own) for own in codes]
        return list(map(_with_error, wanted, errors)), error

    def committed(self, partitions: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return what the group has committed; wait for open transactions that may change it."""
        until_s = float("inf") if timeout < 0 else self._kernel.now_s + timeout
        while True:
            self._request("consumer.committed", until_s - self._kernel.now_s)
            wanted = {(place.topic, place.partition) for place in partitions}
            if not self._is_committed_only or not wanted & self._cluster.transactions.pending(
                self._group_name
            ):
                break
            if self._kernel.now_s >= until_s:
                raise timed_out()
            self._kernel.sleep(RETRY_S)
        offsets = self._group().offsets
        found = []
        for place in partitions:
            stored = offsets.get((place.topic, place.partition))
            offset, text = (OFFSET_INVALID, None) if stored is None else (stored.offset, stored.metadata)
            found.append(_partition(place.topic, place.partition, offset, text))
        self._network.respond("consumer.committed")
        return found

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return where the log begins and ends; ``cached``: as fetched last, without regard to isolation."""
        place = partition.topic, partition.partition
        if cached:
            self._enter("consumer.get_watermark_offsets")
            return self._fetched_ends.get(place, (OFFSET_INVALID, OFFSET_INVALID))
        self._request("consumer.get_watermark_offsets", timeout)
        if (log := self._log(place)) is None:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "Failed to get watermark offsets"))
        return log.start_offset, log.stable_offset if self._is_committed_only else log.end_offset

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return metadata."""
        self._request("consumer.list_topics", timeout)
        return list_topics(self._cluster, topic)

    def close(self) -> None:
        """Give everything up and leave the group."""
        if self._is_closed:
            return
        self._network.turn("consumer.close")
        if self._membership.is_active:
            self._serve()
            if self._membership.owned:
                event = Event("revoke", self._membership.owned)
                self._membership.is_active = False
                self._rebalance(event)
            self._membership.leave()
        self._is_closed = True
        self._fetches.clear()

    def _enter(self, call: str) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        self._network.enter(call)

    def _request(self, call: str, timeout_s: float) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        self._network.request(call, timeout_s)


def _partition(topic: str, partition: int, offset: int, metadata: str | None) -> TopicPartition:
    """Return a partition; confluent's class takes no None for the metadata that it has by default."""
    if metadata is None:
        return TopicPartition(topic, partition, offset)
    return TopicPartition(topic, partition, offset, metadata)


def _with_error(place: TopicPartition, error: KafkaError | None) -> TopicPartition:
    """Return the answer for one partition; confluent's class has no way to set an error."""
    more = () if place.metadata is None else (place.metadata,)
    answer = AnsweredPartition(place.topic, place.partition, place.offset, *more)
    answer.failure = error
    return answer


class AnsweredPartition(TopicPartition):
    """A partition with the broker's answer."""

    failure: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:  # type: ignore[override]
        """Why the broker refused."""
        return self.failure
