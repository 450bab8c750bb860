"""Looks up how far the bolts have committed their topics, in a separate thread that holds up no fold.

It looks only while a tree could time out: a topology that keeps up costs no request. It requests only the
ends of topics and committed offsets, which takes the right to describe them.

Invariant: a missing answer moves no clock, whatever the reason.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from acktree.acker.folding.work_clock import MAX_LOOKS, NEVER_MS, Barrier, BoltClock, Look, Place
from acktree.core import world
from acktree.core.errors import MissingTopic
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    listed_offset,
    make_admin,
    make_consumer,
    why_unanswered,
)
from acktree.core.kafka.errors import is_forbidden, is_missing
from acktree.core.kafka.outages import log_retry
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.topology.registry import History, Published

MIN_LOOK_S, MAX_LOOK_S = 0.1, 1.0
LOOKS_PER_TIMEOUT = 30
REST = 10
"""A look is followed by a pause this many times as long as it took."""

log = logging.getLogger("acktree.acker")


class BoltPositions:
    """Looks from ``start`` to ``stop`` while asked to; ``take`` returns the answers, for the loop."""

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        history: History,
        wall_ms: Callable[[], int],
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``failed`` hears in one sentence why a look failed."""
        self._bootstrap, self._history, self._wall_ms, self._failed = bootstrap, history, wall_ms, failed
        self._user = {key: value for key, value in user.items() if not key.startswith("group.")}
        self._admin = make_admin(bootstrap, self._user)
        self._seen: deque[Look] = deque(maxlen=MAX_LOOKS)
        self._reads: dict[str, tuple[str, ...]] = {}
        self._clocks: dict[str, BoltClock] = {}
        self._consumers: dict[str, Consumer] = {}
        self.is_wanted = False
        self._wake = world.event()
        self._ended = world.event()
        self._thread: world.Thread | None = None
        self._error: Exception | None = None

    def check(self) -> None:
        """Look once, for the rights that this takes; what is not there yet may come.

        Raises:
            KafkaException: the broker refuses it.
        """
        self._follow(self._history.latest)
        for bolt, reads in self._reads.items():
            try:
                self._look_at(bolt, reads)
            except MissingTopic:
                continue
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise

    def start(self) -> None:
        self._thread = world.start_thread(self._run, "acktree-bolt-positions")

    def want(self, is_wanted: bool) -> None:
        """Say whether a tree may be old enough to time out; called all the time."""
        self.is_wanted = is_wanted
        if is_wanted:
            self._wake.set()

    def stop(self) -> None:
        """Look no longer."""
        self._ended.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until the thread has ended, which may wait for an answer of the broker."""
        if self._thread is not None:
            self._thread.join()

    def take(self) -> Iterator[Look]:
        """Yield what was seen since the last call. Raises what has ended the thread."""
        while self._seen:
            yield self._seen.popleft()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._wake.wait():
                self._wake = world.event()  # what is set from here on is seen in the next turn
                if self._ended.is_set():
                    break
                if self.is_wanted:
                    began_s = world.monotonic_s()
                    self._look_at_all()
                    self._ended.wait(max(self._interval_s, REST * (world.monotonic_s() - began_s)))
        except Exception as error:
            self._error = error
        finally:
            for consumer in self._consumers.values():
                consumer.close()

    @property
    def _interval_s(self) -> float:
        return min(max(self._history.latest.message_timeout_s / LOOKS_PER_TIMEOUT, MIN_LOOK_S), MAX_LOOK_S)

    def _look_at_all(self) -> None:
        topology = self._history.latest
        self._follow(topology)
        for bolt, table in topology.bolts.items():
            try:
                self._look_at(bolt, table.reads)
            except (KafkaException, MissingTopic) as error:
                self._failed(f"the position of bolt {bolt} is not known: {error}")
                text = "trees that wait for bolt %s do not time out while its position is not known: %s"
                last = self._clocks[bolt].behind
                if last is None or last.partition:  # said once, until the broker answers again
                    log_retry(log, text, bolt, error, action="no_position")
                self._clocks[bolt].unseen(self._wall_ms())
        clocks = self._clocks
        worked_ms = {bolt: clock.worked_ms for bolt, clock in clocks.items() if clock.worked_ms != NEVER_MS}
        behind = {bolt: clock.behind for bolt, clock in clocks.items() if clock.behind is not None}
        self._seen.append(Look(self._wall_ms(), worked_ms, behind))

    def _follow(self, topology: Published) -> None:
        """Begin again with a bolt that reads other topics; make a client for each new one."""
        reads = {name: bolt.reads for name, bolt in topology.bolts.items()}
        for name in self._reads.keys() | reads.keys():
            if self._reads.get(name) != reads.get(name):
                self._clocks.pop(name, None)
        for name in reads:
            self._clocks.setdefault(name, BoltClock())
        for gone in self._consumers.keys() - reads.keys():
            self._consumers.pop(gone).close()
        for bolt in reads.keys() - self._consumers.keys():
            settings = consumer_settings(self._bootstrap, topology.group_of(bolt), self._user)
            # What an open transaction may still change counts once it has ended: nobody waits for that.
            self._consumers[bolt] = make_consumer({**settings, "isolation.level": "read_uncommitted"})
        self._reads = reads

    def _look_at(self, bolt: str, topics: Iterable[str]) -> None:
        """Find to what time a bolt has worked.

        Raises:
            KafkaException, MissingTopic: something is not known.
        """
        at_ms, places = self._wall_ms(), self._places(topics)
        ends = self._list_offsets(places, cast(Any, OffsetSpec).latest())
        committed, newest = self._committed(bolt, places), Barrier(at_ms, ends)
        if left := newest.left(committed, ends):
            for place, start in self._list_offsets(left, cast(Any, OffsetSpec).earliest()).items():
                committed[place] = max(committed[place], start)
        self._clocks[bolt].see(newest, committed)

    def _places(self, topics: Iterable[str]) -> list[Place]:
        """Return the partitions of topics as they are. Raises MissingTopic, KafkaException."""
        places = []
        for topic in topics:
            about = self._admin.list_topics(topic, timeout=BROKER_TIMEOUT_S).topics.get(topic)
            if about is None or (about.error is not None and is_missing(about.error)):
                raise MissingTopic(f"topic {topic!r} does not exist")
            if about.error is not None:
                raise KafkaException(about.error)
            places += [(topic, number) for number in about.partitions]
        return places

    def _committed(self, bolt: str, places: Iterable[Place]) -> dict[Place, int]:
        """Return what a bolt has committed, -1 where it has committed nothing. Raises KafkaException."""
        consumer, wanted = self._consumers[bolt], [TopicPartition(*place) for place in places]
        try:
            committed = consumer.committed(wanted, timeout=BROKER_TIMEOUT_S) if wanted else []
        except KafkaException as error:
            if (why := why_unanswered(consumer)) is not None:
                raise KafkaException(why) from error
            raise
        for each in committed:
            if each.error is not None:
                raise KafkaException(each.error)
        return {(each.topic, each.partition): max(-1, each.offset) for each in committed}

    def _list_offsets(self, places: Iterable[Place], spec: OffsetSpec) -> dict[Place, int]:
        """Return an offset of each partition, of open transactions too. Raises KafkaException."""
        wanted = {TopicPartition(*place): spec for place in places}
        answers = (
            self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=BROKER_TIMEOUT_S
            )
            if wanted
            else {}
        )
        return {(place.topic, place.partition): listed_offset(answer) for place, answer in answers.items()}
