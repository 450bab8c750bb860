"""The output of a spout written in Python: confirms each record that is in the log.

Invariant: ``delivered`` is called once for each record that the broker has, within this thread's calls,
and never for a record that it rejected. It must not reference the producer: see FirstDeliveryError.
"""

from typing import Any

from confluent_kafka import KafkaError

from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.columns import Delivered
from acktree.producers.kafka.at_least_once import AtLeastOnce


class SpoutOutput(AtLeastOnce):
    """Confirms records one by one; a worker needs to know only that all of them are delivered."""

    def _connect(self) -> None:
        self.settings = {**self.settings, "delivery.report.only.error": False}
        super()._connect()

    def produce_confirmed(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int,
        delivered: Delivered | None,
    ) -> None:
        """Queue a record like ``produce``, and call ``delivered`` when it is in the log."""
        if delivered is None:
            self.produce(topic, value, key, headers, timestamp_ms)
            return
        on_delivery_error = self.delivery_error.on_delivery

        def on_delivery(error: KafkaError | None, record: Any) -> None:
            if error is None:
                delivered()
            else:
                on_delivery_error(error, record)

        self.produce(topic, value, key, headers, timestamp_ms, on_delivery)
