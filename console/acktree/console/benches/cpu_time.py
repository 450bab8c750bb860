"""Processor time of a process and all that descend from it, as Linux tells it under /proc."""

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PPID, _UTIME, _CSTIME = 1, 11, 14
"""Fields of /proc/PID/stat behind the command, counted from its state."""


def cpu_s(root: int, without: int | None = None) -> float:
    """Return the seconds used by a process, its descendants and children that ended; one may be left out."""
    stats = _stats()
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PPID]), []).append(pid)
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        if pid == without:
            continue
        if pid in stats:
            total += sum(map(int, stats[pid][_UTIME : _CSTIME + 1]))
        waiting += children.get(pid, [])
    return total / _TICKS_PER_S


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
