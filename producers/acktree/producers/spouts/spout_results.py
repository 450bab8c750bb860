"""Reads the results of one task of a Python spout, from where its run began.

Invariant: a result that cannot be read stops nothing: its messages time out.
"""

import logging
from collections.abc import Iterator
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from acktree.core.kafka.clients import ask_bounds, consume_ready, retry_until_ready
from acktree.core.kafka.errors import clear_errors, is_unreadable
from acktree.core.kafka.settings import Settings
from acktree.core.kafka.unreadable import find_continuation
from acktree.core.reports.liveness import Liveness
from acktree.producers.kafka.inputs import check_error
from acktree.producers.spouts.task_commits import TaskCommits
from acktree.wire.codec import decode_result
from acktree.wire.control_records import Result
from acktree.wire.errors import MalformedRecord

RESULTS_PER_TURN = 1000

log = logging.getLogger("acktree.spout")


class SpoutResults:
    """Reads the result topic of one task; its position is in the task's state."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        commits: TaskCommits,
        bootstrap: str,
        user: Settings,
        group: str,
        progress: Liveness,
    ) -> None:
        """Begin at the end of the topic: older results are of earlier runs."""
        self._consumer, self._topic, self._commits = consumer, topic, commits
        self._bootstrap, self._progress = bootstrap, progress
        self._find_continuation = partial(find_continuation, bootstrap, user, group, topic, 0)
        self.invalid = 0
        place = TopicPartition(topic, 0)
        with clear_errors(bootstrap):
            _, end = ask_bounds(consumer, place, wait_if_away=True)
        self._assign(max(end, commits.next_offset))

    def _assign(self, next_offset: int) -> None:
        self._commits.next_offset = next_offset
        self._consumer.assign([TopicPartition(self._topic, 0, next_offset)])

    def read(self, wait_s: float) -> Iterator[Result]:
        """Yield the results that are there; if there is none, wait for one. Raises as ``check_error``."""
        records = consume_ready(self._consumer, RESULTS_PER_TURN, wait_s)
        for record in records:
            if (error := record.error()) is not None and is_unreadable(error):
                return self._continue_reading()
            if error is not None:
                check_error(error, self._bootstrap)
                continue
            self._commits.next_offset = (record.offset() or 0) + 1
            try:
                result = decode_result(record.value() or b"")
            except MalformedRecord as malformed:
                self.invalid += 1
                log.warning("%s@%s rejected: %s", self._topic, record.offset(), malformed)
                continue
            yield result

    def _continue_reading(self) -> None:
        """Continue behind results that are lost or damaged."""
        with self._progress.waiting():
            find = partial(self._find_continuation, self._commits.next_offset)
            there = retry_until_ready(find, wait_if_away=True)
        self.invalid += len(there.damaged)
        if text := there.describe(self._topic, 0):
            log.warning("%s", text, extra={"action": there.action})
        self._assign(there.next_offset)
