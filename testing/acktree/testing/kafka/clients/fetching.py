"""Reads the records of a simulated consumer: its partitions and their positions.

Invariant: records of one partition come in order and each once, from the position on. The consumer handles
group membership and commits.
"""

from collections.abc import Callable, Iterable, Sequence
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

from acktree.testing.kafka.broker.groups import Group
from acktree.testing.kafka.broker.log import PartitionLog
from acktree.testing.kafka.broker.network import RETRY_S, Network
from acktree.testing.kafka.clients.message import SimulatedMessage

Place = tuple[str, int]
GIVEN_UP_S = float("inf")
"""When a partition without a valid offset is ready: not before it is assigned again."""
ERROR_BACKOFF_S = 0.5


@dataclass(eq=False, slots=True)
class Fetch:
    """The position of one partition."""

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
    epoch: int | None = None
    """The leader epoch of what is below the next offset, as far as it is known."""
    leader: int | None = None
    """The epoch of the leader of which the client has heard: it asks a later one what it still has."""

    @property
    def starts_where_committed(self) -> bool:
        """Whether it waits for the offset that the group has committed."""
        return self.next_offset is None and self.start in (OFFSET_STORED, OFFSET_INVALID)


class Fetcher:
    """Reads the assigned partitions of one consumer."""

    def __init__(
        self,
        network: Network,
        settings: dict[str, Any],
        group: Callable[[], Group],
        wake: Callable[[], None],
    ) -> None:
        """``wake`` is called when there may be something to return."""
        self._network, self._kernel, self._cluster = network, network.kernel, network.cluster
        self._group, self._wake = group, wake
        self.is_committed_only = settings.get("isolation.level", "read_committed") == "read_committed"
        self._reports_ends = str(settings.get("enable.partition.eof", "false")).lower() == "true"
        self._reset = str(settings.get("auto.offset.reset", "latest"))
        self.fetches: dict[Place, Fetch] = {}
        self._seen: set[str] = set()
        """Topics that it has read from."""
        self._paused: set[Place] = set()
        """What the application has paused: that outlasts an assignment, as librdkafka's flag does."""
        self._bounds: dict[Place, tuple[int, int]] = {}
        """Where the log began and ended when it was fetched last."""

    # What to read.

    def assign(self, partitions: Sequence[TopicPartition], *, is_whole: bool) -> None:
        """Read these partitions in addition, or with ``is_whole`` nothing else."""
        if len({(place.topic, place.partition) for place in partitions}) < len(partitions):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "Failed to set assignment"))
        known = set(self._seen)
        self._seen |= {place.topic for place in partitions}
        if is_whole:
            self.clear()
        for place in partitions:
            start = OFFSET_STORED if place.offset == OFFSET_INVALID else place.offset
            fetch = Fetch(place.offset, ready_s=self._ready_s(), assigned=(start, place.metadata))
            fetch.epoch = place.leader_epoch
            if place.topic in known and (log := self.log((place.topic, place.partition))) is not None:
                fetch.leader = log.epoch  # and only a seek would ask it
            self.fetches[place.topic, place.partition] = fetch

    def drop(self, places: Iterable[Place]) -> None:
        """Read these partitions no longer."""
        self._record_bounds()
        for place in places:
            self.fetches.pop(place, None)

    def clear(self) -> None:
        """Read nothing."""
        self.drop(list(self.fetches))

    def pause(self, places: Iterable[Place]) -> None:
        """Return no records of these for now."""
        self._record_bounds()
        self._paused |= {place for place in places if place[0] in self._seen}

    def resume(self, places: Iterable[Place]) -> None:
        """Return records of these again."""
        self._paused -= set(places)

    def seek(self, place: Place, offset: int, epoch: int | None = None) -> None:
        """Go on from another offset. Raises KafkaException: the partition is not assigned, or given up."""
        fetch = self.fetches.get(place)
        if fetch is None or fetch.ready_s == GIVEN_UP_S:
            raise KafkaException(KafkaError(KafkaError._STATE, f"Failed to seek to offset {offset}"))
        self.fetches[place] = Fetch(offset, ready_s=self._ready_s(), assigned=fetch.assigned, epoch=epoch)
        if offset == OFFSET_INVALID:
            self.fetches[place].next_offset = -1  # not what is committed, but auto.offset.reset

    def _ready_s(self) -> float:
        return self._kernel.now_s + self._network.delay_s()

    # Where logs begin and end.

    def log(self, place: Place) -> PartitionLog | None:
        """Return the log of a partition, None if there is none."""
        topic = self._cluster.topics.get(place[0])
        if topic is None or not 0 <= place[1] < len(topic.partitions):
            return None
        return topic.partitions[place[1]]

    def end_of(self, log: PartitionLog) -> int:
        """Return where a log ends for this consumer."""
        return log.stable_offset if self.is_committed_only else log.end_offset

    def cached_bounds(self, place: Place) -> tuple[int, int]:
        """Return where the log began and ended when it was fetched last, without regard to isolation."""
        self._record_bounds()
        return self._bounds.get(place, (OFFSET_INVALID, OFFSET_INVALID))

    def _record_bounds(self) -> None:
        """Record the bounds of what is fetched at present: fetching continues in the background."""
        for place, fetch in self.fetches.items():
            is_fetched = fetch.next_offset is not None and fetch.ready_s <= self._kernel.now_s
            if is_fetched and place not in self._paused and (log := self.log(place)) is not None:
                self._bounds[place] = log.start_offset, log.end_offset

    # Records.

    def watch(self, until_s: float) -> float:
        """Be woken for what comes; return when to look again at the latest."""
        now_s = self._kernel.now_s
        for place, fetch in self.fetches.items():
            if fetch.ready_s > now_s:
                until_s = min(until_s, fetch.ready_s)
            elif place not in self._paused and (log := self.log(place)) is not None:
                log.waiting[self._wake] = None
            if fetch.next_offset is None:
                until_s = min(until_s, now_s + RETRY_S)
        return until_s

    def fetch(self, found: list[SimulatedMessage], limit: int) -> None:
        """Add what is there, partition by partition, in an order that differs from call to call."""
        places, now_s = list(self.fetches), self._kernel.now_s
        if len(places) > 1:
            self._kernel.random.shuffle(places)
        for place in places:
            fetch = self.fetches[place]
            if len(found) >= limit:
                return
            if fetch.ready_s > now_s or self._cluster.is_leaderless(*place):
                continue
            is_paused = place in self._paused
            if (log := self.log(place)) is None:
                if not is_paused:
                    self._report_missing(found, place, fetch)
                continue
            is_at_end = fetch.next_offset == log.end_offset and not _is_truncated(fetch, log)
            if is_at_end and self._has_reported_end(fetch):
                if not is_paused:
                    self._bounds[place] = log.start_offset, log.end_offset
                continue
            if fetch.next_offset is None:
                self._resolve(place, fetch, log)
            if not is_paused and fetch.next_offset is not None and self._is_valid(found, place, fetch, log):
                self._fetch_one(found, limit, place, fetch, log)

    def _report_missing(self, found: list[SimulatedMessage], place: Place, fetch: Fetch) -> None:
        if not fetch.is_missing:
            fetch.is_missing = True
            error = KafkaError(
                KafkaError.UNKNOWN_TOPIC_OR_PART, f"Subscribed topic not available: {place[0]}"
            )
            found.append(SimulatedMessage(*place, None, error=error))

    def _resolve(self, place: Place, fetch: Fetch, log: PartitionLog) -> None:
        """Find out where to begin, also in a paused partition."""
        start = fetch.start
        if fetch.starts_where_committed:
            if self.is_committed_only and self._is_any_pending():
                return
            stored = self._group().offsets.get(place)
            start = OFFSET_INVALID if stored is None else stored.offset
            fetch.epoch = None if stored is None or stored.epoch < 0 else stored.epoch
            if start == OFFSET_INVALID:
                start = self._reset_offset(place, log)
        elif start == OFFSET_BEGINNING:
            start = self._beginning(place, log)
        elif start == OFFSET_END:
            start = self.end_of(log)
        fetch.next_offset = start

    def _is_any_pending(self) -> bool:
        """Return whether a transaction may change where to start: the client asks for all together."""
        pending = self._group().offsets.pending
        return any(fetch.starts_where_committed and place in pending for place, fetch in self.fetches.items())

    def _beginning(self, place: Place, log: PartitionLog) -> int:
        """Return where a log begins, by the last fetch if there was one: librdkafka asks only once."""
        return self._bounds.get(place, (log.start_offset, 0))[0]

    def _reset_offset(self, place: Place, log: PartitionLog) -> int:
        """Return where ``auto.offset.reset`` says to begin, OFFSET_INVALID for nowhere."""
        if self._reset in ("earliest", "smallest", "beginning"):
            return self._beginning(place, log)
        if self._reset in ("latest", "largest", "end"):
            return self.end_of(log)
        return OFFSET_INVALID

    def _is_valid(self, found: list[SimulatedMessage], place: Place, fetch: Fetch, log: PartitionLog) -> bool:
        """Return whether the next offset is in the log, after a reset if need be."""
        assert fetch.next_offset is not None
        if fetch.leader != log.epoch and fetch.epoch is not None and _is_truncated(fetch, log):
            end, at = log.end_of_epoch(fetch.epoch), f"offset {fetch.next_offset}"
            text = f"Partition log truncation detected at {at}: broker end offset is {end} (...)"
            if fetch.epoch > log.epoch:
                text = f"No epoch found less or equal to {at}: broker end offset is -1 (...)"
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, text)
            found.append(SimulatedMessage(*place, OFFSET_INVALID, error=error))
            fetch.ready_s = GIVEN_UP_S
            return False
        fetch.leader = log.epoch
        if log.start_offset <= fetch.next_offset <= log.end_offset:
            return True
        self._bounds.pop(place, None)  # the broker's refusal says nothing of them
        start = self._reset_offset(place, log)
        if start == OFFSET_INVALID:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, f"no valid offset for {place[0]} [{place[1]}]")
            found.append(SimulatedMessage(*place, max(fetch.next_offset, 0), error=error))
            fetch.ready_s = GIVEN_UP_S
            return False
        fetch.next_offset = start
        return True

    def _has_reported_end(self, fetch: Fetch) -> bool:
        """Return whether there is nothing to say at the end of a log, as in most turns."""
        return not self._reports_ends or fetch.end_reported == fetch.next_offset

    def _fetch_one(
        self, found: list[SimulatedMessage], limit: int, place: Place, fetch: Fetch, log: PartitionLog
    ) -> None:
        assert fetch.next_offset is not None
        self._bounds[place] = log.start_offset, log.end_offset
        end = self.end_of(log)
        for record in log.read(fetch.next_offset, self.is_committed_only):
            if len(found) >= limit:
                return
            if record.is_damaged:
                text = f"MessageSet at offset {record.offset} failed CRC32C check"
                error = KafkaError(KafkaError._BAD_MSG, text)
                found.append(SimulatedMessage(*place, record.offset, error=error))
                fetch.ready_s = self._kernel.now_s + ERROR_BACKOFF_S
                return
            fetch.next_offset = fetch.position = record.offset + 1
            fetch.epoch = record.epoch
            if not record.is_control:
                found.append(SimulatedMessage(*place, record.offset, record))
        if fetch.next_offset > end:
            return  # ahead of an open transaction: there is no end to report before it ends
        if end > fetch.next_offset:
            fetch.epoch = log.epoch_before(end)
        fetch.next_offset = end
        if self._reports_ends and fetch.end_reported != fetch.next_offset and len(found) < limit:
            fetch.end_reported = fetch.next_offset
            error = KafkaError(KafkaError._PARTITION_EOF)
            found.append(SimulatedMessage(*place, fetch.next_offset, error=error))


def _is_truncated(fetch: Fetch, log: PartitionLog) -> bool:
    """Return whether a later leader lacks a record that was fetched, as its epoch says."""
    if fetch.epoch is None or fetch.next_offset is None:
        return False
    return fetch.epoch > log.epoch or log.end_of_epoch(fetch.epoch) < fetch.next_offset
