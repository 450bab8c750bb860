"""Makes a worker's reports: the figures of its loop, and of its stall if it does not move.

Invariant: figures are measured by the loop alone. In its place another thread may repeat its last report,
with facts visible from outside: never a lag of 0 that nobody has measured.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict

from acktree.core import world
from acktree.core.reports.liveness import Executing, Liveness
from acktree.core.reports.stall_reports import RoleReports
from acktree.core.reports.stats import Report, Value
from acktree.producers.bolt import Context
from acktree.producers.collecting.collector import Collector
from acktree.producers.collecting.traces import about, named
from acktree.producers.kafka.inputs import Inputs
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import IN_HAND
from acktree.producers.worker.executing.execution import Execution
from acktree.wire.header import first_anchor

log = logging.getLogger("acktree.bolt")


class BoltReports:
    """Makes the reports of one worker."""

    def __init__(
        self,
        context: Context,
        collector: Collector,
        inputs: Inputs,
        execution: Execution,
        progress: Liveness,
    ) -> None:
        self._context = context
        self._collector, self._inputs, self._execution = collector, inputs, execution
        self._held_s, self._measured_s = 0.0, world.monotonic_s()
        self._reports = RoleReports("bolt", context.bolt, context.task, progress)
        collector.fails.on_failed = self._reports.last_error.failed
        progress.executing = self._find_executing
        progress.thread = lambda: execution.thread

    @property
    def newest(self) -> tuple[Report, ...]:
        """The newest report, none or one."""
        return self._reports.newest

    @property
    def stats_topic(self) -> str:
        """Where reports go."""
        return self._context.topology.stats_topic

    def failed(self, reason: str) -> None:
        """Say why something has failed outside of the loop."""
        self._reports.last_error.failed(reason)

    def measure(self, now_s: float) -> None:
        """Add the time that tuples have been in hand since the last call."""
        self._held_s += sum(map(len, self._inputs.hands.values())) * (now_s - self._measured_s)
        self._measured_s = now_s

    def make(self) -> Report:
        """Measure, and return the loop's report; for its own thread."""
        values: dict[str, Value] = {
            **asdict(self._collector.counters),
            "in_hand": len(self._inputs.in_hand()) + len(self._execution.unfinished()),
            "paused": len(self._inputs.back_pressure.paused),
            "partitions": len(self._inputs.places()),
            "lag": self._inputs.lag(),
            "busy_s": round(self._execution.busy_s, 6),
            "process_s": round(self._execution.process_s + self._held_s, 6),
        }
        return self._reports.of_loop(values)

    def make_of_stall(self) -> Report:
        """Return a report in place of a stalled loop, from another thread."""
        return self._reports.of_stall(self._known_now)

    def _known_now(self, values: Mapping[str, Value]) -> dict[str, Value]:
        known = {name: value for name, value in values.items() if name != "lag"}
        known["busy_s"] = round(self._execution.busy_s, 6)
        return known

    def log_never_acked(self) -> None:
        """Log and count the tuples that the bolt neither acked nor failed; they will be read again."""
        held = [tup for tup in self._inputs.in_hand() if tup._state is IN_HAND]
        for tup in held:
            log.warning("%s was never acked", named(tup), extra=about(tup, "never_acked"))
        self._collector.counters.never_acked += len(held)

    def _find_executing(self) -> Executing | None:
        """Return what the bolt executes; for any thread."""
        found = self._execution.executing()
        if found is None:
            return None
        record, anchors = found.first if isinstance(found, TupleBatch) else (found._record, found._anchors)
        root = first_anchor(anchors).root if anchors else None
        return Executing(record.topic() or "", record.partition() or 0, record.offset() or 0, root)
