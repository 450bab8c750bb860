"""Matches the source partitions of a spout, as the cluster has them, with the slots of the registry.

Invariant: a partition is read only under the slot that the registry gave to this topic, by its id.
"""

import logging
from collections.abc import Iterable, Mapping

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec, TopicMetadata

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    READY_PAUSE_S,
    READY_TIMEOUT_S,
    listed,
    refuse_missing,
)
from acktree.core.kafka.errors import clear_errors, is_missing, is_transient, was_transient
from acktree.core.kafka.log_epochs import look_at_epochs
from acktree.core.kafka.outages import log_retry
from acktree.core.topology.publish import describe
from acktree.core.topology.registry import Published
from acktree.producers.ledger.task import SourceSlot
from acktree.producers.spouts.driver.spout_options import BadOption, SpoutOptions
from acktree.wire.errors import AcktreeError
from acktree.wire.state_records import LogEpoch

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]

log = logging.getLogger("acktree.spout")


class UnknownPartition(AcktreeError):
    """A source topic has a partition, or a topic id, that the published topology does not know."""


class VanishedPartition(AcktreeError):
    """A topic that is read has fewer partitions than before."""


class TopicEnds:
    """The topics that are read, and where they begin and end."""

    partitions: tuple[SourceSlot, ...]

    def __init__(
        self, admin: AdminClient, options: SpoutOptions, topics: tuple[str, ...], away: set[tuple[str, int]]
    ) -> None:
        """Ask for the topics; ``away`` are the partitions that have no leader, as far as was logged."""
        self._admin, self._away = admin, away
        self._bootstrap = options.bootstrap
        self._starting = options.starting_offsets
        self._component = options.component
        self._names = topics
        self._user = options.kafka
        self._group = options.group
        self.epochs: dict[int, LogEpoch] = {}
        """By slot whose log ``log_ends`` has found last, and where it ended."""
        self._refuse_missing(topics)
        self._topics = describe(admin, self._bootstrap, topics)

    def _refuse_missing(self, topics: Iterable[str]) -> None:
        known = self._look_for_leaders()
        for topic in topics:
            if topic not in known:
                text = (
                    f"topic {topic!r}, which {self._component} reads, does not exist; if it was deleted, "
                    "its records that were not done are lost. Create it, or remove it from the topology"
                )
                refuse_missing(self._admin, self._bootstrap, topic, text)

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see.

        Partitions without a leader are left out, here and below: nobody knows where they begin and end.
        """
        found = self._list(self.partitions, _LATEST)
        self.epochs = found
        return _offsets(found)

    def fallen_to(self, epochs: Mapping[int, LogEpoch]) -> dict[int, int | None]:
        """Return by slot what ``look_at_epochs`` finds; raises what it raises."""
        places = {(s.topic, s.partition): s.slot for s in self.partitions if s.slot in epochs}
        wanted = {place: epochs[slot] for place, slot in places.items()}
        found = look_at_epochs(self._bootstrap, self._group, self._user, wanted)
        return {places[place]: end for place, end in found.items()}

    def starting_offsets(self, sources: Iterable[SourceSlot]) -> dict[int, int]:
        """Return by slot where a partition begins that a group without offsets reads."""
        return _offsets(self._list(tuple(sources), _LATEST if self._starting == "latest" else _EARLIEST))

    def log_starts(self, sources: Iterable[SourceSlot]) -> dict[int, int]:
        """Return by slot the first offset that is there."""
        return _offsets(self._list(tuple(sources), _EARLIEST))

    def whole(self, found: dict[int, int], sources: Iterable[SourceSlot]) -> dict[int, int]:
        """Return what was found of partitions. Raises BrokerUnreachable: one was left out."""
        if away := [source for source in sources if source.slot not in found]:
            names = ", ".join(f"{source.topic}/{source.partition}" for source in away)
            raise BrokerUnreachable(
                f"{names}: no leader, so nobody knows where the log begins and ends; start its broker"
            )
        return found

    def _list(self, sources: tuple[SourceSlot, ...], spec: OffsetSpec) -> dict[int, LogEpoch]:
        """Ask the leaders, and look for others while one does not answer, for at most READY_TIMEOUT_S."""
        if self._away:
            self._look_for_leaders()
        until_s = world.monotonic_s() + READY_TIMEOUT_S
        while True:
            try:
                return self._ask(self._with_leader(sources), spec)
            except AcktreeError as error:
                if not was_transient(error) or world.monotonic_s() > until_s:
                    raise
                log_retry(log, "a log does not say where it begins and ends: %s", error, action="not_ready")
                world.sleep(READY_PAUSE_S)
                self._look_for_leaders()

    def is_away(self, partition: tuple[str, int]) -> bool:
        """Return whether a partition has no leader now: nothing of it can be read."""
        self._look_for_leaders()
        return partition in self._away

    def _look_for_leaders(self) -> Mapping[str, TopicMetadata]:
        """Return all topics; keep which partitions have no leader now, and log what has changed.

        Any broker knows the leaders; a description of topics would wait for a controller.
        """
        with clear_errors(self._bootstrap):
            known = self._list_topics()
        read = [(topic, known[topic].partitions.values()) for topic in self._names if topic in known]
        away = {(topic, each.id) for topic, partitions in read for each in partitions if each.leader < 0}
        for topic, number in sorted(away - self._away):
            text = "%s/%d has no leader: nothing of it is read until a broker that has it is back"
            log.warning(text, topic, number, extra={"action": "no_leader"})
        for topic, number in sorted(self._away - away):
            log.warning("%s/%d has a leader again", topic, number, extra={"action": "leader_back"})
        self._away.clear()
        self._away |= away
        return known

    def _list_topics(self) -> Mapping[str, TopicMetadata]:
        """Ask a broker, and another one where that has just died."""
        try:
            return self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
        except KafkaException as error:
            if not is_transient(error.args[0]):
                raise
            return self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics

    def _with_leader(self, sources: Iterable[SourceSlot]) -> tuple[SourceSlot, ...]:
        return tuple(source for source in sources if (source.topic, source.partition) not in self._away)

    def _ask(self, sources: tuple[SourceSlot, ...], spec: OffsetSpec) -> dict[int, LogEpoch]:
        if not sources:
            return {}
        asked = {TopicPartition(source.topic, source.partition): spec for source in sources}
        with clear_errors(self._bootstrap):
            answers = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
            try:
                found = {
                    (place.topic, place.partition): _epoch_of(listed(future))
                    for place, future in answers.items()
                }
            except KafkaException as error:
                is_gone = is_missing(error.args[0])
                if is_gone or error.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE:
                    self._refuse_missing(dict.fromkeys(source.topic for source in sources))
                if is_gone:
                    places = ", ".join(f"{source.topic}/{source.partition}" for source in sources)
                    raise VanishedPartition(
                        f"{self._component} reads {places}, but a partition is gone: the topic was deleted "
                        "and recreated with fewer partitions; records of the old topic that were not done "
                        "are lost. Start again to read the new topic"
                    ) from error
                raise
        return {source.slot: found[source.topic, source.partition] for source in sources}


def _epoch_of(found: ListOffsetsResultInfo) -> LogEpoch:
    return LogEpoch(-1 if found.leader_epoch is None else found.leader_epoch, found.offset)


def _offsets(found: Mapping[int, LogEpoch]) -> dict[int, int]:
    return {slot: each.end for slot, each in found.items()}


class SpoutTopics(TopicEnds):
    """Partitions, slots and spout tasks of one spout."""

    def __init__(
        self, admin: AdminClient, options: SpoutOptions, topology: Published, away: set[tuple[str, int]]
    ) -> None:
        super().__init__(admin, options, _spout_topics(options, topology), away)
        slots = {(s.topic, s.topic_id, s.partition): s for s in topology.slots_of(options.spout)}
        partitions: list[SourceSlot] = []
        self.task_of: dict[int, int] = {}
        self.ids = {topic: state.topic_id for topic, state in self._topics.items()}
        """The id of each topic, no matter which task reads its partitions."""
        self.unknown: list[tuple[str, int]] = []
        """Partitions that the registry gives no slot."""
        for topic, topic_state in self._topics.items():
            for partition in range(topic_state.partitions):
                slot = slots.get((topic, topic_state.topic_id, partition))
                if slot is None:
                    self.unknown.append((topic, partition))
                    continue
                task = topology.task_of(slot)
                if options.task not in (None, task):
                    continue
                partitions.append(SourceSlot(slot.slot, topic, partition, topic_state.topic_id))
                self.task_of[slot.slot] = task
        self.partitions = tuple(partitions)
        known, ids = {topic for topic, _, _ in slots}, {(topic, topic_id) for topic, topic_id, _ in slots}
        self.recreated = [
            topic
            for topic in self._topics
            if topic in known and (topic, self._topics[topic].topic_id) not in ids
        ]
        """Topics that the registry knows by another id."""


def _spout_topics(options: SpoutOptions, topology: Published) -> tuple[str, ...]:
    table = topology.spouts.get(options.spout)
    if table is None:
        raise BadOption(
            f"topology {topology.name} has no spout {options.spout!r}; "
            f"it must be one of: {', '.join(topology.spouts) or 'none'}"
        )
    if not table.topics:
        raise BadOption(f"spout {options.spout!r} has no topics: it is fed by Python code, not by Spark")
    if options.complete_by_batch and table.block > 1:
        raise BadOption(
            f"complete=batch makes no roots, so spout {options.spout!r} cannot have block = {table.block}; "
            "take block out of the topology, or complete=batch out of the options"
        )
    if options.subscribe is not None and set(options.subscribe) != set(table.topics):
        raise BadOption(
            f"subscribe={','.join(options.subscribe)!r} differs from the topology, where spout "
            f"{options.spout!r} reads {', '.join(table.topics)}; leave it out or change the topology"
        )
    return table.topics
