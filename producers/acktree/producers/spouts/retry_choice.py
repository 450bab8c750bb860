"""Decides when a failed message is emitted again: never, by the table's back-off, or by a user's function.

Invariant: the decision is None or a delay from 0 to ``max_after_s``. A function that raises, or returns
anything else, is logged, and the back-off takes its place: no message is lost or given up for it.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

from acktree.core.topology.retry_policy import RetryPolicy
from acktree.core.user_code import described
from acktree.producers.errors import BadHandler, shown

Retry = Callable[[int, str], Any]

log = logging.getLogger("acktree.spout")


def find_retry(spout: Any) -> Retry | bool:
    """Return a spout's ``retry``: False, True, or a function of (attempt, reason).

    A function in the class body may have ``self`` as its first argument or not.

    Raises:
        BadHandler: it is anything else.
    """
    found = spout.retry
    if isinstance(found, bool):
        return found
    for function in (found, inspect.getattr_static(spout, "retry")):
        if callable(function) and not inspect.iscoroutinefunction(function) and _takes_two(function):
            checked: Retry = function
            return checked
    raise BadHandler(
        f"{type(spout).__name__}.retry must be True, False, or a function of (attempt, reason) that returns "
        f"seconds or None, not {found!r}"
    )


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(1, "")
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


class RetryChoice:
    """Decides when a failed message of one spout is emitted again."""

    def __init__(self, name: str, retry: Retry | None) -> None:
        """``retry`` is the user's function, None for the back-off; ``name`` is that of the spout in logs."""
        self._name, self._retry = name, retry

    @property
    def is_of_settings(self) -> bool:
        """Return whether the back-off of the topology says it, and no function."""
        return self._retry is None

    def delay_s(self, attempt: int, reason: str, policy: RetryPolicy, jitter: float) -> float | None:
        """Return how long a message waits after its failed attempt, None where it is given up."""
        back_off_s = policy.delay_s(attempt, jitter)
        if self._retry is None:
            return back_off_s
        try:
            said = self._retry(attempt, reason)
        except Exception as error:
            self._log(f"raised {described(error)}", error)
            return back_off_s
        if said is None:
            return None
        is_number = isinstance(said, int | float) and not isinstance(said, bool)
        if is_number and 0 <= said <= policy.max_after_s:  # NaN is neither
            return float(said)
        self._log(
            f"returned {shown(said)}, which is neither None nor a number of seconds from 0 to "
            f"{policy.max_after_s:g}, half of the topology's control_retention_s",
            None,
        )
        return back_off_s

    def _log(self, what: str, error: Exception | None) -> None:
        log.error(
            "retry of spout %s %s; the back-off of the topology is used",
            *(self._name, what),
            exc_info=error,
            extra={"action": "bad_retry"},
        )
