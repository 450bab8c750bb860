"""Reads the results of one task of a Python spout, from where its run began.

Invariant: a result that cannot be read stops nothing: its messages time out.
"""

import logging
from collections.abc import Iterator

from confluent_kafka import TopicPartition

from acktree.core.errors import MissingTopic
from acktree.core.kafka.clients import ask_bounds
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.log_reader import Found, LogRange, LogReader
from acktree.producers.spouts.task_commits import TaskCommits
from acktree.wire.codec import decode_result
from acktree.wire.control_records import Result
from acktree.wire.errors import MalformedRecord

RESULTS_PER_TURN = 1000

log = logging.getLogger("acktree.spout")


class SpoutResults:
    """Reads the result topic of one task; its position is in the task's state."""

    def __init__(self, reader: LogReader, topic: str, commits: TaskCommits, bootstrap: str) -> None:
        """Begin at the end of the topic: older results are of earlier runs."""
        self._log, self._topic, self._commits = reader, topic, commits
        self.invalid = 0
        with clear_errors(bootstrap):
            _, end = ask_bounds(reader.consumer, TopicPartition(topic, 0), wait_if_away=True)
        self._begin(max(end, commits.next_offset))

    def _begin(self, next_offset: int) -> None:
        self._commits.next_offset = next_offset
        self._log.begin({(self._topic, 0): next_offset})

    def read(self, wait_s: float) -> Iterator[Result]:
        """Yield the results that are there; if there is none, wait for one.

        Raises:
            MissingTopic: the result topic was deleted. BrokerRefused, NotAuthorized: see their docstrings.
        """
        for log_range in self._log.read(RESULTS_PER_TURN, wait_s):
            if log_range.found is not Found.READ:
                self._pass(log_range)
            for record in log_range.records:
                self._commits.next_offset = (record.offset() or 0) + 1
                try:
                    result = decode_result(record.value() or b"")
                except MalformedRecord as malformed:
                    self.invalid += 1
                    log.warning("%s@%s rejected: %s", self._topic, record.offset(), malformed)
                    continue
                yield result
            if log_range.found is not Found.FELL:
                self._commits.next_offset = log_range.end

    def _pass(self, log_range: LogRange) -> None:
        """Continue behind results that cannot be read."""
        if log_range.found is Found.GONE:
            raise MissingTopic(
                f"topic {self._topic!r}, which has the results of a spout, does not exist; create it with: "
                "acktree topology apply FILE"
            )
        if log_range.found is Found.DAMAGED:
            self.invalid += log_range.end - log_range.start
        if log_range.found is Found.FELL:
            self._begin(log_range.start)
        log.warning("%s", log_range.text, extra={"action": log_range.action})
