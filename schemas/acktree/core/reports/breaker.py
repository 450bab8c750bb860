"""A circuit breaker over the results of a spout's trees: stops new records while most of them fail. Pure.

Invariants: while it is open only probes are emitted, and nothing is given up. A record that used up its
attempts while it was closed is given up only after a whole window in which it did not open. A new process
begins closed, and gives up nothing before a whole window. Times are seconds of one monotonic clock, in
order.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from acktree.core.topology.registry import Published

BUCKETS = 20
"""The window moves in steps of a twentieth of it."""
MIN_PROBE_S = 1.0
"""The first probe waits at least so long, whatever the back-off of the spout."""
MAX_PROBES = 1_000
"""So many probes without a result are remembered, the newest."""
LAST_FAILURES = 100

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """The conditions under which a spout's breaker opens, and when it probes; the default is never."""

    max_ratio: float | None = None
    window_s: float = 60.0
    min_results: int = 20
    max_consecutive: int | None = None
    probe_initial_s: float = MIN_PROBE_S
    probe_max_s: float = 60.0

    @property
    def is_on(self) -> bool:
        return self.max_ratio is not None or self.max_consecutive is not None


def breaker_policy(published: Published, spout: str) -> BreakerPolicy:
    """Return the breaker of a spout in a version: probes have the back-off of its retries."""
    table = published.spouts[spout]
    initial_s = max(MIN_PROBE_S, table.retry_initial_s)
    return BreakerPolicy(
        table.max_failure_ratio,
        table.failure_window_s,
        table.failure_min_results,
        table.max_consecutive_failures,
        initial_s,
        max(initial_s, table.retry_max_s),
    )


class Opening(NamedTuple):
    """The opening of a breaker: since when, why, and the most frequent of the latest failures."""

    at_s: float
    why: str
    task: str
    reason: str


class Breaker:
    """The breaker of one process of a spout.

    >>> breaker = Breaker(BreakerPolicy(max_consecutive=2))
    >>> breaker.failed(0.0, "count@vm:1", "ValueError: x"), breaker.failed(0.1, "count@vm:1", "ValueError: y")
    (False, True)
    >>> breaker.opening.why, breaker.opening.task, breaker.is_probe_due(1.0), breaker.is_probe_due(1.1)
    ('2 failures in a row', 'count@vm:1', False, True)
    """

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self.policy = policy or BreakerPolicy()
        self.opening: Opening | None = None
        self.openings = self.probes_sent = 0
        self.probes: dict[Hashable, None] = {}
        """The probes without a result, the newest last."""
        self._streak = 0
        self._buckets: deque[tuple[float, list[int]]] = deque()
        self._counts = [0, 0]
        self._last: deque[tuple[str, str]] = deque(maxlen=LAST_FAILURES)
        self._probe_delay_s, self._next_probe_s = 0.0, 0.0
        self._closed_s = -float("inf")

    @property
    def is_open(self) -> bool:
        return self.opening is not None

    def follow(self, policy: BreakerPolicy, now_s: float) -> None:
        """Use another policy; one that is off closes it."""
        self.policy = policy
        if not policy.is_on:
            self.close(now_s)

    def acked(self, count: int, now_s: float) -> None:
        """Record trees that are done; of what was emitted before it opened they say nothing."""
        if count and self.policy.is_on and not self.is_open:
            self._streak = 0
            self._add(0, count, now_s)

    def failed(self, now_s: float, task: str, reason: str) -> bool:
        """Record a tree that failed or timed out; return whether it has opened by that."""
        if not self.policy.is_on or self.is_open:
            return False
        self._streak += 1
        self._add(1, 1, now_s)
        self._last.append((task, reason))
        return self.check(now_s)

    def _add(self, kind: int, count: int, now_s: float) -> None:
        if not self._buckets or now_s - self._buckets[-1][0] >= self.policy.window_s / BUCKETS:
            self._buckets.append((now_s, [0, 0]))
        self._buckets[-1][1][kind] += count
        self._counts[kind] += count

    def _expire(self, now_s: float) -> None:
        """Forget the buckets that began before the window."""
        while self._buckets and self._buckets[0][0] <= now_s - self.policy.window_s:
            _, counts = self._buckets.popleft()
            self._counts = [self._counts[0] - counts[0], self._counts[1] - counts[1]]

    def check(self, now_s: float) -> bool:
        """Open if the results up to now say so; return whether it has opened."""
        policy = self.policy
        if not policy.is_on or self.is_open:
            return False
        if policy.max_consecutive is not None and self._streak >= policy.max_consecutive:
            self._open(now_s, f"{self._streak} failures in a row")
        elif policy.max_ratio is not None:
            self._expire(now_s)
            acked, failed = self._counts
            results = acked + failed
            if failed and results >= policy.min_results and failed > policy.max_ratio * results:
                self._open(now_s, f"{failed} of {results} results within {policy.window_s:g} s were failures")
        return self.is_open

    def _open(self, now_s: float, why: str) -> None:
        kinds = Counter(_kind(*each) for each in self._last)
        (usual, _), *_ = kinds.most_common(1) or [(("", ""), 0)]
        task, reason = next((each for each in reversed(self._last) if _kind(*each) == usual), ("", ""))
        self.opening = Opening(now_s, why, task, reason)
        self.openings += 1
        if now_s - self._closed_s > self.policy.window_s or not self._probe_delay_s:
            self._probe_delay_s = self.policy.probe_initial_s  # else it was closed too early
        self._next_probe_s = now_s + self._probe_delay_s

    def close(self, now_s: float) -> None:
        """Close it: by a probe's ack, by an operator, or because it is switched off."""
        if self.is_open:
            self._closed_s = now_s
        self.opening, self._streak, self._counts = None, 0, [0, 0]
        self._buckets.clear()
        self._last.clear()
        self.probes.clear()

    def is_probe_due(self, now_s: float) -> bool:
        """Return whether it is open and a probe may be emitted."""
        return self.is_open and now_s >= self._next_probe_s

    def probed(self, probes: Iterable[Hashable], now_s: float) -> None:
        """Record that probes are emitted; the next ones are due after the back-off."""
        self.probes.update(dict.fromkeys(probes))
        while len(self.probes) > MAX_PROBES:
            del self.probes[next(iter(self.probes))]
        self.probes_sent += 1
        self._next_probe_s = now_s + self._probe_delay_s
        self._probe_delay_s = min(2 * self._probe_delay_s, self.policy.probe_max_s)


def _kind(task: str, reason: str) -> tuple[str, str]:
    """Return the bolt and the exception of a failure, as far as a reason names one."""
    return task.partition("@")[0], reason.partition(":")[0]


class Held(Generic[Entry]):
    """Holds failures that used up their attempts, or were rejected, until the breaker's window has passed."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, Entry]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry, now_s: float) -> None:
        self._entries.append((now_s, entry))

    def pop_over(self, breaker: Breaker, now_s: float) -> list[Entry]:
        """Return what is given up: the window has passed and the breaker is closed. Call ``check`` before.

        Without a breaker that is everything.
        """
        assert not breaker.is_open, "nothing is given up while it is open"
        # A step longer than the window: then no result from before the failure is counted any more.
        wait_s = breaker.policy.window_s * (1 + 1 / BUCKETS) if breaker.policy.is_on else -1.0
        over = []
        while self._entries and self._entries[0][0] + wait_s < now_s:
            over.append(self._entries.popleft()[1])
        return over

    def pop_all(self) -> list[Entry]:
        """Return everything: the breaker is open, so all of it is emitted again."""
        entries = [entry for _, entry in self._entries]
        self._entries.clear()
        return entries
