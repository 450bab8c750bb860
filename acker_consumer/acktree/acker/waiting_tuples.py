"""Keeps trees open whose tuples wait unread for a bolt that stands still: a replay could only queue behind.

Invariant: only the root of a tuple that is in the log, at or behind what its bolt has committed, gets more
time: a reset of its timeout, as a bolt sends it. That neither completes nor fails a tree, and is of no use to
one older than half of ``control_retention_s``. A lost reset costs a replay. The thread that looks holds up no
fold.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from acktree.acker.standing_bolts import Place, StandingBolts, Unread
from acktree.schemas import world
from acktree.schemas.client_settings import Settings, consumer_settings, producer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_consumer, make_producer, wait_until_delivered
from acktree.schemas.codec import encode_ack
from acktree.schemas.control_records import Ack
from acktree.schemas.errors import MalformedRecord, UnknownVersion
from acktree.schemas.header import Anchor, decode_header, find_header, read_headers
from acktree.schemas.ids import IdArray
from acktree.schemas.outages import log_retry
from acktree.schemas.registry import History

LOOKS_PER_TIMEOUT = 4
MAX_RECORDS = 200_000
"""So many are read for each bolt; trees of tuples behind them time out."""
MAX_RESETS = 8_192
BATCH = 2_000
POLL_S = 0.2
OWNER_CHECK_S = 1.0
RETRY_S = 10.0

log = logging.getLogger("acktree.acker")


class Queue:
    """The tuples that wait for one bolt: their anchors, by place and offset. Each tuple is read once."""

    def __init__(self) -> None:
        self._anchors: dict[Place, dict[int, tuple[Anchor, ...]]] = {}
        self._next: dict[Place, int] = {}
        self.read = 0
        """How many records were read."""

    def keep(self, unread: Mapping[Place, Unread]) -> dict[Place, Unread]:
        """Discard what is no longer unread; return what is left to read."""
        self._anchors = {place: self._anchors.get(place, {}) for place in unread}
        for place, span in unread.items():
            for offset in [each for each in self._anchors[place] if each < span.start]:
                del self._anchors[place][offset]
        self._next = {place: max(self._next.get(place, 0), span.start) for place, span in unread.items()}
        spans = {place: Unread(self._next[place], span.end) for place, span in unread.items()}
        return {place: span for place, span in spans.items() if span.start < span.end}

    def add(self, message: Message, anchors: tuple[Anchor, ...]) -> None:
        """Add a record that was read, with the anchors that its bolt owns; none if it is no tuple of its."""
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        self._next[place] = offset + 1
        self.read += 1
        if anchors:
            self._anchors[place][offset] = anchors

    def roots(self) -> Iterator[tuple[int, int]]:
        """Yield the version and root id of every anchor."""
        for tuples in self._anchors.values():
            for anchors in tuples.values():
                for anchor in anchors:
                    yield anchor.version, anchor.root


class WaitingTuples:
    """Looks several times per message timeout, in a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, bootstrap: str, user: Settings, history: History, is_ours: Callable[[], bool]) -> None:
        """``is_ours``: whether this acker is the one that looks, since one of a topology is enough."""
        self._bootstrap, self._history, self._is_ours = bootstrap, history, is_ours
        self._user = {key: value for key, value in user.items() if not key.startswith("group.")}
        self._queues: dict[str, Queue] = {}
        self._logged = ""
        self._refused: list[KafkaError] = []
        self._ended = world.event()
        self._thread: world.Thread | None = None
        self.kept_open = 0
        """How many trees the last look has kept open."""

    def start(self) -> None:
        self._thread = world.start_thread(self._run, "acktree-waiting-tuples")

    def stop(self) -> None:
        """Look no longer."""
        self._ended.set()

    def join(self) -> None:
        """Wait until the thread has ended, which may wait for an answer of the broker."""
        if self._thread is not None:
            self._thread.join()

    @property
    def _interval_s(self) -> float:
        latest = self._history.latest
        return min(latest.message_timeout_s, latest.orphan_timeout_s) / LOOKS_PER_TIMEOUT

    def _run(self) -> None:
        while not self._ended.wait(OWNER_CHECK_S):
            if not self._is_ours() or not self._interval_s:
                continue
            try:
                self._look_on()
            except Exception as error:
                self._log_once(str(error))
                self._ended.wait(RETRY_S)

    def _log_once(self, error: str) -> None:
        """Log why nobody keeps trees open: it costs replays, so once is enough."""
        if error != self._logged:
            self._logged = error
            log_retry(
                log, "trees may time out while their tuples wait for a bolt: %s", error, action="no_look"
            )

    def _look_on(self) -> None:
        """Look until this acker is no longer the one to look, or an error."""
        latest = self._history.latest
        settings = consumer_settings(self._bootstrap, latest.acker_group, self._user)
        bolts = StandingBolts(self._bootstrap, self._user, latest)
        consumer = make_consumer({**settings, "enable.partition.eof": True})
        producer = make_producer(producer_settings(self._bootstrap, self._user))
        try:
            while self._is_ours() and self._interval_s:
                self._keep_open(bolts, consumer, producer)
                if self._ended.wait(self._interval_s):
                    break
        finally:
            bolts.close()
            consumer.close()
            self._queues.clear()
            self._refused.clear()
            self.kept_open = 0

    def _keep_open(self, bolts: StandingBolts, consumer: Consumer, producer: Producer) -> None:
        standing = bolts.find(self._history.latest)
        self._queues = {bolt: self._queues.get(bolt, Queue()) for bolt in standing}
        for bolt, unread in standing.items():
            self._read(bolt, self._queues[bolt], consumer, unread)
        roots: dict[int, set[int]] = {}
        for queue in self._queues.values():
            for version, root in queue.roots():
                roots.setdefault(version, set()).add(root)
        for version, found in roots.items():
            self._reset(producer, version, np.fromiter(found, np.uint64, len(found)))
        left = wait_until_delivered(producer, BROKER_TIMEOUT_S)
        if self._refused:
            raise KafkaException(self._refused.pop())
        self.kept_open = sum(map(len, roots.values())) if not left else 0

    def _read(self, bolt: str, queue: Queue, consumer: Consumer, unread: Mapping[Place, Unread]) -> None:
        """Read what is unread, for at most the time to the next look."""
        left = queue.keep(unread)
        consumer.assign([TopicPartition(*place, span.start) for place, span in left.items()])
        until_s = world.monotonic_s() + self._interval_s
        while left and queue.read < MAX_RECORDS and world.monotonic_s() < until_s:
            if self._ended.is_set():
                break
            for message in consumer.consume(BATCH, POLL_S):
                place = message.topic() or "", message.partition() or 0
                if (error := message.error()) is None:
                    queue.add(message, self._anchors_of(bolt, message))
                elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                    raise KafkaException(error)
                if place in left and (error is not None or (message.offset() or 0) >= left[place].end - 1):
                    del left[place]
        consumer.unassign()

    def _anchors_of(self, bolt: str, message: Message) -> tuple[Anchor, ...]:
        """Return the anchors of a record in the trees where the bolt owns an edge of it."""
        try:
            header = find_header(read_headers(message))
            if header is None:
                return ()
            version, anchors = decode_header(header)
            is_reader = bolt in self._history.readers(version, message.topic() or "").names
        except (MalformedRecord, UnknownVersion):
            return ()
        return (
            tuple(anchor for anchor in anchors if anchor.version in self._history.versions)
            if is_reader
            else ()
        )

    def _reset(self, producer: Producer, version: int, roots: IdArray) -> None:
        published = self._history.at(version)
        if not published.ackers:
            return
        partitions = roots % np.uint64(published.ackers)
        for partition in np.unique(partitions).tolist():
            ours = roots[partitions == partition]
            for at in range(0, len(ours), MAX_RESETS):
                value = encode_ack(Ack("acker", version, resets=ours[at : at + MAX_RESETS]))
                producer.produce(
                    published.ack_topic, value, partition=int(partition), on_delivery=self._on_delivery
                )
                producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error)
