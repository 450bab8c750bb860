"""Reports in place of a loop that stands still, and a line in the log when it is stuck.

Invariant: they come from a thread and a producer of their own, so nothing that holds the loop up holds them
up. While the loop moves, this thread sends nothing.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping

from confluent_kafka import Producer

from acktree.schemas import world
from acktree.schemas.client_settings import Settings, producer_settings
from acktree.schemas.clients import make_producer
from acktree.schemas.last_error import LastError
from acktree.schemas.progress import Progress
from acktree.schemas.stats import STATS_INTERVAL_S, Report, Value

SILENT_AFTER_S = 2 * STATS_INTERVAL_S
"""A turn that has lasted so long keeps its loop from reporting."""

log = logging.getLogger("acktree.standstill")


class RoleReports:
    """The reports of one process; ``newest`` is the last one, none or one, for its metrics.

    What a standstill adds is never taken for a figure of the loop: it is gone when the loop goes on. Every
    report says where the process runs, since when, and its last failure, which ``last_error`` is given.
    """

    def __init__(
        self,
        role: str,
        component: str,
        instance: str,
        progress: Progress,
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

    def of_standstill(self, correct: Callable[[Mapping[str, Value]], Mapping[str, Value]] = dict) -> Report:
        """Return a report in place of a loop that stands still, from another thread.

        ``correct`` takes the loop's last figures, and returns them as they can be known now.
        """
        return self._make({**correct(self._values), **self._progress.figures()})

    def _make(self, values: Mapping[str, Value]) -> Report:
        report = Report(*self._about, world.wall_ms(), {**values, **self.last_error.figures()})
        self.newest = (report,)
        return report


class StandstillReports:
    """Reports for one loop, from ``start`` to ``stop``."""

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        topic: str,
        progress: Progress,
        make_report: Callable[[], Report],
    ) -> None:
        """``make_report``: what to report of a loop that stands still, on the topic."""
        user = {name: value for name, value in user.items() if not name.startswith("transaction")}
        self._settings = producer_settings(bootstrap, user)
        self._topic, self._progress, self._make_report = topic, progress, make_report
        self._producer: Producer | None = None
        self._ended = world.event()
        self._is_logged = False
        self._loop_thread = 0

    def start(self) -> None:
        """Start to watch; called by the thread of the loop."""
        self._loop_thread = world.thread_id()
        world.start_thread(self._run, "acktree-standstill")

    def stop(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(STATS_INTERVAL_S):
            if self._producer is not None:
                self._producer.poll(0)
            if self._progress.turn_s >= SILENT_AFTER_S:
                self._send()
            if not self._progress.is_stuck:
                self._is_logged = False
            elif not self._is_logged:
                self._log_stuck()

    def _send(self) -> None:
        if self._producer is None:
            self._producer = make_producer(self._settings)
        report = self._make_report()
        try:
            self._producer.produce(self._topic, report.encode(), report.key())
        except BufferError:
            log.info("action=report_dropped")

    def _log_stuck(self) -> None:
        """Log once where the loop stands: nobody can ask this process once it is killed."""
        self._is_logged = True
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        about = self._progress.figures()
        log.error("the loop stands still: %s\n%s", about, stack, extra={"action": "stuck"})
