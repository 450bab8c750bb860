"""Sends a driver's reports to ``T.stats``, by the producer that also writes its dead letters."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_producer, wait_until_delivered
from acktree.core.kafka.errors import as_clear_error, clear_errors, is_forbidden
from acktree.core.kafka.settings import ANY_SIZE, producer_settings
from acktree.core.reports.last_error import LastError
from acktree.core.reports.stats import STARTING, STATS_INTERVAL_S, Report
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.wire.errors import AcktreeError

FIRST_REPORT_S = 2.0
"""How long a driver that starts waits for its first report, to know the broker's clock."""
CLOCK_REPORTS = 100
"""How many of the newest reports say how far the broker's clock is off."""

log = logging.getLogger("acktree.spark")


class Reporter:
    """Writes reports: a lost one is ignored, a forbidden one is an error, because an ACL is missing."""

    def __init__(self, options: SpoutOptions) -> None:
        self._bootstrap = options.bootstrap
        self._refused: KafkaError | None = None
        self._ahead_s: deque[float] = deque(maxlen=CLOCK_REPORTS)
        self.latest: Sequence[Report] = ()
        self.last_error = LastError()
        user = {**options.kafka, **ANY_SIZE}
        settings = producer_settings(options.bootstrap, user, delivery_report_only_error=False)
        self.producer = make_producer({**settings, "on_delivery": self._on_delivery})

    def _on_delivery(self, error: KafkaError | None, report: Message) -> None:
        if is_forbidden(error):
            self._refused = error
        kind, append_ms = report.timestamp()
        if error is None and kind == TIMESTAMP_LOG_APPEND_TIME:
            self._ahead_s.append(world.wall_s() - append_ms / 1000)

    @property
    def clock_ahead_s(self) -> float | None:
        """At most so far this machine's clock is ahead of the broker's; negative: behind, None: not known.

        It is the time from a report's append to its delivery, by both clocks, at its shortest.
        """
        return min(self._ahead_s, default=None)

    def send(self, topic: str, reports: Sequence[Report]) -> None:
        """Hand reports over to the producer, with what is known of this process.

        Raises:
            NotAuthorized: the broker forbids it; raised immediately if it has done so before.
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
        """Serve delivery reports. Raises NotAuthorized: the broker forbade a report that was sent."""
        self.producer.poll(0)
        if self._refused is not None:
            raise as_clear_error(self._refused, self._bootstrap)

    def flush(self, timeout_s: float = BROKER_TIMEOUT_S) -> None:
        """Wait until the broker has all reports, up to a time."""
        wait_until_delivered(self.producer, timeout_s)


@contextmanager
def reports_of_start(options: SpoutOptions, topic: str) -> Iterator[None]:
    """Report that a component is starting until the block ends: Spark takes its time before a driver can."""
    role = "spout" if options.spout else "bolt"
    instance = f"{options.component}@{world.process_name()}"
    reporter, ended = Reporter(options), world.event()

    def run() -> None:
        while True:
            report = Report(role, options.component, instance, world.wall_ms(), {STARTING: 1})
            with suppress(AcktreeError):  # the driver's own reports say what is wrong
                reporter.send(topic, [report])
            if ended.wait(STATS_INTERVAL_S):
                return

    thread = world.start_thread(run, "acktree-starting")
    try:
        yield
    finally:
        ended.set()
        thread.join()
