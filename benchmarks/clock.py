"""Wall and processor time: of this process, of children that have ended, of a process and its descendants.

The last is as Linux reports it under /proc. A parent that ignores SIGCHLD keeps nothing of what its children
used, and Spark's Python daemon is one: it ends workers that were idle for a minute. So a thread looks all the
time and remembers what it saw last of each process; what one uses between the last poll and its end is lost,
and no more.
"""

import os
import resource
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

POLL_INTERVAL_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PPID, _UTIME, _STIME, _START = 1, 11, 12, 19
"""Fields of /proc/PID/stat behind the command, counted from its state."""


class Spent(NamedTuple):
    """Seconds since some moment, or between two of these."""

    wall_s: float
    cpu_s: float

    def since(self, before: "Spent") -> "Spent":
        return Spent(self.wall_s - before.wall_s, self.cpu_s - before.cpu_s)


def this_process() -> Spent:
    """Return the time so far, threads of Kafka clients included."""
    return Spent(time.perf_counter(), time.process_time())


def ended_children() -> Spent:
    """Return the time so far; CPU of what this process has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(time.perf_counter(), used.ru_utime + used.ru_stime)


class _Process(NamedTuple):
    """A process id is used again; with its start it is not."""

    pid: int
    start: int


class TreeClock:
    """Counts a process and its descendants while it is entered; call it for the time so far."""

    def __init__(self, root: int, without: int | None = None) -> None:
        """Leave out one of the descendants, and what descends from it, if it is given."""
        self._root, self._without = root, without
        self._ticks: dict[_Process, int] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self) -> Spent:
        with self._lock:
            self._ticks.update(_used(self._root, self._without))
            return Spent(time.perf_counter(), sum(self._ticks.values()) / _TICKS_PER_S)

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_INTERVAL_S):
            self()


def _used(root: int, without: int | None) -> dict[_Process, int]:
    stats = _stats()
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PPID]), []).append(pid)
    used: dict[_Process, int] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid == without:
            continue
        if pid in stats:
            fields = stats[pid]
            used[_Process(pid, int(fields[_START]))] = int(fields[_UTIME]) + int(fields[_STIME])
        waiting += children.get(pid, [])
    return used


def _stats() -> dict[int, list[str]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # it has ended meanwhile
            found[int(entry.name)] = text.rpartition(")")[2].split()
    return found
