"""What a task did since its start, as its report and its metrics say it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a task did since its start."""

    executed: int = 0
    emitted: int = 0
    unwritable: int = 0
    misuses: int = 0
    acked: int = 0
    failed: int = 0
    set_aside: int = 0
    dropped: int = 0
    never_acked: int = 0

    @property
    def finished(self) -> int:
        """How many tuples went out of hand."""
        return self.acked + self.failed + self.dropped
