"""Runs the breaker of a spout: follows the topology and operators, and logs when it opens and closes.

Invariant: an operator's record closes the breaker once; records from before this process began are ignored.
"""

import logging

from acktree.core import world
from acktree.core.reports.breaker import Breaker, breaker_policy
from acktree.core.reports.last_error import one_line
from acktree.core.reports.stats import Value
from acktree.core.topology.registry import History

log = logging.getLogger("acktree.spout")


class BreakerWatch:
    """Watches the breaker of one spout; ``spout`` is its name in the topology."""

    def __init__(self, history: History, spout: str) -> None:
        self._history, self._spout = history, spout
        self._closed_at = history.breaker_close(spout)
        self._said: float | None = None
        """Since when the breaker was open that the log knows of."""
        self.breaker = Breaker(breaker_policy(history.latest, spout))

    def follow(self, now_s: float) -> None:
        """Follow the newest version and operator, and log what has changed."""
        if self._spout in self._history.latest.spouts:
            self.breaker.follow(breaker_policy(self._history.latest, self._spout), now_s)
        if (closed_at := self._history.breaker_close(self._spout)) > self._closed_at:
            self._closed_at = closed_at
            self.breaker.close(now_s)
        self._log()

    def _log(self) -> None:
        opening = self.breaker.opening
        since_s = None if opening is None else opening.at_s
        if since_s == self._said:
            return
        if self._said is not None:
            log.warning(
                "the breaker of spout %s is closed: it emits normally again",
                self._spout,
                extra={"action": "breaker_closed"},
            )
        if opening is not None:
            log.error(
                "the breaker of spout %s is open: %s; it emits only occasional probes; %s: %s",
                *(self._spout, opening.why, opening.task or "no task", one_line(opening.reason)),
                extra={"action": "breaker_open"},
            )
        self._said = since_s

    def figures(self, held: int, now_s: float) -> dict[str, Value]:
        """Return what a spout task reports; ``held`` is how much would be given up if it does not open.

        Nothing where the breaker is off.
        """
        breaker = self.breaker
        if not breaker.policy.is_on:
            return {}
        figures: dict[str, Value] = {
            "breaker_open": int(breaker.is_open),
            "breaker_opened": breaker.openings,
            "breaker_probes": breaker.probes_sent,
            "held_back": held,
        }
        if (opening := breaker.opening) is not None:
            figures["breaker_since_ms"] = world.wall_ms() - int(1000 * (now_s - opening.at_s))
            figures["breaker_why"] = opening.why
            figures["breaker_task"] = opening.task
            figures["breaker_reason"] = one_line(opening.reason)
        return figures
