"""What a run of a script has: its clients, its names on the broker, and what it waits for.

Invariant: nothing is recorded before what was asked for has happened everywhere. The session counts what the
script appends, so it knows where each log must end before the next operation may look.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from conformance.results import Result, outcome
from conformance.script import Place

LIMIT_S = 60.0
"""How long anything may take."""
SHORT_S = 1.0
"""How long something is waited for that is not expected."""
PAUSE_S = 0.004

_log = logging.getLogger("acktree.conformance")
_log.addHandler(logging.NullHandler())
_log.setLevel(logging.CRITICAL + 1)  # scripts make errors on purpose


class World(Protocol):
    """The part of acktree.core.world that a run needs."""

    def monotonic_s(self) -> float: ...

    def wall_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def consumer(self, settings: dict[str, Any], logger: logging.Logger) -> Any: ...

    def producer(self, settings: dict[str, Any], logger: logging.Logger) -> Any: ...

    def admin(self, settings: dict[str, Any], logger: logging.Logger) -> Any: ...


@dataclass(eq=False)
class Reader:
    """A consumer of the script."""

    client: Any
    group: str
    is_committed_only: bool
    is_next: bool
    """Whether its group uses the protocol of KIP-848."""
    assigned: dict[Place, None] = field(default_factory=dict)
    paused: set[Place] = field(default_factory=set)
    ends: dict[Place, int] = field(default_factory=dict)
    """The last end of each partition that it was told of."""
    stuck: dict[Place, Result] = field(default_factory=dict)
    """Partitions that it cannot read, with the error."""
    seen: dict[Place, list[Result]] = field(default_factory=dict)
    """Records that are not in a result yet."""
    topics: tuple[str, ...] = ()
    """What it subscribes to."""
    commits: list[Result] = field(default_factory=list)
    """The answers to its asynchronous commits."""
    events: list[Result] = field(default_factory=list)
    """Calls of its callbacks that are not in a result yet."""
    settings: dict[str, str] = field(default_factory=dict)
    """What the script has made it with."""
    can_reset: bool = True
    """Whether it goes on from somewhere else where there is no valid offset."""
    is_closed: bool = False

    @property
    def instance(self) -> str | None:
        """The name of a static member, None of another."""
        return self.settings.get("group.instance.id")

    @property
    def active(self) -> list[Place]:
        """What it reads at present."""
        return [place for place in self.assigned if place not in self.paused and place not in self.stuck]

    def forget(self, places: Iterable[Place]) -> None:
        """Read partitions from elsewhere: what was seen of their ends says nothing any more."""
        for place in places:
            self.ends.pop(place, None)
            self.stuck.pop(place, None)


@dataclass(eq=False)
class Writer:
    """A producer of the script."""

    client: Any
    transactional_id: str | None
    reports: dict[int, Any] = field(default_factory=dict)
    """Error and message of the delivery reports that are not in a result yet, by the record's number."""
    has_short_timeout: bool = False
    """Whether its transactions run into their timeout."""
    queued: set[int] = field(default_factory=set)
    """The records that have no report yet."""
    known: set[tuple[str, int]] = field(default_factory=set)
    """The topics, and which of their versions, that it has asked for."""
    produced: int = 0
    wrote: dict[str, int] = field(default_factory=dict)
    """Of each topic that it has written to, which one of that name."""
    touched: set[Place] = field(default_factory=set)
    """Where the open transaction writes."""
    pending: set[tuple[str, Place]] = field(default_factory=set)
    """The groups and partitions whose offsets the open transaction may change."""


