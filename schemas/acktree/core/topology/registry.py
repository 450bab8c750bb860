"""The registry: holds every version of a topology, on its compacted topic.

Beside the versions it holds whether each spout emits (``flow.py``), and closes of breakers.

Invariant: versions only grow; a slot assigned to a (topic, topic id, partition) is never assigned to another,
and a spout task number never to another task. All versions stay readable: old roots need them.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pydantic import BaseModel, ConfigDict, ValidationError

from acktree.core import world
from acktree.core.errors import BrokerUnreachable, UnknownTopology, UnknownVersion
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    READY_TIMEOUT_S,
    ask_bounds,
    make_consumer,
    retry_until_ready,
)
from acktree.core.kafka.errors import (
    as_clear_error,
    clear_errors,
    is_forbidden,
    is_missing,
    is_not_ready,
    reason_of,
)
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.core.topology.breaker_close import decode_breaker_close
from acktree.core.topology.file import Topology, registry_topic
from acktree.core.topology.flow import SetFlow, decode_flow
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import fnv1a64

MAX_RECORDS = 1_000
"""How many are read at a time."""

log = logging.getLogger("acktree.kafka")


class Slot(BaseModel):
    """A source partition's number in its topology; a Python-fed spout has topic "" and its task's index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slot: int
    spout: str
    topic: str
    topic_id: str
    partition: int


