"""Enforces the time limit of ``execute`` from the worker's loop: the tuple fails, the others continue.

Invariant: time counts only while the loop runs and waits for no broker, so a suspended process or a
missing broker does not use up a tuple's limit. A thread that does not come back after its tuple has failed
ends the process.
"""

import logging
import sys
import traceback

from acktree.core import world
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.traces import named
from acktree.producers.errors import ExecuteHangs
from acktree.producers.tuple_batch import TupleBatch
from acktree.producers.tuples import Tuple
from acktree.producers.worker.executing.execution import Execution, tuples_of

MAX_GRACE_S = 30.0
"""How long a thread may take at most to come back after its tuple has failed."""
MAX_GAP_S = 5.0
"""Between two checks that are further apart, the process did not run."""

log = logging.getLogger("acktree.bolt")

_ACTION = {"action": "execute_timeout"}


class ExecuteLimit:
    """The limit of one worker; 0 is none."""

    def __init__(self, limit_s: float, execution: Execution, progress: Liveness) -> None:
        self.limit_s, self._execution, self._progress = limit_s, execution, progress
        self._seen: Tuple | TupleBatch | None = None
        self._since_s, self._checked_s = 0.0, world.monotonic_s()
        self._has_failed = False

    def check(self) -> None:
        """Fail what is executed for longer than the limit. Raises ExecuteHangs: it does not come back."""
        now_s, executing = world.monotonic_s(), self._execution.executing()
        if now_s - self._checked_s > MAX_GAP_S:
            self._since_s += now_s - self._checked_s
        self._checked_s = now_s
        self._execution.cut_off(self.limit_s, reason_for(self.limit_s))
        if executing is None or executing is not self._seen:
            self._seen, self._since_s, self._has_failed = executing, now_s, False
            return
        took_s = min(now_s - self._since_s, self._progress.stalled_s)
        if not self._has_failed and took_s >= self.limit_s:
            self._has_failed = True
            self._fail(executing)
        elif self._has_failed and took_s >= self.limit_s + min(self.limit_s, MAX_GRACE_S):
            about = named(tuples_of(executing)[0])
            raise ExecuteHangs(
                f"execute of {about} did not return although its tuple failed after execute_timeout_s = "
                f"{self.limit_s:g}; its thread ends with this process"
            )

    def _fail(self, executing: Tuple | TupleBatch) -> None:
        stack, tuples = stack_of_thread(self._execution.thread), tuples_of(executing)
        reason = reason_for(self.limit_s)
        text = "%d tuples, first %s: %s; the thread is at\n%s"
        log.error(text, len(tuples), named(tuples[0]), reason, stack, extra=_ACTION)
        self._execution.fail_executing(executing, reason, stack)


def reason_for(limit_s: float) -> str:
    """Return the reason with which such a tuple fails."""
    return f"execute took longer than execute_timeout_s = {limit_s:g}"


def stack_of_thread(thread_id: int | None) -> str:
    """Return where a thread stands; "" if it runs no more."""
    frame = sys._current_frames().get(thread_id or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
