"""The result topics of a spout's tasks, as its driver reads them.

Invariant: every record is returned with its task and offset, in the order of its topic.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from acktree.schemas import world
from acktree.schemas.clients import BROKER_TIMEOUT_S
from acktree.schemas.codec import decode_result_record
from acktree.schemas.control_records import Absent, ReplayCommand, Result
from acktree.schemas.errors import BrokerUnreachable, MalformedRecord
from acktree.schemas.kafka_errors import as_clear_error, clear_errors

MAX_RESULTS_PER_POLL = 1_000
WAIT_S = 0.05


class ResultRecord(NamedTuple):
    """One record: task and offset of the result topic, its content, None if malformed, and its age."""

    task: int
    offset: int
    record: Result | Absent | ReplayCommand | None
    age_s: float = 0.0


class ResultTopics:
    """Reads result topics from given positions on, through a consumer that reports partition ends."""

    def __init__(self, consumer: Consumer, bootstrap: str) -> None:
        self._consumer, self._bootstrap = consumer, bootstrap
        self._unread: dict[str, int] = {}
        """By topic where it ended when it was added; only of those that are not read so far."""

    @property
    def are_read(self) -> bool:
        """Return whether all is read that was in a topic when it was added.

        No more than that: ackers may write faster than the newest end can be reached.
        """
        return not self._unread

    def follow(self, places: Iterable[TopicPartition]) -> None:
        """Add these to the topics read. Raises BrokerUnreachable, BrokerRefused, NotAuthorized."""
        added = list(places)
        with clear_errors(self._bootstrap):
            for place in added:
                _, end = self._consumer.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S)
                self._unread[place.topic] = end
        self._consumer.incremental_assign(added)

    def read_to_ends(self) -> Iterator[ResultRecord]:
        """Yield what is there, until all is read that was in a topic when it was added.

        Raises:
            BrokerUnreachable: nothing came for a while, and not every end was reached. Else as ``read``.
        """
        deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
        while not self.are_read:
            for record in self.read(WAIT_S):
                yield record
                deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
            if world.monotonic_s() > deadline_s:
                raise BrokerUnreachable(f"{', '.join(sorted(self._unread))}: not read to the end in time")

    def read(self, wait_s: float) -> Iterator[ResultRecord]:
        """Yield what is there, waiting up to ``wait_s`` for it.

        Raises:
            BrokerUnreachable, BrokerRefused, NotAuthorized: see there.
        """
        # Life of a record, step 10.
        for message in self._consumer.consume(MAX_RESULTS_PER_POLL, wait_s):
            topic = message.topic() or ""
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._unread.pop(topic, None)
                elif not error.retriable():
                    raise as_clear_error(error, self._bootstrap)
                continue
            try:
                record = decode_result_record(message.value() or b"")
            except MalformedRecord:
                record = None
            # A time in the log has lost its part of a millisecond: no delay may end early for it.
            age_s = max(0.0, world.wall_s() - (message.timestamp()[1] + 1) / 1000)
            offset = message.offset() or 0
            yield ResultRecord(int(topic.rpartition("-")[2]), offset, record, age_s)
            if topic in self._unread and offset + 1 >= self._unread[topic]:
                del self._unread[topic]
