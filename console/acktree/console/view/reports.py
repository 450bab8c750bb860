"""Keeps what processes report on ``T.stats``: the latest of each, and counts by windows of time. Pure.

Invariant: invalid reports are counted, and change nothing. Totals that restart (a process started under its
old name) continue where they were. Memory is bounded per process: samples get sparser with age.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from acktree.core.reports.stats import STARTING, STATS_INTERVAL_S, Report, decode_report
from acktree.wire.errors import MalformedRecord

SILENT_AFTER_S = 10 * STATS_INTERVAL_S
RATE_WINDOW_S = 20.0
MIN_RATE_SPAN_S = STATS_INTERVAL_S / 2
MAX_PROCESSES = 2_000
THIN_EACH = 64
NUMBER = (int, float)
WINDOWS_S: Mapping[str, float | None] = {"10m": 600.0, "3h": 10_800.0, "1d": 86_400.0, "all": None}
MAX_CLOCK_DIFFERENCE_MS = 3_600_000
_SPACING_S = ((600.0, 1.0), (10_800.0, 60.0), (float("inf"), 600.0))

Totals = dict[str, float]


@dataclass(slots=True)
class Process:
    """One process: its newest report, and totals by time, oldest first."""

    latest: Report
    samples: deque[tuple[int, Totals]] = field(default_factory=deque)
    is_seen_from_start: bool = True
    _carried: Totals = field(default_factory=dict)
    _raw: Totals = field(default_factory=dict)
    _thin_at: int = THIN_EACH

    def add(self, report: Report) -> None:
        """Add a report that is newer than the latest."""
        raw = _counts(report.values)
        for name, before in self._raw.items():
            if before > raw.get(name, before):
                self._carried[name] = self._carried.get(name, 0.0) + before
        self._raw, self.latest = raw, report
        carried = self._carried
        totals = {name: raw[name] + carried.get(name, 0.0) for name in raw} if carried else raw
        self.samples.append((report.time_ms, totals))
        if len(self.samples) >= self._thin_at:
            self._thin(report.time_ms)
            self._thin_at = len(self.samples) + max(THIN_EACH, len(self.samples) // 4)

    def _thin(self, now_ms: int) -> None:
        """Keep one sample per spacing of its age; done when a quarter more are there than were kept last."""
        kept: deque[tuple[int, Totals]] = deque()
        for time_ms, totals in self.samples:
            age_s = (now_ms - time_ms) / 1000
            spacing_s = next(spacing for limit, spacing in _SPACING_S if age_s <= limit)
            if not kept or time_ms - kept[-1][0] >= spacing_s * 1000:
                kept.append((time_ms, totals))
        self.samples = kept

    def counted(self, since_ms: int | None) -> tuple[Totals, float]:
        """Return what was counted since a time (None: ever), and over how many seconds (0: not known)."""
        if not self.samples:
            return {}, 0.0
        newest_ms, newest = self.samples[-1]
        before: tuple[int, Totals] | None = None
        if since_ms is not None:
            for sample in self.samples:
                if sample[0] > since_ms:
                    break
                before = sample
        if before is None:
            oldest = self.samples[0]
            if since_ms is None and not self.is_seen_from_start:
                return newest, 0.0
            before = (oldest[0], {}) if self.is_seen_from_start else oldest
        base_ms, base = before
        return {name: max(0.0, value - base.get(name, 0.0)) for name, value in newest.items()}, max(
            0.0, (newest_ms - base_ms) / 1000
        )

    def rates(self, now_ms: int) -> Totals | None:
        """Return what is counted a second, between a sample RATE_WINDOW_S ago, or the oldest, and the newest.

        None where they are less than MIN_RATE_SPAN_S apart: one report alone says nothing of its rate.
        """
        if not self.samples:
            return None
        since_ms = now_ms - 1000 * RATE_WINDOW_S
        base_ms, base = next(
            (each for each in reversed(self.samples) if each[0] <= since_ms), self.samples[0]
        )
        newest_ms, newest = self.samples[-1]
        seconds = (newest_ms - base_ms) / 1000
        if seconds < MIN_RATE_SPAN_S:
            return None
        return {name: max(0.0, value - base.get(name, 0.0)) / seconds for name, value in newest.items()}


def figure(process: Process, name: str) -> float | None:
    """Return a figure of the newest report, None if it is missing or not a number; what is below 0 is 0."""
    value = process.latest.values.get(name)
    return max(0.0, float(value)) if isinstance(value, NUMBER) else None


def whole(process: Process, name: str) -> int:
    """Return a figure of the newest report as a whole number, 0 if there is none."""
    return int(figure(process, name) or 0)


def is_starting(process: Process) -> bool:
    """Return whether a process only says that it is starting."""
    return whole(process, STARTING) > 0


COUNTED = frozenset(
    (
        *("emitted", "completed", "acked", "failed", "timed_out", "replayed", "dead_lettered", "absent"),
        "rejected",
        *("overdue", "invalid", "rewinds", "pending_s", "executed", "busy_s", "process_s", "dropped"),
        *("never_acked", "folded", "late", "duplicated_inits", "dropped_orphans", "refused_orphans"),
        *("refolds", "rebalances", "failed_commits"),
    )
)


class Reports:
    """All reports so far; processes silent for longer than the longest window are dropped."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, str, str], Process] = {}
        self.accepted = 0
        self.invalid_reports = 0
        self.next_offset = 0
        self._began_ms: int | None = None

    def add_record(self, value: bytes | None, append_ms: int) -> None:
        """Add one record of the stats topic; a report dated far from its record also counts as invalid."""
        try:
            report = decode_report(value or b"")
        except MalformedRecord:
            self.invalid_reports += 1
            return
        if abs(report.time_ms - append_ms) > MAX_CLOCK_DIFFERENCE_MS:
            self.invalid_reports += 1
            return
        self.accepted += 1
        key = report.role, report.component, report.instance
        process = self.processes.get(key)
        if process is None:
            if len(self.processes) >= MAX_PROCESSES:
                del self.processes[min(self.processes, key=lambda k: self.processes[k].latest.time_ms)]
            if self._began_ms is None:
                self._began_ms = report.time_ms
            late = report.time_ms > self._began_ms + 1000 * SILENT_AFTER_S
            process = self.processes[key] = Process(report, is_seen_from_start=late)
        if report.time_ms >= process.latest.time_ms:
            process.add(report)

    def processes_of(self, role: str, component: str | None = None) -> Iterator[Process]:
        """Yield the processes of a role, or of one component."""
        for (its_role, its_component, _), process in self.processes.items():
            if its_role == role and component in (None, its_component):
                yield process

    def alive(self, role: str, component: str | None, now_ms: int) -> list[Process]:
        """Return the processes that reported within SILENT_AFTER_S."""
        oldest_ms = now_ms - 1000 * SILENT_AFTER_S
        return [
            process for process in self.processes_of(role, component) if process.latest.time_ms >= oldest_ms
        ]

    def counted(
        self, role: str, component: str | None, window_s: float | None, now_ms: int
    ) -> tuple[Totals, float]:
        """Return the totals of a window over a component's processes, and the process seconds behind them."""
        since_ms = None if window_s is None else int(now_ms - 1000 * window_s)
        alive = [
            p for p in self.processes_of(role, component) if since_ms is None or p.latest.time_ms > since_ms
        ]
        return add_up(process.counted(since_ms) for process in alive)

    def rates(self, role: str, component: str | None, now_ms: int) -> Totals | None:
        """Return what a component's processes count a second, None where no process's rate is known."""
        known = [
            (rates, 0.0)
            for process in self.alive(role, component, now_ms)
            if (rates := process.rates(now_ms)) is not None
        ]
        return add_up(known)[0] if known else None


def add_up(parts: Iterable[tuple[Totals, float]]) -> tuple[Totals, float]:
    """Return the sum of several counts and of their seconds."""
    totals: Totals = defaultdict(float)
    seconds = 0.0
    for counted, lasted_s in parts:
        seconds += lasted_s
        for name, value in counted.items():
            totals[name] += value
    return totals, seconds


def _counts(values: Mapping[str, object]) -> Totals:
    """Return what is counted; text in a report is not a count."""
    return {
        name: float(value) for name, value in values.items() if name in COUNTED and isinstance(value, NUMBER)
    }
