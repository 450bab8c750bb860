"""Which bolts stand still, and which records wait unread for them.

A bolt stands still if records wait for it, no process of it reports a loop that moves, and it has committed
nothing since the last look. Both are asked: a bolt that holds its tuples commits nothing, but its loop moves;
one whose reports are lost commits.

Invariant: nothing is concluded while no reports arrive at all, not even this acker's own.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from confluent_kafka import OFFSET_END, Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from acktree.schemas import world
from acktree.schemas.client_settings import Settings, consumer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_admin, make_consumer, metadata_of
from acktree.schemas.errors import MalformedRecord, MissingTopic
from acktree.schemas.group_offsets import read_committed
from acktree.schemas.registry import Published
from acktree.schemas.stats import STATS_INTERVAL_S, Report, decode_report

SILENT_AFTER_S = 3 * STATS_INTERVAL_S
BATCH = 1_000

Place = tuple[str, int]


class Unread(NamedTuple):
    """The offsets [start, end) of a partition that a bolt has not read."""

    start: int
    end: int


class StandingBolts:
    """Looks at reports and commits; one thread at a time."""

    def __init__(self, bootstrap: str, user: Settings, topology: Published) -> None:
        """Connect; reports count from here on."""
        self._bootstrap, self._user = bootstrap, user
        self._admin = make_admin(bootstrap, user)
        self._consumer: Consumer = make_consumer(consumer_settings(bootstrap, topology.acker_group, user))
        self._consumer.assign([TopicPartition(topology.stats_topic, 0, OFFSET_END)])
        self._began_s = self._reported_s = world.monotonic_s()
        self._moved_s: dict[str, float] = {}
        self._commits: dict[str, Mapping[Place, tuple[int, str]]] = {}

    def close(self) -> None:
        self._consumer.close()

    def find(self, topology: Published) -> dict[str, dict[Place, Unread]]:
        """Return what waits for each bolt that stands still.

        Raises:
            KafkaException: the broker does not answer, or refuses.
        """
        self._read_reports()
        now_s = world.monotonic_s()
        silent = [b for b in topology.bolts if now_s - self._moved_s.get(b, -1e18) > SILENT_AFTER_S]
        self._commits = {bolt: self._commits[bolt] for bolt in silent if bolt in self._commits}
        found = {bolt: self._unread(topology, bolt) for bolt in silent}
        if now_s - self._reported_s > SILENT_AFTER_S or now_s - self._began_s < SILENT_AFTER_S:
            return {}
        return {bolt: unread for bolt, unread in found.items() if unread}

    def _read_reports(self) -> None:
        while messages := self._consumer.consume(BATCH, 0.1):
            for message in messages:
                if (error := message.error()) is not None:
                    if not error.retriable():
                        raise KafkaException(error)
                    continue
                try:
                    self._apply(decode_report(message.value() or b""))
                except MalformedRecord:
                    continue

    def _apply(self, report: Report) -> None:
        self._reported_s = world.monotonic_s()
        if report.role == "bolt" and "standstill_s" not in report.values:
            self._moved_s[report.component] = self._reported_s

    def _unread(self, topology: Published, bolt: str) -> dict[Place, Unread]:
        """Return what waits for a bolt, nothing if it has committed since the last look."""
        places = self._partitions(topology.bolts[bolt].reads)
        committed = read_committed(self._bootstrap, self._user, topology.group_of(bolt), places)
        if errors := [each.error for each in committed if each.error is not None]:
            raise KafkaException(errors[0])
        commits = {(each.topic, each.partition): (each.offset, metadata_of(each)) for each in committed}
        before, self._commits[bolt] = self._commits.get(bolt), commits
        if before != commits:
            return {}
        ends = self._list_offsets(commits, cast(Any, OffsetSpec).latest())
        waiting = [place for place, (offset, _) in commits.items() if offset < ends[place]]
        starts = self._list_offsets(waiting, cast(Any, OffsetSpec).earliest())
        unread = {place: Unread(max(commits[place][0], starts[place]), ends[place]) for place in waiting}
        return {place: span for place, span in unread.items() if span.start < span.end}

    def _list_offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
        """Return an offset of each partition; one request asks for all of them."""
        wanted = {TopicPartition(*place): spec for place in places}
        if not wanted:
            return {}
        answers = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=BROKER_TIMEOUT_S
        )
        return {
            (place.topic, place.partition): world.wait_for(answer, BROKER_TIMEOUT_S).offset
            for place, answer in answers.items()
        }

    def _partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        known = self._consumer.list_topics(timeout=BROKER_TIMEOUT_S).topics
        if missing := [topic for topic in topics if topic not in known]:
            raise MissingTopic(f"topic {missing[0]!r} does not exist, or this acker may not read it")
        return [TopicPartition(topic, number) for topic in topics for number in known[topic].partitions]
