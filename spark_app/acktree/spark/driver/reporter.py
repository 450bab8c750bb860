"""What a driver tells people of itself, on ``T.stats``."""

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaError

from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    as_clear_error,
    clear_errors,
    is_forbidden,
    make_producer,
    producer_settings,
)
from acktree.schemas.stats import Report
from acktree.spark.options import SourceOptions

log = logging.getLogger("acktree.spark")


class Reporter:
    """Writes reports: one may get lost, but not be forbidden, for then rights are missing."""

    def __init__(self, options: SourceOptions) -> None:
        self._bootstrap = options.bootstrap
        self._refused: KafkaError | None = None
        self.latest: Sequence[Report] = ()
        settings = producer_settings(options.bootstrap, options.kafka)
        self.producer = make_producer({**settings, "on_delivery": self._on_delivery})

    def _on_delivery(self, error: KafkaError | None, _report: object) -> None:
        if is_forbidden(error):
            self._refused = error

    def send(self, topic: str, reports: Sequence[Report]) -> None:
        """Hand reports over to the producer.

        Raises:
            NotAuthorized: the broker forbids it; librdkafka knows that at once where it was told before.
        """
        self.latest = reports
        try:
            with clear_errors(self._bootstrap, f"topic {topic}"):
                for report in reports:
                    self.producer.produce(topic, report.encode(), report.key())
        except BufferError:
            log.info("action=report_dropped")
        self.producer.poll(0)

    def check(self) -> None:
        """Raise NotAuthorized if the broker forbade a report that was sent."""
        if self._refused is not None:
            raise as_clear_error(self._refused, self._bootstrap)

    def flush(self) -> None:
        """Wait until all is with the broker, up to BROKER_TIMEOUT_S."""
        self.producer.flush(BROKER_TIMEOUT_S)
