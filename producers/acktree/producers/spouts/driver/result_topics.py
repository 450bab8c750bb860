"""Reads the result topics of a spout's tasks.

Invariant: every record is returned with its task and offset, in the order of its topic; results that can no
longer be read are returned as LostResults, in their place.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from confluent_kafka import Message, TopicPartition

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.log_reader import Found, LogRange, LogReader
from acktree.wire.codec import decode_result_record
from acktree.wire.control_records import Absent, ReplayCommand, Result
from acktree.wire.errors import MalformedRecord

MAX_RESULTS_PER_POLL = 1_000
WAIT_S = 0.05
MAX_READ_S = 1.0
"""How long results are read before batches are planned and offsets committed."""


class LostResults(NamedTuple):
    """What a spout does not know: the results at the offsets [start, end) of a result topic."""

    topic: str
    start: int
    end: int
    cause: str


class ResultRecord(NamedTuple):
    """One record: task and offset of the result topic, its content, None if malformed, and its age.

    The age is 0 while the clock of the broker that appended it is unknown.
    """

    task: int
    offset: int
    record: Result | Absent | ReplayCommand | LostResults | None
    age_s: float = 0.0


_Fetched = Message | LostResults
CAUSES = {
    Found.REMOVED: "removed before they were read",
    Found.DAMAGED: "damaged in the log",
    Found.FELL: "lost with the end of the log",
}


class ResultTopics:
    """Reads result topics from given positions on."""

    def __init__(
        self,
        log: LogReader,
        bootstrap: str,
        bounds: Callable[[TopicPartition], tuple[int, int]],
        clock_ahead_s: Callable[[], float | None],
    ) -> None:
        """``bounds`` asks for the bounds of a log.

        ``clock_ahead_s``: how far this machine's clock is ahead of the broker's; None: not known.
        """
        self._log, self._bootstrap, self._bounds, self._clock_ahead_s = log, bootstrap, bounds, clock_ahead_s
        self._fetched: deque[tuple[str, _Fetched]] = deque()
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
        added = {(place.topic, place.partition): place for place in places}
        for place in added.values():
            _, end = self._bounds(place)
            if end > place.offset:
                self._unread[place.topic] = end
        self._log.begin({place: at.offset for place, at in added.items()})

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
            is_all = False
            if not self._fetched:
                ranges = self._log.read(MAX_RESULTS_PER_POLL, 0.0 if has_read else wait_s)
                is_all = not ranges
                for log_range in ranges:
                    self._fetched += self._contents(log_range)
            while self._fetched:
                topic, fetched = self._fetched.popleft()
                has_read = True
                yield self._decoded(topic, fetched)
            self._mark_read()
            wait_s = waiting_until_s - world.monotonic_s()
            if not has_read and wait_s > 0:  # only the ends of topics have come
                continue
            if is_all or wait_s < -MAX_READ_S:
                return

    def _contents(self, log_range: LogRange) -> Iterator[tuple[str, _Fetched]]:
        """Yield what a range of a log holds; a log that has fallen is read again from its beginning."""
        topic, _ = log_range.place
        if log_range.found is Found.READ:
            yield from ((topic, message) for message in log_range.records)
            return
        if log_range.found is Found.GONE:
            raise as_clear_error(log_range.error, self._bootstrap)
        yield topic, LostResults(topic, log_range.start, log_range.end, CAUSES[log_range.found])
        if log_range.found is Found.FELL:
            first, end = self._bounds(TopicPartition(*log_range.place))
            self._unread[topic] = end
            self._log.begin({log_range.place: first})

    def _mark_read(self) -> None:
        """Forget the ends that are reached; what was fetched is returned."""
        for topic, end in list(self._unread.items()):
            if self._log.next_offset((topic, 0)) >= end or self._log.is_at_end((topic, 0)):
                del self._unread[topic]

    def _decoded(self, topic: str, fetched: _Fetched) -> ResultRecord:
        task = int(topic.rpartition("-")[2])
        if isinstance(fetched, LostResults):
            return ResultRecord(task, fetched.end - 1, fetched)
        try:
            record = decode_result_record(fetched.value() or b"")
        except MalformedRecord:
            record = None
        return ResultRecord(task, fetched.offset() or 0, record, self._age_s(fetched))

    def _age_s(self, message: Message) -> float:
        """Return a record's age by the broker's clock, never more than it is: no delay may end early."""
        if (ahead_s := self._clock_ahead_s()) is None:
            return 0.0
        # A time in the log has lost its part of a millisecond.
        return max(0.0, world.wall_s() - ahead_s - (message.timestamp()[1] + 1) / 1000)
