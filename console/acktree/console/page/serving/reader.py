"""Lends clients for reads on demand: one reader at a time, recreated after an error.

Invariant: visitors take turns, so the broker never sees more than one reader, whatever the load on the page.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from acktree.console.view.cluster import Cluster
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.settings import Settings

WAIT_S = 30.0


class SharedCluster:
    """Lends one cluster connection."""

    def __init__(self, bootstrap: str, topology: str, user: Settings) -> None:
        self._bootstrap, self._topology, self._user = bootstrap, topology, user
        self._turn = threading.Lock()
        self._cluster: Cluster | None = None

    @contextmanager
    def cluster(self) -> Iterator[Cluster]:
        """Lend the connection.

        Raises:
            BrokerUnreachable: no broker answers, or others have been reading for WAIT_S.
            UnknownTopology: see its docstring.
        """
        if not self._turn.acquire(timeout=WAIT_S):
            raise BrokerUnreachable(f"other pages have been reading for {WAIT_S:g} s")
        try:
            self._cluster = self._cluster or Cluster(self._bootstrap, self._topology, self._user)
            yield self._cluster
        except (BrokerUnreachable, BrokerRefused):
            self._disconnect()
            raise
        finally:
            self._turn.release()

    def _disconnect(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def close(self) -> None:
        """Close the connection."""
        with self._turn:
            self._disconnect()
