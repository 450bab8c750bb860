"""Records the outcomes of the messages of a Python spout's task, over all its processes.

Invariant: a result is recorded before the spout is notified.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from acktree.producers.collecting.arithmetic.pending import Message
from acktree.producers.spout import Failure, Spout
from acktree.testing.results import FailedRecord


@dataclass
class Messages:
    """Message ids in the order of their results."""

    acked: list[Hashable] = field(default_factory=list)
    failed: list[FailedRecord] = field(default_factory=list)
    exhausted: list[Hashable] = field(default_factory=list)

    def watch(self, spout: Spout) -> None:
        """Record what a spout is told from now on."""
        told: Any = spout
        if not getattr(spout.ack, "is_watched", False):
            told.ack = _recorded(self._record_ack, spout.ack)
            told.fail = _recorded(self._record_failure, spout.fail)
            told.attempt_failed = _recorded(self._record_failure, spout.attempt_failed)
            told.gave_up = _recorded(self._record_end, spout.gave_up)

    def _record_ack(self, message: Message) -> None:
        self.acked.append(message.id)

    def _record_failure(self, message: Message, failure: Failure) -> None:
        found = FailedRecord(message.id, *failure, failure.retry, failure.retry_after_s)
        self.failed.append(found)

    def _record_end(self, message: Message, failure: Failure) -> None:
        self.exhausted.append(message.id)


def _recorded(record: Callable[..., None], tell: Callable[..., None]) -> Callable[..., None]:
    def told(message: Message, *failure: Failure) -> None:
        record(message, *failure)
        tell(message, *failure)

    told.is_watched = True  # type: ignore[attr-defined]
    return told
