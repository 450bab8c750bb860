"""Requests the ends of the control topics: high watermarks of all partitions together, without waiting.

Invariant: the wall clock of an answer was read before the request. The high watermark is what the broker
returns to a read_uncommitted reader, so a hanging transaction does not make the log look shorter than it is.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from acktree.acker.folding.clock import Watermark
from acktree.core.kafka.clients import listed_offset

REQUEST_TIMEOUT_S = 5.0

Place = tuple[str, int]


class LogEnds:
    """Requests from the broker where partitions end; one request is in flight at a time."""

    def __init__(self, admin: AdminClient, wall_ms: Callable[[], int]) -> None:
        self._admin, self._wall_ms = admin, wall_ms
        self._asked_ms = 0
        self._answers: dict[TopicPartition, Any] = {}

    def ask(self, places: Iterable[Place]) -> None:
        """Request the ends of partitions, unless a request is in flight."""
        if self._answers:
            return
        latest = cast(Any, OffsetSpec).latest()
        wanted = {TopicPartition(*place): latest for place in places}
        if wanted:
            self._asked_ms = self._wall_ms()
            self._answers = self._admin.list_offsets(
                wanted,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )

    def forget(self) -> None:
        """Ignore the request in flight: a log has lost its end since."""
        self._answers = {}

    def collect(self) -> dict[Place, Watermark]:
        """Return the answers once all are here, else none; a partition whose request failed is left out."""
        if not self._answers or not all(future.done() for future in self._answers.values()):
            return {}
        answers, self._answers = self._answers, {}
        ends = {}
        for place, future in answers.items():
            try:
                ends[place.topic, place.partition] = Watermark(self._asked_ms, listed_offset(future))
            except KafkaException:
                continue
        return ends
