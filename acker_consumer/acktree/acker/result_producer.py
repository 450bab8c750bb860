"""Produces results, which must arrive, and reports, which may be lost.

Invariant: :meth:`ResultProducer.flush` returns True only when every result sent so far is with the broker.
"""

import logging
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree.schemas.kafka_errors import is_forbidden, is_outcome_unknown
from acktree.schemas.progress import Progress
from acktree.schemas.stats import Report

FLUSH_S = 5.0

log = logging.getLogger("acktree.acker")


class ResultProducer:
    """Produces results and resends those that timed out; a refused result ends the acker's loop."""

    def __init__(self, producer: Producer, progress: Progress) -> None:
        """``progress``: that of the loop that waits here for the broker."""
        self._producer, self._progress = producer, progress
        self._undelivered: list[tuple[str, bytes]] = []
        self._refused: KafkaError | None = None

    def send(self, topic: str, value: bytes) -> None:
        """Queue a result in the producer; wait while its queue is full."""
        # Life of an ack, step 11.
        while True:
            try:
                self._producer.produce(topic, value, partition=0, on_delivery=self._on_delivery)
                return
            except BufferError:
                with self._progress.waiting():
                    self._producer.poll(0.1)

    def send_report(self, topic: str, report: Report) -> None:
        """Queue a report in the producer; it may be lost, but an authorization error ends the loop."""
        try:
            self._producer.produce(topic, report.encode(), report.key(), on_delivery=self._on_report)
        except BufferError:
            log.info("action=report_dropped")

    def poll(self) -> None:
        """Serve delivery callbacks and resend what did not arrive.

        Raises:
            KafkaException: the broker refused a result.
        """
        self._producer.poll(0)
        if self._refused is not None:
            raise KafkaException(self._refused)
        again, self._undelivered = self._undelivered, []
        for topic, value in again:
            self.send(topic, value)

    def flush(self) -> bool:
        """Wait up to FLUSH_S for all results to be with the broker; return whether they are."""
        return self._producer.flush(FLUSH_S) == 0 and not self._undelivered and self._refused is None

    def _on_report(self, error: KafkaError | None, _message: Any) -> None:
        if is_forbidden(error):
            self._refused = error

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._undelivered.append((message.topic(), message.value()))
        if not is_outcome_unknown(error):
            self._refused = error
