"""The registry: every version of a topology, on its compacted topic, and what each process knows of it.

Invariant: versions only grow; a slot, once given to a (topic, topic id, partition), is never given to
another, and a spout task number never to another task. All versions stay readable: old roots need them.
"""

from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from pydantic import BaseModel, ConfigDict, ValidationError

from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, clear_errors, consumer_settings, make_consumer
from acktree.schemas.errors import BrokerUnreachable, UnknownTopology, UnknownVersion
from acktree.schemas.ids import fnv1a64
from acktree.schemas.topology import Topology, registry_topic


class Slot(BaseModel):
    """A source partition's number in its topology; a Python-fed spout has topic "" and its task's index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    slot: int
    spout: str
    topic: str
    topic_id: str
    partition: int


class Published(Topology):
    """One published version: the file's content, its number, and what was given out with it."""

    version: int
    spout_tasks: dict[str, tuple[int, ...]]
    slots: tuple[Slot, ...]

    def file(self) -> Topology:
        """Return the content of the file this version was made from."""
        return Topology.model_validate(self.model_dump(include=set(Topology.model_fields)))

    def slots_of(self, spout: str) -> tuple[Slot, ...]:
        """Return a spout's slots in the order they were given out, those of re-created topics included."""
        return tuple(slot for slot in self.slots if slot.spout == spout)

    def task_of(self, slot: Slot) -> int:
        """Return the spout task that owns a slot: partitions are dealt round robin."""
        tasks = self.spout_tasks[slot.spout]
        return tasks[self.slots_of(slot.spout).index(slot) % len(tasks)]

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

    def ackers(self, version: int) -> int:
        """Return the acker count of the roots born in a version."""
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
        settings = consumer_settings(
            bootstrap, f"{name}.registry", user, enable_partition_eof=True, fetch_wait_max_ms=100
        )
        self._consumer: Consumer = make_consumer(settings)
        try:
            self._open()
        except BaseException:
            self._consumer.close()
            raise

    def _open(self) -> None:
        with clear_errors(self.bootstrap):
            metadata = self._consumer.list_topics(self._topic, timeout=BROKER_TIMEOUT_S)
            if metadata.topics[self._topic].error is not None:
                self.history.latest  # noqa: B018 -- raises UnknownTopology
            self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
            while not self._take(BROKER_TIMEOUT_S):
                pass
        self.history.latest  # noqa: B018 -- raises UnknownTopology

    def refresh(self) -> bool:
        """Take in what was published since; return True if there was something. Never waits."""
        before = len(self.history.versions)
        while not self._take(0.0):
            pass
        return len(self.history.versions) > before

    def _take(self, timeout_s: float) -> bool:
        """Take one record; return True at the end of the topic (or, with timeout 0, if none is here yet)."""
        message = self._consumer.poll(timeout_s)
        if message is None:
            if timeout_s:
                raise BrokerUnreachable(f"no answer from {self.bootstrap} while reading {self._topic}")
            return True
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return True
            if timeout_s:
                raise KafkaException(error)
            return True
        try:
            published = Published.model_validate_json(message.value() or b"")
        except ValidationError:
            return False
        if (message.key() or b"") == str(published.version).encode():
            self.history.versions.setdefault(published.version, published)
        return False

    def close(self) -> None:
        self._consumer.close()


def read_history(bootstrap: str, name: str, user: Settings) -> History:
    """Return all versions of a topology, reading the registry once; errors as of :class:`Registry`."""
    registry = Registry(bootstrap, name, user)
    registry.close()
    return registry.history
