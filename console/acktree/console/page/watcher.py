"""Looks at the topology again and again, in one thread, and keeps the newest status for the pages.

Invariant: pages never wait for the broker here; while it is away the last status stays and says since when.
The thread owns its clients; reading changes nothing on the cluster.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaException

from acktree.console.view.cluster import Cluster, Offsets
from acktree.console.view.documents import Status
from acktree.console.view.reports import Reports
from acktree.console.view.snapshot import Snapshot, read_reports, read_snapshot
from acktree.console.view.status import make_status
from acktree.schemas.client_settings import Settings
from acktree.schemas.errors import AcktreeError
from acktree.schemas.kafka_errors import as_clear_error
from acktree.schemas.registry import Published

INTERVAL_S = 2.0
HISTORY_S = 90_000.0
RATE_SPAN_S = 20.0
BUSY_SHARE = 4

log = logging.getLogger("acktree.ui")

TopicReader = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class PageState:
    """What the pages show: the newest status, and what is wrong now, if anything is."""

    status: Status | None
    topology: Published | None
    error: str | None
    since_s: float


class Watcher:
    """Keeps one topology's status fresh until stopped."""

    def __init__(self, bootstrap: str, topology: str, user: Settings, interval_s: float = INTERVAL_S) -> None:
        self._bootstrap, self._topology, self._user = bootstrap, topology, user
        self._interval_s = interval_s
        self._reports = Reports()
        self._offsets: deque[tuple[float, dict[TopicReader, int]]] = deque()
        self._stopping = threading.Event()
        self._taken_s = time.monotonic()
        self._status: Status | None = None
        self._published: Published | None = None
        self._error: str | None = "the topology was not read yet"
        self._thread = threading.Thread(target=self._run, name="acktree-ui-watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        self._thread.join(timeout=15)

    def state(self) -> PageState:
        """Return the newest status without waiting."""
        return PageState(self._status, self._published, self._error, time.monotonic() - self._taken_s)

    def _run(self) -> None:
        cluster: Cluster | None = None
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                cluster = cluster or Cluster(self._bootstrap, self._topology, self._user)
                self._refresh(cluster)
            except Exception as error:
                self._error = self._sentence_of(error)
                if cluster is not None:  # an admin client keeps stale leader epochs after a broker's restart
                    cluster.close()
                    cluster = None
            took_s = time.monotonic() - began_s
            self._stopping.wait(max(self._interval_s - took_s, BUSY_SHARE * took_s - self._interval_s, 0.2))
        if cluster is not None:
            cluster.close()

    def _sentence_of(self, error: Exception) -> str:
        """Return what went wrong as a sentence; what nobody expected goes to the log, too."""
        if isinstance(error, AcktreeError):
            return str(error)
        if isinstance(error, KafkaException):
            return str(as_clear_error(error.args[0], self._bootstrap))
        log.error("reading the topology failed", exc_info=error)
        return f"reading the topology failed: {type(error).__name__}; see the log of this process"

    def _refresh(self, cluster: Cluster) -> None:
        snapshot = read_snapshot(cluster)
        self._published = snapshot.topology
        if not self._reports.next_offset:
            self._status = make_status(snapshot, self._reports)
            self._taken_s, self._error = time.monotonic(), None
        read_reports(cluster, self._reports, HISTORY_S)
        self._status = make_status(snapshot, self._reports, self._edge_rates(snapshot))
        self._taken_s, self._error = time.monotonic(), None

    def _edge_rates(self, snapshot: Snapshot) -> Mapping[TopicReader, float]:
        """Return records a second on every edge, from how far log ends and commits have moved."""
        now_s = time.monotonic()
        totals = edge_totals(snapshot)
        self._offsets.append((now_s, totals))
        while len(self._offsets) > 2 and now_s - self._offsets[0][0] > RATE_SPAN_S:
            self._offsets.popleft()
        before_s, before = self._offsets[0]
        if now_s - before_s < 1.0:
            return {}
        return {
            edge: max(0, total - before[edge]) / (now_s - before_s)
            for edge, total in totals.items()
            if edge in before
        }


def edge_totals(snapshot: Snapshot) -> dict[TopicReader, int]:
    """Return the sum of offsets by edge: log ends where a topic is written, commits where a bolt reads it."""
    ends: Offsets = snapshot.ends
    totals: dict[TopicReader, int] = {}
    for (topic, _), end in ends.items():
        totals[topic, None] = totals.get((topic, None), 0) + end
    for bolt, commits in snapshot.bolt_commits.items():
        for (topic, _), committed in commits.items():
            totals[topic, bolt] = totals.get((topic, bolt), 0) + committed.next_offset
    return totals
