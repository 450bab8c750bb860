"""Drives a spout in Spark, like any spout that reads topics, except that its reports name Spark.

Invariant: an orderly stop shows in the driver's last report or in one of the application, because Spark kills
the process of a driver without warning. A stage in Python that takes the spout over need not wait then.
"""

from contextlib import suppress

from confluent_kafka import KafkaException

from acktree.core import world
from acktree.core.reports.stall_reports import LAST_REPORT_S
from acktree.core.reports.stats import DRIVER, ENGINE, SPARK, STOPPED, Report
from acktree.core.topology.file import stats_topic
from acktree.producers.spouts.driver.reports.reporter import Reporter
from acktree.producers.spouts.driver.spout_driver import SpoutDriver
from acktree.spark.shared.options import SourceOptions
from acktree.wire.errors import AcktreeError


class SparkSpoutDriver(SpoutDriver):
    """The driver of a spout for one streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        """See SpoutDriver."""
        super().__init__(options)
        self._reporter.last_error.add(**{ENGINE: SPARK})

    def close(self) -> None:
        """Commit what is done, report that it stops, and close the connections."""
        self._reporter.last_error.add(**{STOPPED: 1})
        super().close()


def report_stop(options: SourceOptions) -> None:
    """Report that the query of a spout has stopped; waits for at most LAST_REPORT_S, and lost is lost."""
    instance = f"{options.spout}@{world.process_name()}"
    report = Report(DRIVER, options.spout, instance, world.wall_ms(), {ENGINE: SPARK, STOPPED: 1})
    with suppress(AcktreeError, KafkaException):
        reporter = Reporter(options)
        reporter.send(stats_topic(options.topology), [report])
        reporter.flush(LAST_REPORT_S)