class Published(Topology):
    """One published version: the file's content, its number, its slots and task numbers."""

    version: int
    spout_tasks: dict[str, tuple[int, ...]]
    slots: tuple[Slot, ...]

    def file(self) -> Topology:
        """Return the content of the file this version was made from."""
        return Topology.model_validate(self.model_dump(include=set(Topology.model_fields)))

    def slots_of(self, spout: str) -> tuple[Slot, ...]:
        """Return a spout's slots in the order they were assigned, those of re-created topics included."""
        return tuple(slot for slot in self.slots if slot.spout == spout)

    def task_of(self, slot: Slot) -> int:
        """Return the spout task that owns a slot: partitions are dealt round robin."""
        return self._task_by_slot[slot.slot]

    @cached_property
    def _task_by_slot(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for spout, tasks in self.spout_tasks.items():
            for n, slot in enumerate(self.slots_of(spout)):
                found[slot.slot] = tasks[n % len(tasks)]
        return found

    def spout_task_name(self, task: int) -> tuple[str, int] | None:
        """Return (spout, index in the spout) of a spout task number, None if no spout has it."""
        for spout, tasks in self.spout_tasks.items():
            if task in tasks:
                return spout, tasks.index(task)
        return None


class Readers(NamedTuple):
    """The bolts that read one topic, by the hashes of their names."""

    names: tuple[str, ...]
    hashes: tuple[int, ...]


class History:
    """All versions of one topology that this process has seen."""

    def __init__(self, name: str, versions: Mapping[int, Published] | None = None) -> None:
        self.name = name
        self.versions = dict(versions or {})
        self._readers: dict[tuple[int, str], Readers] = {}
        self._flows: dict[str, SetFlow] = {}
        self._breaker_closes: dict[str, int] = {}

    @property
    def latest(self) -> Published:
        """Return the newest version; raise UnknownTopology if there is none."""
        if not self.versions:
            raise UnknownTopology(
                f"topology {self.name!r} is not published on this cluster; "
                "publish it with: acktree topology apply FILE"
            )
        return self.versions[max(self.versions)]

    def at(self, version: int) -> Published:
        """Return one version; raise UnknownVersion if this process has not seen it."""
        try:
            return self.versions[version]
        except KeyError:
            raise UnknownVersion(
                f"topology {self.name!r} has no version {version}; known: {sorted(self.versions)}"
            ) from None

    def latest_with(self, spout: str) -> Published:
        """Return the newest version that has a spout, the latest if none has."""
        having = [number for number, version in self.versions.items() if spout in version.spouts]
        return self.versions[max(having)] if having else self.latest

    def largest_block(self, spout: str) -> int:
        """Return the largest number of records that a root of a spout may cover, in any version."""
        tables = (version.spouts.get(spout) for version in self.versions.values())
        return max((table.block for table in tables if table), default=1)

    def flow(self, spout: str) -> SetFlow:
        """Return what an operator has set for a spout; it runs unless one has."""
        return self._flows.get(spout, SetFlow())

    def breaker_close(self, spout: str) -> int:
        """Return the offset of the newest record by which an operator closes a spout's breakers, else -1."""
        return self._breaker_closes.get(spout, -1)

    def add(self, record: Message) -> None:
        """Add a record of the registry topic; ignore one of none of the known kinds."""
        key = record.key() or b""
        if (closed := decode_breaker_close(key, record.value())) is not None:
            self._breaker_closes[closed] = record.offset() or 0
            return
        if (found := decode_flow(key, record.value(), record.offset() or 0)) is not None:
            spout, flow = found
            self._flows[spout] = flow
            return
        try:
            published = Published.model_validate_json(record.value() or b"")
        except ValidationError:
            return
        if key == str(published.version).encode():
            self.versions.setdefault(published.version, published)

    def ackers(self, version: int) -> int:
        """Return the acker count for the roots of a version."""
        return self.at(version).ackers

    def readers(self, version: int, topic: str) -> Readers:
        """Return the bolts that read a topic in a version."""
        found = self._readers.get((version, topic))
        if found is None:
            names = self.at(version).readers_of(topic)
            found = self._readers[version, topic] = Readers(names, tuple(map(fnv1a64, names)))
        return found


class Registry:
    """A view of ``T.topology`` that can be refreshed; holds one consumer without a group membership."""

    def __init__(self, bootstrap: str, name: str, user: Settings) -> None:
        """Read all versions there are.

        Raises:
            BrokerUnreachable: no broker answers.
            UnknownTopology: the registry topic does not exist or holds no version.
        """
        self.bootstrap = bootstrap
        self.history = History(name)
        self._topic = registry_topic(name)
        self._place = self._topic, 0
        self.refused = ""
        """Why the topic cannot be read any more, if the broker has said so since the last record."""
        group = f"{name}.registry"
        self._consumer: Consumer = make_consumer(
            reader_settings(bootstrap, group, user, fetch_wait_max_ms=100)
        )
        self._log = LogReader(self._consumer, bootstrap, group, user)
        try:
            self._open()
        except BaseException:
            self._consumer.close()
            raise

    def _open(self) -> None:
        with clear_errors(self.bootstrap):
            refused = retry_until_ready(self._ask_topic)
            if is_forbidden(refused):
                raise as_clear_error(refused, self.bootstrap, f"topic {self._topic}")
            if refused is not None:
                self.history.latest  # noqa: B018 -- raises UnknownTopology
            self._log.begin({self._place: 0})
            # The broker answered a moment ago: it may stall for longer than a request may take.
            while not self._read(READY_TIMEOUT_S):
                pass
        self.history.latest  # noqa: B018 -- raises UnknownTopology
        self._known = len(self.history.versions)

    def _ask_topic(self) -> KafkaError | None:
        """Return what is wrong with the registry topic, None for nothing. Raises KafkaException."""
        refused = _topic_error(self._consumer, self._topic)
        if refused is not None and is_not_ready(refused):
            raise KafkaException(refused)
        return refused

    def refresh(self) -> bool:
        """Read what was published since; return True if there is something new since the last time.

        Never waits. What ``catch_up`` read also counts as new.
        """
        while not self._read(0.0):
            pass
        before, self._known = self._known, len(self.history.versions)
        return self._known > before

    def catch_up(self) -> None:
        """Read all versions published so far; a single request to the broker if there is nothing new.

        Raises:
            BrokerUnreachable: no broker answers.
        """
        place = TopicPartition(self._topic, 0)
        with clear_errors(self.bootstrap):
            _, end_offset = ask_bounds(self._consumer, place, wait_if_away=True)
        while self._log.next_offset(self._place) < end_offset:
            self._read(READY_TIMEOUT_S)  # it answered a moment ago, as in _open

    def _read(self, timeout_s: float) -> bool:
        """Read what comes next; return whether that is all: with timeout 0 also if nothing is here yet.

        What nobody can read is skipped: a version that was lost is published again as a newer one.
        """
        until_s = world.monotonic_s() + timeout_s
        while True:
            try:
                ranges = self._log.read(MAX_RECORDS, max(0.0, until_s - world.monotonic_s()))
                for log_range in ranges:
                    self._add(log_range)
            except AcktreeError as error:
                if timeout_s:
                    what = f"topic {self._topic}, read as group {self.history.name}.registry"
                    raise as_clear_error(reason_of(error), self.bootstrap, what) from error
                self._refuse(error)
                return True
            if ranges or self._log.is_at_end(self._place) or not timeout_s:
                return self._log.is_at_end(self._place) or not ranges
            if world.monotonic_s() > until_s:
                raise BrokerUnreachable(f"no answer from {self.bootstrap} while reading {self._topic}")

    def _add(self, log_range: LogRange) -> None:
        self.refused = ""
        for record in log_range.records:
            self.history.add(record)
        if log_range.found is Found.DAMAGED:
            text = "%s/0: offsets %d to %d are damaged in the log and skipped: apply the topology again"
            about = (self._topic, log_range.start, log_range.end - 1)
            log.error(text, *about, extra={"action": "invalid_record"})
        elif log_range.found is Found.GONE:
            with clear_errors(self.bootstrap):
                raise KafkaException(log_range.error)
        elif log_range.found is Found.FELL:  # what is known stays true, and is not published again as it was
            self._log.begin({self._place: 0})

    def _refuse(self, error: AcktreeError) -> None:
        """Log once that this process continues with what it knows."""
        if not self.refused:
            self.refused = (
                f"topic {self._topic} is no longer readable, so neither newer versions nor "
                f"operator settings are applied: {error}"
            )
            log.error("%s", self.refused, extra={"action": "registry_refused"})

    def close(self) -> None:
        self._consumer.close()


def read_history(bootstrap: str, name: str, user: Settings) -> History:
    """Return all versions of a topology, reading the registry once; errors as of :class:`Registry`."""
    registry = Registry(bootstrap, name, user)
    registry.close()
    return registry.history


def read_histories(bootstrap: str, names: Iterable[str], user: Settings) -> list[History]:
    """Return all versions of many topologies, read by one consumer; those without a version are left out.

    So are those that are deleted meanwhile, which librdkafka reports only after 30 s.

    Raises:
        BrokerUnreachable: no broker answers. NotAuthorized: a registry may not be read.
    """
    histories = {registry_topic(name): History(name) for name in names}
    left = {(topic, 0) for topic in histories}
    group = "acktree.registry"
    consumer = make_consumer(reader_settings(bootstrap, group, user))
    reader = LogReader(consumer, bootstrap, group, user)
    try:
        with clear_errors(bootstrap):
            reader.begin(dict.fromkeys(left, 0))
            until_s = world.monotonic_s() + BROKER_TIMEOUT_S
            while left:
                ranges = reader.read(MAX_RECORDS, max(0.0, until_s - world.monotonic_s()))
                for log_range in ranges:
                    for record in log_range.records:
                        histories[log_range.place[0]].add(record)
                gone = {log_range.place for log_range in ranges if log_range.found is Found.GONE}
                done = gone | {place for place in left if reader.is_at_end(place)}
                if not (ranges or done) and world.monotonic_s() >= until_s:
                    errors = {place: _topic_error(consumer, place[0]) for place in left}
                    done = {place for place, why in errors.items() if why is not None and is_missing(why)}
                    if not done:
                        raise BrokerUnreachable(f"no answer from {bootstrap} while reading {min(left)[0]}")
                if ranges or done:
                    until_s = world.monotonic_s() + BROKER_TIMEOUT_S
                left -= done
    finally:
        consumer.close()
    return [history for history in histories.values() if history.versions]


def _topic_error(consumer: Consumer, topic: str) -> KafkaError | None:
    """Return what is wrong with a topic by the broker's answer, None for nothing."""
    error: KafkaError | None = consumer.list_topics(topic, timeout=BROKER_TIMEOUT_S).topics[topic].error
    return error
