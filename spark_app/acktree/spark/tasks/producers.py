"""Keeps a producer per executor process, over tasks if Spark reuses the process.

Invariant: ``flush_and_commit`` returns only when everything sent is in the broker's log; else the task fails.
"""

from typing import Any, Protocol

from acktree.core.edges import EdgeSource
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.columns import Rows, Unwritten
from acktree.producers.kafka.output import BufferedProducer
from acktree.spark.shared.per_process import PerProcess

FLUSH_TIMEOUT_S = 120.0
LINGER_MS = 20
BATCH_BYTES = 262_144


class TaskOutput(Protocol):
    """The interface that a task writes to."""

    @property
    def edges(self) -> EdgeSource:
        """Where the edges of its tuples come from."""
        ...

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
    ) -> None: ...

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten: ...

    def send(self, topic: str, partition: int, value: bytes) -> None: ...

    def serve(self) -> None: ...

    def flush_tuples(self) -> None:
        """Make tuples sent so far visible no later than what is sent next."""
        ...

    def flush_and_commit(self) -> None:
        """Return when all that was sent is in the log."""
        ...

    def abort(self) -> None:
        """End a task that failed."""
        ...


class TaskProducer(BufferedProducer):
    """A producer without transactions, with the edges of its tuples."""

    def __init__(self, bootstrap: str, user: Settings, **ours: Any) -> None:
        settings = producer_settings(bootstrap, user, linger_ms=LINGER_MS, batch_size=BATCH_BYTES, **ours)
        super().__init__(settings)
        self.edges = EdgeSource()

    def flush_tuples(self) -> None:
        """Wait until the tuples sent so far are in the log. Raises DeliveryFailed."""
        self.flush(FLUSH_TIMEOUT_S)

    def flush_and_commit(self) -> None:
        """Wait until all is delivered. Raises DeliveryFailed."""
        self.flush(FLUSH_TIMEOUT_S)

    def abort(self) -> None:
        """Do nothing: what the failed task has sent stays."""


_kept: PerProcess[TaskProducer] = PerProcess()


def task_producer(bootstrap: str, user: Settings, limits: Settings | None = None) -> TaskProducer:
    """Return this process's producer for a broker and settings; ``limits`` are what topics ask for."""
    settings = {**(limits or {}), **user}
    return _kept.get(lambda: TaskProducer(bootstrap, settings), bootstrap, settings)
