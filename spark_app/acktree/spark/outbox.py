"""A producer per executor process, and the delivery that failed.

Invariant: ``flush`` returns only when everything sent is in the broker's log.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from acktree.schemas.clients import Settings, make_producer, producer_settings
from acktree.schemas.errors import AcktreeError
from acktree.schemas.ids import EdgeSource

FLUSH_TIMEOUT_S = 120.0


class DeliveryFailed(AcktreeError):
    """The broker did not take a record; the task fails and its batch is run again."""


@dataclass(slots=True)
class Outbox:
    """One process's producer and the first delivery that failed since it was last asked."""

    producer: Producer
    failure: KafkaError | None = None
    edges: EdgeSource = field(default_factory=EdgeSource)

    def send(
        self, topic: str, value: bytes | str | None, key: Any, headers: Any, partition: int = -1
    ) -> None:
        """Produce one record, waiting where the queue is full."""
        while True:
            try:
                self.producer.produce(
                    topic, value, key, partition, on_delivery=self.delivered, headers=headers
                )
                return
            except BufferError:
                self.producer.poll(0.1)

    def delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = error

    def flush(self) -> None:
        """Wait until all is delivered; raise DeliveryFailed if anything was not."""
        left = self.producer.flush(FLUSH_TIMEOUT_S)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise DeliveryFailed(f"the broker did not take a record: {failure.str()}")
        if left:
            raise DeliveryFailed(f"{left} records were not taken within {FLUSH_TIMEOUT_S:g} s")


_outboxes: dict[tuple[Any, ...], Outbox] = {}


def outbox(bootstrap: str, user: Settings) -> Outbox:
    """Return this process's outbox for a broker and settings."""
    place = (os.getpid(), bootstrap, tuple(sorted(user.items())))
    if place not in _outboxes:
        settings = producer_settings(bootstrap, user, linger_ms=20, batch_size=262_144)
        _outboxes[place] = Outbox(make_producer(settings))
    return _outboxes[place]
