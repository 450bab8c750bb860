"""The way out: results that must arrive, reports that may.

Invariant: :meth:`Outbox.settle` returns True only when every result given so far is with the broker.
"""

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree.schemas.clients import is_forbidden
from acktree.schemas.stats import Report

FLUSH_S = 5.0
_MAY_ARRIVE_YET = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TRANSPORT)

log = logging.getLogger("acktree.acker")


class Outbox:
    """Produces results and sends again what timed out; a result that is refused ends the loop."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._undelivered: list[tuple[str, bytes]] = []
        self._refused: KafkaError | None = None

    def tell(self, topic: str, value: bytes) -> None:
        """Hand a result over to the producer; waits where its queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, partition=0, on_delivery=self._on_delivery)
                return
            except BufferError:
                self._producer.poll(0.1)

    def report(self, topic: str, report: Report) -> None:
        """Hand a report over to the producer; it may get lost, but not be forbidden."""
        try:
            self._producer.produce(topic, report.encode(), report.key(), on_delivery=self._on_report)
        except BufferError:
            log.info("action=report_dropped")

    def poll(self) -> None:
        """Learn what did not arrive and send it again.

        Raises:
            KafkaException: the broker refused a result.
        """
        self._producer.poll(0)
        if self._refused is not None:
            raise KafkaException(self._refused)
        again, self._undelivered = self._undelivered, []
        for topic, value in again:
            self.tell(topic, value)

    def settle(self) -> bool:
        """Wait until all results are with the broker; return whether they are."""
        return self._producer.flush(FLUSH_S) == 0 and not self._undelivered and self._refused is None

    def _on_report(self, error: KafkaError | None, _message: Any) -> None:
        if is_forbidden(error):
            self._refused = error

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._undelivered.append((message.topic(), message.value()))
        if error.code() not in _MAY_ARRIVE_YET:
            self._refused = error
