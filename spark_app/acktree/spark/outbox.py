"""A producer per executor process, kept over tasks where Spark re-uses the process.

Invariant: ``settle`` returns only when everything sent is in the broker's log; else the task fails.
"""

import os
from typing import Any

from acktree.producers.outlet import Sending
from acktree.schemas.clients import Settings, producer_settings
from acktree.schemas.ids import EdgeSource

FLUSH_TIMEOUT_S = 120.0


class Outbox(Sending):
    """What a task sends with, and the edges of its tuples."""

    def __init__(self, bootstrap: str, user: Settings) -> None:
        super().__init__(producer_settings(bootstrap, user, linger_ms=20, batch_size=262_144))
        self.edges = EdgeSource()

    def settle(self) -> None:
        """Wait until all is delivered. Raises DeliveryFailed."""
        self.flush(FLUSH_TIMEOUT_S)


_outboxes: dict[tuple[Any, ...], Outbox] = {}


def outbox(bootstrap: str, user: Settings) -> Outbox:
    """Return this process's outbox for a broker and settings."""
    place = (os.getpid(), bootstrap, tuple(sorted(user.items())))
    if place not in _outboxes:
        _outboxes[place] = Outbox(bootstrap, user)
    return _outboxes[place]
