"""The reasons of roots that failed before their init arrived, kept until it does.

Invariant: holds at most the latest MAX_REASONS, each cut to MAX_TEXT characters.
"""

from typing import NamedTuple

from acktree.schemas.batch_codec import AckBatch
from acktree.schemas.control_records import BACK_OFF

MAX_REASONS = 4096
MAX_TEXT = 1000


class Reason(NamedTuple):
    """Who failed a tuple and why, both cut to MAX_TEXT characters, and when its record is emitted again."""

    task: str
    text: str
    retry_after_ms: int = BACK_OFF


UNKNOWN_REASON = Reason("", "failed before its init; the reason was not kept")


def reason_of(batch: AckBatch, row: int) -> Reason:
    """Return the reason of a fail, by its row."""
    return Reason(batch.task(row)[:MAX_TEXT], batch.reason(row)[:MAX_TEXT], int(batch.retries[row]))


class Reasons:
    """Reasons by root."""

    def __init__(self) -> None:
        self._kept: dict[int, Reason] = {}

    def add(self, root: int, reason: Reason) -> None:
        """Keep a reason; at MAX_REASONS the oldest one is dropped."""
        if len(self._kept) >= MAX_REASONS:
            del self._kept[next(iter(self._kept))]
        self._kept[root] = reason

    def pop(self, root: int) -> Reason:
        """Remove and return the reason of a root, UNKNOWN_REASON if it was not kept."""
        return self._kept.pop(root, UNKNOWN_REASON)