class Session:
    """One run of a script in one world."""

    def __init__(self, world: World, admin: Any, bootstrap: str, prefix: str) -> None:
        self.world, self.admin, self.bootstrap, self.prefix = world, admin, bootstrap, prefix
        self.readers: dict[str, Reader] = {}
        self.writers: dict[str, Writer] = {}
        self.memberships: dict[str, Any] = {}
        """What consumers said about their membership, by the script's name for it."""
        self.topics: dict[str, int] = {}
        """Topics that exist, and their numbers of partitions."""
        self.versions: dict[str, int] = {}
        """How often each topic was created, deleted or grown."""
        self.created: dict[str, int] = {}
        """How often each topic was created."""
        self.starts: dict[Place, int] = {}
        """Where logs begin that are cut off."""
        self.ends: dict[Place, int] = {}
        self.base_ms = int(world.wall_s() * 1000)
        self._observers: dict[str, Any] = {}

    # Names.

    def name(self, name: str) -> str:
        """Return the name on the broker of a topic, group or transactional id."""
        return f"{self.prefix}-{name}"

    def script_name(self, name: str | None) -> str | None:
        """Return the script's name of something on the broker."""
        return name and name.removeprefix(f"{self.prefix}-")

    def place(self, partition: TopicPartition) -> Place:
        """Return a partition by the script's name of its topic."""
        return partition.topic.removeprefix(f"{self.prefix}-"), partition.partition

    def partitions(self, places: Iterable[Any]) -> list[TopicPartition]:
        """Return partitions from (topic, partition[, offset[, metadata]])."""
        found = []
        for topic, partition, *more in places:
            offset = more[0] if more else OFFSET_INVALID
            metadata = more[1] if len(more) > 1 else ""
            found.append(TopicPartition(self.name(topic), partition, offset, metadata))
        return found

    # Clients.

    def consumer(self, group: str, **settings: Any) -> Any:
        """Return a consumer that is quick to notice things."""
        return self.world.consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.name(group),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "fetch.queue.backoff.ms": 5,
                "topic.metadata.refresh.interval.ms": 500,
                "topic.metadata.propagation.max.ms": 300,
                **settings,
            },
            _log,
        )

    def producer(self, **settings: Any) -> Any:
        """Return a producer that sends nothing before it is flushed."""
        return self.world.producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 60_000,
                "transaction.timeout.ms": 600_000,
                "topic.metadata.propagation.max.ms": 1500,
                **settings,
            },
            _log,
        )

    def observer(self, group: str) -> Any:
        """Return a consumer that looks at a group's offsets and never joins it."""
        if group not in self._observers:
            self._observers[group] = self.consumer(group, **{"retry.backoff.ms": 5})
        return self._observers[group]

    def close(self) -> None:
        """Close what is still open, and delete the topics."""
        for reader in self.readers.values():
            if not reader.is_closed:
                reader.client.close()
        for observer in self._observers.values():
            observer.close()
        for writer in self.writers.values():
            writer.client.purge()
        self.readers.clear()
        self.writers.clear()
        self._observers.clear()
        if self.topics:
            self.admin.delete_topics([self.name(topic) for topic in self.topics])

    # Waiting.

    def until(self, holds: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """Wait until something holds; return whether it does."""
        until_s = self.world.monotonic_s() + limit_s
        while not holds():
            if self.world.monotonic_s() >= until_s:
                return False
            self.world.sleep(PAUSE_S)
        return True

    def log_ends(self, places: Iterable[Place], *, is_committed_only: bool) -> dict[Place, int]:
        """Return where logs end, without those that are missing."""
        level = IsolationLevel.READ_COMMITTED if is_committed_only else IsolationLevel.READ_UNCOMMITTED
        asked = self.partitions(place for place in places if place[1] < self.topics.get(place[0], 0))
        found = {}
        latest: Callable[[], Any] = OffsetSpec.latest

        def ask() -> bool:
            """Ask for what is not known yet; an admin client may believe for a while in an older topic."""
            wanted: dict[TopicPartition, Any] = {
                place: latest() for place in asked if self.place(place) not in found
            }
            futures = self.admin.list_offsets(wanted, isolation_level=level) if wanted else {}
            is_whole = True
            for partition, future in futures.items():
                try:
                    found[self.place(partition)] = future.result(LIMIT_S).offset
                except KafkaException:
                    is_whole = False
            return is_whole

        self.until(ask, 3.0)
        return found

    def appended(self, place: Place, end: int) -> None:
        """Take note that a log ends no earlier than here."""
        self.ends[place] = max(end, self.ends.get(place, 0))

    def await_markers(self, places: Iterable[Place]) -> None:
        """Wait until a transaction that has ended has its marker in each of its partitions."""
        wanted = {place: self.ends.get(place, 0) + 1 for place in places if place[0] in self.topics}
        self.ends |= wanted

        def are_there() -> bool:
            found = self.log_ends(wanted, is_committed_only=False)
            return all(found.get(place, end) >= end for place, end in wanted.items())

        if wanted:
            self.until(are_there)

    def await_offsets(self, ended: set[tuple[str, Place]]) -> None:
        """Wait until a transaction that has ended holds no offset any more; another one may."""
        for group, place in sorted(ended):
            if place[0] in self.topics:
                limit_s = SHORT_S if self.is_pending(group, [place]) else LIMIT_S
                outcome(lambda: self.observer(group).committed(self.partitions([place]), limit_s))  # noqa: B023

    def drop_pending(self, is_dropped: Callable[[str, Place], bool]) -> None:
        """Wait until the offsets that transactions hold for something deleted are gone with it."""
        for writer in self.writers.values():
            dropped = {held for held in writer.pending if is_dropped(*held)}
            writer.pending -= dropped
            self.await_offsets(dropped)

    def is_open(self, places: Iterable[Place]) -> bool:
        """Return whether an open transaction writes to one of these partitions."""
        touched = {place for writer in self.writers.values() for place in writer.touched}
        return not touched.isdisjoint(places)

    def is_pending(self, group: str, places: Iterable[Place]) -> bool:
        """Return whether an open transaction may change what a group has committed."""
        wanted = {(group, place) for place in places}
        return any(not wanted.isdisjoint(writer.pending) for writer in self.writers.values())
