"""Produces results, and resends them until they arrive.

Invariant: :meth:`ResultProducer.flush` returns True only when every result sent so far is with the broker.
"""

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree.core.kafka.clients import wait_until_delivered
from acktree.core.kafka.errors import is_outcome_unknown
from acktree.core.reports.liveness import Liveness

FLUSH_S = 5.0


class ResultProducer:
    """Produces results and resends those that timed out; a refused result ends the acker's loop."""

    def __init__(self, producer: Producer, progress: Liveness) -> None:
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
        """Wait up to FLUSH_S for all results to be with the broker; return whether they are.

        Raises:
            KafkaException: the producer has a fatal error.
        """
        left = wait_until_delivered(self._producer, FLUSH_S)
        return not left and not self._undelivered and self._refused is None

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            return
        self._undelivered.append((message.topic(), message.value()))
        if not is_outcome_unknown(error):
            self._refused = error
