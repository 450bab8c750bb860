"""The way out of a spout written in Python: it says which records are in the log.

Invariant: ``delivered`` is called once for each record that the broker has, from within this thread's own
calls, and never for one that it refused. It must not lead to the producer: see FirstRefusal.
"""

from typing import Any

from confluent_kafka import KafkaError

from acktree.producers.collector import UserHeaders
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.native.columns import Delivered


class SpoutOutput(AtLeastOnce):
    """Confirms records one by one; a worker need not know more than that all of them are out."""

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
        """Queue a record as ``produce`` does, and call ``delivered`` when it is in the log."""
        if delivered is None:
            self.produce(topic, value, key, headers, timestamp_ms)
            return
        note_refused = self.refusal.note

        def on_delivery(error: KafkaError | None, record: Any) -> None:
            if error is None:
                delivered()
            else:
                note_refused(error, record)

        self.produce(topic, value, key, headers, timestamp_ms, on_delivery)
