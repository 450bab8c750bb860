"""The reports of a driver on ``T.stats``."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from confluent_kafka import KafkaError

from acktree.schemas.client_settings import producer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_producer
from acktree.schemas.kafka_errors import as_clear_error, clear_errors, is_forbidden
from acktree.schemas.last_error import LastError
from acktree.schemas.stats import Report
from acktree.spark.shared.options import SourceOptions

log = logging.getLogger("acktree.spark")


class Reporter:
    """Writes reports: a lost one is ignored, a forbidden one is an error, because an ACL is missing."""

    def __init__(self, options: SourceOptions) -> None:
        self._bootstrap = options.bootstrap
        self._refused: KafkaError | None = None
        self.latest: Sequence[Report] = ()
        self.last_error = LastError()
        settings = producer_settings(options.bootstrap, options.kafka)
        self.producer = make_producer({**settings, "on_delivery": self._on_delivery})

    def _on_delivery(self, error: KafkaError | None, _report: object) -> None:
        if is_forbidden(error):
            self._refused = error

    def send(self, topic: str, reports: Sequence[Report]) -> None:
        """Hand reports over to the producer, with what is known of this process.

        Raises:
            NotAuthorized: the broker forbids it; raised at once if the broker has said so before.
        """
        facts = self.last_error.figures()
        reports = [replace(report, values={**report.values, **facts}) for report in reports]
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
        """Wait until the broker has all reports, up to BROKER_TIMEOUT_S."""
        self.producer.flush(BROKER_TIMEOUT_S)
