"""Keeps the reasons of roots that failed before their init arrived, until it does.

Invariant: holds at most the latest MAX_REASONS, each cut to MAX_TEXT characters, and at most MAX_STACKS
characters of stack traces: a reason beyond these is kept without its stack.
"""

from typing import NamedTuple

from acktree.wire.batch_codec import AckBatch
from acktree.wire.control_records import BACK_OFF, FailedTuple, stack_of

MAX_REASONS = 4096
MAX_TEXT = 1000
MAX_TOPIC = 249
MAX_STACK = 4096
"""A stack trace is cut to its last MAX_STACK characters; workers send no longer ones."""
MAX_STACKS = 1 << 20


class Reason(NamedTuple):
    """A fail's task, tuple and reason, cut to their limits, and when its record is emitted again."""

    task: str
    text: str
    retry_after_ms: int = BACK_OFF
    failed_tuple: FailedTuple | None = None

    @property
    def stack(self) -> str:
        """The stack trace, "" if there is none."""
        return stack_of(self.failed_tuple)

    def without_stack(self) -> "Reason":
        """Return the reason without its stack trace."""
        failed = self.failed_tuple
        return self if failed is None else self._replace(failed_tuple=failed._replace(stack=""))


UNKNOWN_REASON = Reason("", "failed before its init; the reason was not kept")


def reason_of(batch: AckBatch, row: int) -> Reason:
    """Return the reason of a fail, by its row."""
    failed = batch.failed_tuple(row)
    if failed is not None:
        failed = failed._replace(topic=failed.topic[:MAX_TOPIC], stack=failed.stack[-MAX_STACK:])
    return Reason(batch.task(row)[:MAX_TEXT], batch.reason(row)[:MAX_TEXT], int(batch.retries[row]), failed)


class Reasons:
    """Keeps reasons by root."""

    def __init__(self) -> None:
        self._kept: dict[int, Reason] = {}
        self._stacks = 0

    def add(self, root: int, reason: Reason) -> None:
        """Keep a reason; at MAX_REASONS the oldest one is dropped, at MAX_STACKS the reason's stack is."""
        if len(self._kept) >= MAX_REASONS:
            self.pop(next(iter(self._kept)))
        if self._stacks + len(reason.stack) > MAX_STACKS:
            reason = reason.without_stack()
        self.pop(root)
        self._kept[root] = reason
        self._stacks += len(reason.stack)

    def pop(self, root: int) -> Reason:
        """Remove and return the reason of a root, UNKNOWN_REASON if it was not kept."""
        reason = self._kept.pop(root, UNKNOWN_REASON)
        self._stacks -= len(reason.stack)
        return reason
