"""Simulates the Consumer: the interface of confluent's, for group members and for assigned consumers.

Invariant: callbacks run inside ``poll``, ``consume`` and ``close``, in the task that calls them. The fetcher
does the reading.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from acktree.testing.kafka.broker.metadata import list_topics
from acktree.testing.kafka.broker.network import RETRY_S, Network, timed_out
from acktree.testing.kafka.broker.offsets import epoch_of, last_code, partition_of, with_error
from acktree.testing.kafka.broker.transactions import Refused
from acktree.testing.kafka.clients.fetching import Fetcher
from acktree.testing.kafka.clients.membership import ClassicMembership, Event, Membership, NextMembership
from acktree.testing.kafka.clients.message import SimulatedMessage
from acktree.testing.kafka.clients.producer import GroupMetadata
from acktree.testing.virtual.errors import NotSimulated


class SimulatedConsumer:
    """A Consumer of a simulated cluster."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        self._network, self._kernel, self._cluster = network, network.kernel, network.cluster
        self._settings = settings
        self._group_name = str(settings.get("group.id", ""))
        self._on_commit: Callable[..., object] | None = settings.get("on_commit")
        self._callbacks: dict[str, Callable[..., object] | None] = {}
        self._events: deque[Event | Callable[[], object]] = deque()
        self._errors: deque[SimulatedMessage] = deque()
        self._fetcher = Fetcher(network, settings, self._group, self._wake)
        self._wakes: list[Any] = []
        self._is_closed = False
        self._has_assigned = False
        self._is_incremental = str(settings.get("group.protocol", "classic")).lower() == "consumer"
        make = NextMembership if self._is_incremental else ClassicMembership
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
        member, instance = self._membership, self._settings.get("group.instance.id")
        return GroupMetadata(self._group_name, member.member_id, member.generation, instance)

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
                    self._fetcher.clear()
                self._errors.append(SimulatedMessage("", -1, None, error=event.error))
                continue
            self._rebalance(event)
            self._membership.served(event)

    def _rebalance(self, event: Event) -> None:
        places = [TopicPartition(*place) for place in event.places]
        callback = self._callbacks.get(event.kind)
        self._has_assigned = False
        if event.kind == "revoke":
            self._network.enter("consumer.revoke")
        if callback is not None:
            callback(self, places)
        if event.kind == "assign":
            if not self._has_assigned:
                self._assign(places, is_whole=not self._is_incremental)
        elif self._is_incremental:
            self._fetcher.drop(event.places)
        else:
            self._fetcher.clear()

    # Assignments.

    def assign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions, each from its offset."""
        self._enter("consumer.assign")
        self._assign(partitions, is_whole=True)

    def incremental_assign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions in addition. Raises KafkaException: one is read already."""
        self._enter("consumer.incremental_assign")
        for place in partitions:
            if (place.topic, place.partition) in self._fetcher.fetches:
                text = f"{place.topic} [{place.partition}] is already part of the current assignment"
                raise KafkaException(KafkaError(KafkaError._CONFLICT, text))
        self._assign(partitions, is_whole=False)

    def incremental_unassign(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read these partitions no longer. Raises KafkaException: one is not read."""
        self._enter("consumer.incremental_unassign")
        for place in partitions:
            if (place.topic, place.partition) not in self._fetcher.fetches:
                text = f"{place.topic} [{place.partition}] is not in the current assignment"
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
        self._fetcher.drop((place.topic, place.partition) for place in partitions)

    def unassign(self) -> None:
        """Read nothing."""
        self._enter("consumer.unassign")
        self._fetcher.clear()
        self._has_assigned = True

    def _assign(self, partitions: Sequence[TopicPartition], *, is_whole: bool) -> None:
        self._fetcher.assign(partitions, is_whole=is_whole)
        self._has_assigned = True

    def assignment(self) -> list[TopicPartition]:
        """Return what is read."""
        self._enter("consumer.assignment")
        return [partition_of(*place, *fetch.assigned) for place, fetch in self._fetcher.fetches.items()]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these for now."""
        self._enter("consumer.pause")
        self._fetcher.pause((place.topic, place.partition) for place in partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return records of these again."""
        self._enter("consumer.resume")
        self._fetcher.resume((place.topic, place.partition) for place in partitions)

    def seek(self, partition: TopicPartition) -> None:
        """Go on from another offset. Raises KafkaException: the partition is not assigned."""
        if partition.offset == OFFSET_STORED:
            raise NotSimulated(
                "Consumer.seek to OFFSET_STORED stops librdkafka; ask committed() for the offset"
            )
        self._enter("consumer.seek")
        place = partition.topic, partition.partition
        self._fetcher.seek(place, partition.offset, partition.leader_epoch)

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the offset behind the last record that was returned, by partition."""
        self._enter("consumer.position")
        found = []
        for place in partitions:
            fetch = self._fetcher.fetches.get((place.topic, place.partition))
            offset = OFFSET_INVALID if fetch is None else fetch.position
            found.append(partition_of(place.topic, place.partition, offset, place.metadata))
        return found

    # Records.

    def poll(self, timeout: float = -1) -> SimulatedMessage | None:
        """Return one record or event, None after the timeout."""
        found = self._consume(1, timeout, "consumer.poll")
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[SimulatedMessage]:
        """Return up to ``num_messages`` records and events; wait for all of them until the timeout."""
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
                self._fetcher.fetch(found, limit)
            if len(found) >= limit or self._kernel.now_s >= until_s:
                return found
            self._wait(until_s)

    def _wait(self, until_s: float) -> None:
        """Wait for a record, an event, or the end of the time."""
        task = self._kernel.current
        self._wakes.append(task)
        until_s = self._fetcher.watch(until_s)
        if not self._network.is_up:
            until_s = min(until_s, self._kernel.now_s + RETRY_S)
        self._kernel.wait(until_s - self._kernel.now_s, f"records for group {self._group_name}")

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
        wanted = [with_error(place, None) for place in offsets if place.offset >= 0]
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "Commit failed: Local: No offset stored"))
        if self._membership.is_fatal and not self._is_closed:
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
        offsets = [
            (place.topic, place.partition, place.offset, place.metadata, epoch_of(place)) for place in wanted
        ]
        codes = [self._cluster.why_unacceptable(offset) for offset in offsets]
        good = [offset for offset, code in zip(offsets, codes, strict=True) if code is None]
        refused: int | None = None
        if any(code != KafkaError.UNKNOWN_TOPIC_OR_PART for code in codes):
            try:
                self._cluster.before_commit(self._network.process)
                self._group().commit(good, member, generation, self._network.process.name)
            except Refused as refusal:
                refused = refusal.code
        if refused is not None:  # what the broker does not know, it has answered before it asks the group
            codes = [code if code == KafkaError.UNKNOWN_TOPIC_OR_PART else refused for code in codes]
        code = last_code(offsets, codes)
        error = None if code is None else KafkaError(code)
        errors = [error if own is None else KafkaError(own) for own in codes]
        return list(map(with_error, wanted, errors)), error

    def committed(self, partitions: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return what the group has committed; wait for open transactions that may change it."""
        until_s = float("inf") if timeout < 0 else self._kernel.now_s + timeout
        while True:
            self._request("consumer.committed", until_s - self._kernel.now_s)
            wanted = {(place.topic, place.partition) for place in partitions}
            if not self._fetcher.is_committed_only or not wanted & self._group().offsets.pending:
                break
            if self._kernel.now_s >= until_s:
                raise timed_out()
            self._kernel.sleep(RETRY_S)
        read = self._cluster.on_offsets_read(self._network.process, self._group_name, wanted)
        found = []
        for place in partitions:
            stored = self._group().offsets.get((place.topic, place.partition))
            known = OFFSET_INVALID, None, -1
            if stored is not None:
                known = stored.offset, stored.metadata, stored.epoch
            found.append(partition_of(place.topic, place.partition, *known))
        self._network.respond("consumer.committed")
        read()
        return found

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Return where the log begins and ends; ``cached``: as fetched last, without regard to isolation."""
        place = partition.topic, partition.partition
        if cached:
            self._enter("consumer.get_watermark_offsets")
            return self._fetcher.cached_bounds(place)
        self._request("consumer.get_watermark_offsets", timeout)
        if self._cluster.is_leaderless(*place):
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        is_known = self._kernel.now_s >= self._cluster.known_from_s
        if (log := self._fetcher.log(place)) is None or not is_known:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "Failed to get watermark offsets"))
        return log.start_offset, self._fetcher.end_of(log)

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
        self._fetcher.clear()

    def _enter(self, call: str) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        self._network.enter(call)

    def _request(self, call: str, timeout_s: float) -> None:
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        self._network.request(call, timeout_s)
