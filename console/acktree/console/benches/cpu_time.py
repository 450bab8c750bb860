"""Processor time of a process and all that descend from it, as Linux reports it under /proc.

A parent that ignores SIGCHLD keeps nothing of what its children used, and Spark's Python daemon is one: it
ends workers that were idle for a minute. So a thread looks all the time and remembers what it saw last of
each process; what one uses between the last poll and its end is lost, and no more.
"""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

POLL_INTERVAL_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PPID, _UTIME, _STIME, _START = 1, 11, 12, 19
"""Fields of /proc/PID/stat behind the command, counted from its state."""


class _Process(NamedTuple):
    """A process id is used again; with its start it is not."""

    pid: int
    start: int


class CpuClock:
    """Counts while it is entered; call it for the seconds so far."""

    def __init__(self, root: int, without: int | None = None) -> None:
        """Count a process and its descendants; one of them and what descends from it may be left out."""
        self._root, self._without = root, without
        self._ticks: dict[_Process, int] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="acktree-cpu-clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self) -> float:
        with self._lock:
            self._ticks.update(_used(self._root, self._without))
            return sum(self._ticks.values()) / _TICKS_PER_S

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
