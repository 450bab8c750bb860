"""Watches a topology in one thread, and keeps the newest status for the pages.

Invariant: pages never wait for the broker here; while it is away the last status stays, with its age.
The thread owns its clients; reading changes nothing on the cluster.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaException

from acktree.console.page.serving.history import History, Line, figures_of
from acktree.console.view.cluster import Cluster, Offsets
from acktree.console.view.dead_letter_count import DeadLetterCount
from acktree.console.view.documents import Status
from acktree.console.view.open_transactions import OpenTransactions
from acktree.console.view.report_log import ReportLog
from acktree.console.view.snapshot import Snapshot, read_snapshot
from acktree.console.view.status import make_status
from acktree.core import world
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import Published
from acktree.wire.errors import AcktreeError

INTERVAL_S = 2.0
RATE_SPAN_S = 20.0
BUSY_SHARE = 4
LONGEST_WAIT_S = 5.0

log = logging.getLogger("acktree.ui")

TopicReader = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class PageState:
    """The state that pages show: the newest status, the present error, if any, and the hour before."""

    status: Status | None
    topology: Published | None
    error: str | None
    since_s: float
    lines: Mapping[str, Line] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moved:
    """The positions of every edge at one look, by partition, and the times of the look and of its offsets."""

    began_ms: int
    read_ms: int
    offsets: dict[TopicReader, dict[int, int]]


class Watcher:
    """Keeps one topology's status fresh until stopped."""

    def __init__(self, bootstrap: str, topology: str, user: Settings, interval_s: float = INTERVAL_S) -> None:
        self._bootstrap, self._topology, self._user = bootstrap, topology, user
        self._interval_s = interval_s
        self._report_log = ReportLog()
        self._moved: deque[Moved] = deque()
        self._history, self._lines = History(), dict[str, Line]()
        self._dead_letters, self._transactions = DeadLetterCount(), OpenTransactions()
        self._stopping = world.event()
        self._taken_s = world.monotonic_s()
        self._status: Status | None = None
        self._published: Published | None = None
        self._error: str | None = "the topology has not been read yet"
        self._thread: world.Thread | None = None

    def start(self) -> None:
        self._thread = world.start_thread(self._run, "acktree-ui-watcher")

    def begin_stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self.begin_stop()
        if self._thread is not None:
            self._thread.join(timeout=15)

    def state(self) -> PageState:
        """Return the newest status without waiting."""
        since_s = world.monotonic_s() - self._taken_s
        return PageState(self._status, self._published, self._error, since_s, self._lines)

    def _run(self) -> None:
        cluster: Cluster | None = None
        while not self._stopping.is_set():
            began_s = world.monotonic_s()
            try:
                cluster = cluster or Cluster(self._bootstrap, self._topology, self._user)
                self._refresh(cluster)
            except Exception as error:
                self._error = self._sentence_of(error)
                if cluster is not None:  # an admin client keeps stale leader epochs after a broker's restart
                    cluster.close()
                    cluster = None
            self._stopping.wait(wait_s(world.monotonic_s() - began_s, self._interval_s))
        if cluster is not None:
            cluster.close()

    def _sentence_of(self, error: Exception) -> str:
        """Return what went wrong as a sentence; an unexpected error is also logged."""
        if isinstance(error, AcktreeError):
            return str(error)
        if isinstance(error, KafkaException):
            return str(as_clear_error(error.args[0], self._bootstrap))
        log.error("reading the topology failed", exc_info=error)
        return f"reading the topology failed: {type(error).__name__}; see the log of this process"

    def _refresh(self, cluster: Cluster) -> None:
        began_ms = world.wall_ms()
        snapshot = read_snapshot(cluster, self._dead_letters, self._transactions)
        self._published = snapshot.topology
        reports = self._report_log.read(cluster)
        snapshot.notes += self._report_log.unread()
        status = make_status(snapshot, reports, self._edge_rates(snapshot, began_ms))
        self._history.add(figures_of(status), world.monotonic_s())
        self._status, self._lines = status, self._history.lines()
        self._taken_s, self._error = world.monotonic_s(), None

    def _edge_rates(self, snapshot: Snapshot, began_ms: int) -> dict[TopicReader, float]:
        """Return records a second on every edge, from how far log ends and commits have moved."""
        now = Moved(began_ms, snapshot.time_ms, edge_offsets(snapshot))
        self._moved.append(now)
        while len(self._moved) > 2 and now.read_ms - self._moved[0].began_ms > 1000 * RATE_SPAN_S:
            self._moved.popleft()
        return edge_rates(self._moved, now)


def wait_s(took_s: float, interval_s: float) -> float:
    """Return how long to wait after a look: longer after a long one, but not until its figures are old."""
    return max(interval_s - took_s, min(BUSY_SHARE * took_s - interval_s, LONGEST_WAIT_S), 0.2)


def edge_offsets(snapshot: Snapshot) -> dict[TopicReader, dict[int, int]]:
    """Return offsets by edge and partition: log ends where a topic is written, commits where a bolt reads."""
    ends: Offsets = snapshot.ends
    offsets: dict[TopicReader, dict[int, int]] = {}
    for (topic, partition), end in ends.items():
        offsets.setdefault((topic, None), {})[partition] = end
    for bolt, commits in snapshot.bolt_commits.items():
        for (topic, partition), committed in commits.items():
            offsets.setdefault((topic, bolt), {})[partition] = committed.next_offset
    return offsets


def edge_rates(earlier: Iterable[Moved], now: Moved) -> dict[TopicReader, float]:
    """Return records a second by edge, since the earliest look that saw the same partitions of the same log.

    How far a partition moved is unknown if it appeared, or went back as that of a recreated topic: an edge
    has no rate until a look has seen it so. The time runs from before the one look to after the other,
    so a slow broker makes no rate higher than it was.
    """
    rates: dict[TopicReader, float] = {}
    for edge, offsets in now.offsets.items():
        for look in earlier:
            before = look.offsets.get(edge, {})
            seconds = (now.read_ms - look.began_ms) / 1000
            if look is now or seconds < 1.0:
                break
            if before.keys() == offsets.keys() and all(before[p] <= offsets[p] for p in offsets):
                rates[edge] = sum(offsets[p] - before[p] for p in offsets) / seconds
                break
    return rates
