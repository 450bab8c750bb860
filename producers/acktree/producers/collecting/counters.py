"""The counters of a task since its start: their names are those of its reports and metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counts since the start of the task; ``invalid`` is of rejected records."""

    executed: int = 0
    emitted: int = 0
    unwritable: int = 0
    misuses: int = 0
    acked: int = 0
    failed: int = 0
    invalid: int = 0
    dropped: int = 0
    never_acked: int = 0

    @property
    def finished(self) -> int:
        """How many tuples are no longer in hand."""
        return self.acked + self.failed + self.dropped
