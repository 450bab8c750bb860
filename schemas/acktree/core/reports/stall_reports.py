"""Sends the reports of a process: those of its loop, and others in its place while the loop is stalled.

Invariant: they have a separate producer, which no commit waits for, so a report that the broker does not take
holds nothing up. The replacements come from another thread, which the loop does not hold up either.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from acktree.core import world
from acktree.core.kafka.clients import make_producer, wait_until_delivered
from acktree.core.kafka.errors import as_clear_error, is_forbidden
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.core.reports.last_error import LastError
from acktree.core.reports.liveness import Liveness
from acktree.core.reports.stats import STATS_INTERVAL_S, Report, Value
from acktree.wire.errors import AcktreeError

LAST_REPORT_S = 1.0
"""How long a process that ends waits for the broker to take its last report."""
SILENT_AFTER_S = 2 * STATS_INTERVAL_S
"""A turn that has lasted so long keeps its loop from reporting."""

log = logging.getLogger("acktree.stall")


class RoleReports:
    """The reports of one process; ``newest`` is the last one, none or one, for its metrics.

    Figures about a stall are never mixed with those of the loop: they are gone when the loop continues. Every
    report says where the process runs, since when, and its last failure, which ``last_error`` is given.
    """

    def __init__(
        self,
        role: str,
        component: str,
        instance: str,
        progress: Liveness,
        first: Mapping[str, Value] | None = None,
    ) -> None:
        """``first``: figures that are known before the loop has reported any."""
        self._about, self._progress = (role, component, instance), progress
        self._values = first or {}
        self.last_error = LastError()
        self.newest: tuple[Report, ...] = ()

    def of_loop(self, values: Mapping[str, Value]) -> Report:
        """Return what the loop says of itself."""
        self._values = values
        return self._make(values)

    def of_stall(self, correct: Callable[[Mapping[str, Value]], Mapping[str, Value]] = dict) -> Report:
        """Return a report in place of a stalled loop, from another thread.

        ``correct`` takes the loop's last figures, and returns them as they can be known now.
        """
        return self._make({**correct(self._values), **self._progress.figures()})

    def _make(self, values: Mapping[str, Value]) -> Report:
        report = Report(*self._about, world.wall_ms(), {**values, **self.last_error.figures()})
        self.newest = (report,)
        return report


class ReportSender:
    """Sends the reports of one process, and watches its loop from ``start`` to ``stop``."""

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        topic: str,
        progress: Liveness,
        make_report: Callable[[], Report],
    ) -> None:
        """``make_report``: what to report of a stalled loop, on the topic."""
        user = {name: value for name, value in user.items() if not name.startswith("transaction")}
        self._refused: list[KafkaError] = []
        on_delivery = partial(_keep_refusal, self._refused)
        self._settings = {**producer_settings(bootstrap, user), "on_delivery": on_delivery}
        self._bootstrap, self._topic = bootstrap, topic
        self._progress, self._make_report = progress, make_report
        self._producer: Producer | None = None
        self._ended = world.event()
        self._is_logged = False
        self._loop_thread = 0

    def start(self) -> None:
        """Start to watch; called by the thread of the loop."""
        self._producer = make_producer(self._settings)
        self._loop_thread = world.thread_id()
        world.start_thread(self._run, "acktree-stall")

    def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def send(self, report: Report) -> None:
        """Hand a report over to the producer; one that cannot be written is lost.

        Raises:
            NotAuthorized: the broker has forbidden this report or an earlier one: an ACL is missing.
        """
        if self._producer is None:
            return
        try:
            self._producer.produce(self._topic, report.encode(), report.key())
            self._producer.poll(0)
        except (BufferError, KafkaException) as error:
            _keep_refusal(self._refused, error.args[0])
            log.info("action=report_dropped %s", error)
        if self._refused:
            raise as_clear_error(self._refused[0], self._bootstrap, f"topic {self._topic}")

    def send_last(self, report: Report) -> None:
        """Send a report, and wait for at most LAST_REPORT_S until the broker has it."""
        self.send(report)
        if self._producer is not None:
            with suppress(KafkaException):
                wait_until_delivered(self._producer, LAST_REPORT_S)

    def _run(self) -> None:
        while not self._ended.wait(STATS_INTERVAL_S):
            if self._progress.turn_s >= SILENT_AFTER_S:
                with suppress(AcktreeError):  # the loop raises it with its next report
                    self.send(self._make_report())
            if not self._progress.is_stuck:
                self._is_logged = False
            elif not self._is_logged:
                self._log_stuck()

    def _log_stuck(self) -> None:
        """Log once where the loop stands: nobody can ask this process once it is killed."""
        self._is_logged = True
        frame = sys._current_frames().get(self._progress.thread() or self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        about = self._progress.figures()
        log.error("the loop is stalled: %s\n%s", about, stack, extra={"action": "stuck"})


def _keep_refusal(refused: list[KafkaError], error: Any, _record: object = None) -> None:
    """Keep that a report is forbidden; it holds no producer, or one that fails would never be freed."""
    if isinstance(error, KafkaError) and is_forbidden(error):
        refused.append(error)
