"""When the source record of a failed tuple is emitted again: as the bolt says, or after its spout's back-off.

Invariant: the result is BACK_OFF, NEVER, or a delay in milliseconds of at most half of the control
records' retention; anything else that a bolt says is refused.
"""

import math
from typing import Any

from acktree.core.topology.registry import History
from acktree.producers.errors import InvalidRetry, Reject, RetryLater, shown
from acktree.wire.control_records import BACK_OFF, NEVER


class RetryRules:
    """Rules of one bolt; ``never`` are the classes of exceptions after which nothing is tried again."""

    def __init__(self, history: History) -> None:
        self.never: tuple[type[Exception], ...] = ()
        self._history = history

    @property
    def max_after_s(self) -> float:
        """Return the longest delay: control records must outlive it and an outage as long as it."""
        return self._history.latest.control_retention_s / 2

    def of_call(self, retry: Any, after_s: Any) -> int:
        """Return what ``fail(…, retry=…, retry_after_s=…)`` asks for. Raises InvalidRetry."""
        if not isinstance(retry, bool):
            raise InvalidRetry(f"retry must be True or False, not {shown(retry)}")
        if after_s is None:
            return BACK_OFF if retry else NEVER
        if not retry:
            raise InvalidRetry(
                f"retry_after_s={shown(after_s)} and retry=False contradict each other: set only one"
            )
        return self._delay_ms(after_s)

    def of_error(self, error: BaseException) -> int:
        """Return what an exception asks for that a bolt has raised. Raises InvalidRetry."""
        if isinstance(error, RetryLater):
            return self._delay_ms(error.after_s)
        return NEVER if isinstance(error, (Reject, *self.never)) else BACK_OFF

    def _delay_ms(self, after_s: Any) -> int:
        is_number = isinstance(after_s, int | float) and not isinstance(after_s, bool)
        if not is_number or not 0 <= after_s <= self.max_after_s:
            raise InvalidRetry(
                f"retry_after_s must be a number of seconds from 0 to {self.max_after_s:g}, half of the "
                f"topology's control_retention_s, not {shown(after_s)}"
            )
        return math.ceil(float(after_s) * 1000)
