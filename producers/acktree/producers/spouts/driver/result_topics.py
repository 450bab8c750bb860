"""Reads the result topics of a spout's tasks.

Invariant: every record is returned with its task and offset, in the order of its topic.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, ask_bounds, consume_ready
from acktree.core.kafka.errors import as_clear_error, clear_errors
from acktree.wire.codec import decode_result_record
from acktree.wire.control_records import Absent, ReplayCommand, Result
from acktree.wire.errors import MalformedRecord

MAX_RESULTS_PER_POLL = 1_000
WAIT_S = 0.05
MAX_READ_S = 1.0
"""How long results are read before batches are planned and offsets committed."""


class ResultRecord(NamedTuple):
    """One record: task and offset of the result topic, its content, None if malformed, and its age.

    The age is 0 while the clock of the broker that appended it is unknown.
    """

    task: int
    offset: int
    record: Result | Absent | ReplayCommand | None
    age_s: float = 0.0


class ResultTopics:
    """Reads result topics from given positions on, through a consumer that reports partition ends."""

    def __init__(self, consumer: Consumer, bootstrap: str, clock_ahead_s: Callable[[], float | None]) -> None:
        """``clock_ahead_s``: how far this machine's clock is ahead of the broker's; None: not known."""
        self._consumer, self._bootstrap, self._clock_ahead_s = consumer, bootstrap, clock_ahead_s
        self._fetched: deque[Message] = deque()
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
                _, end = ask_bounds(self._consumer, place)
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
        """Yield what is there, waiting up to ``wait_s`` for it, and reading for MAX_READ_S in all.

        Raises:
            BrokerUnreachable, BrokerRefused, NotAuthorized: see their docstrings.
        """
        # Life of a record, step 10.
        waiting_until_s = world.monotonic_s() + wait_s
        has_read = False
        while True:
            if not self._fetched:
                wait_s = 0.0 if has_read else wait_s
                self._fetched.extend(consume_ready(self._consumer, MAX_RESULTS_PER_POLL, wait_s))
            is_all = len(self._fetched) < MAX_RESULTS_PER_POLL
            for record in self._decoded():
                has_read = True
                yield record
            wait_s = waiting_until_s - world.monotonic_s()
            if not has_read and wait_s > 0:  # only the ends of topics have come
                continue
            if is_all or wait_s < -MAX_READ_S:
                return

    def _decoded(self) -> Iterator[ResultRecord]:
        """Yield what is fetched; what the caller does not take is left for the next call."""
        while self._fetched:
            message = self._fetched.popleft()
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
            offset = message.offset() or 0
            if topic in self._unread and offset + 1 >= self._unread[topic]:
                del self._unread[topic]
            yield ResultRecord(int(topic.rpartition("-")[2]), offset, record, self._age_s(message))

    def _age_s(self, message: Message) -> float:
        """Return a record's age by the broker's clock, never more than it is: no delay may end early."""
        if (ahead_s := self._clock_ahead_s()) is None:
            return 0.0
        # A time in the log has lost its part of a millisecond.
        return max(0.0, world.wall_s() - ahead_s - (message.timestamp()[1] + 1) / 1000)
