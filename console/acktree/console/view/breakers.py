"""Summarizes what the processes of a spout report about its breaker. Pure.

Invariant: it is open if any live process reports that; without a report it is "off".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from acktree.console.view.reports import Process


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """``state`` is off, closed or open; the rest is of the process whose breaker has been open for longest.

    ``held_back`` is how many records or messages wait for it before they are given up.
    """

    state: str = "off"
    since_ms: int | None = None
    why: str = ""
    task: str = ""
    reason: str = ""
    held_back: int = 0

    @property
    def text(self) -> str:
        """Say why it is open, in words."""
        return f"{self.why}; {self.task or 'no task'}: {self.reason}"


NO_BREAKER = BreakerStatus()


def breaker_of(processes: Iterable[Process]) -> BreakerStatus:
    """Return the breaker of a spout by the newest reports of its processes."""
    said = [process.latest.values for process in processes if "breaker_open" in process.latest.values]
    if not said:
        return NO_BREAKER
    held = sum(int(each) for values in said if isinstance(each := values.get("held_back"), int))
    opened = [values for values in said if values["breaker_open"] == 1]
    if not opened:
        return BreakerStatus("closed", held_back=held)

    def since(values: object) -> int:
        found = values.get("breaker_since_ms") if isinstance(values, dict) else None
        return found if isinstance(found, int) else 0

    first = min(opened, key=since)
    why, task, reason = (str(first.get(f"breaker_{name}", "")) for name in ("why", "task", "reason"))
    return BreakerStatus("open", since(first) or None, why, task, reason, held)
