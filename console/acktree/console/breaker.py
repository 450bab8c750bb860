"""Closes breakers of spouts by hand: a plan that changes nothing, and the records that carry it out.

Invariant: a breaker that is closed by hand opens again if failures continue; nothing is given up by closing
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acktree.console.flow import no_such_spout
from acktree.console.operator_records import OperatorRecord, write_records, written_or_raised
from acktree.console.view.breakers import BreakerStatus
from acktree.core import world
from acktree.core.kafka.settings import Settings
from acktree.core.reports.breaker import breaker_policy
from acktree.core.topology.breaker_close import encode_breaker_close
from acktree.core.topology.registry import Published
from acktree.wire.errors import AcktreeError


class NoBreaker(AcktreeError):
    """None of the named spouts has a breaker."""


@dataclass(frozen=True, slots=True)
class ClosePlan:
    """The breakers to close by spout, and what their processes report of them."""

    topology: str
    spouts: Mapping[str, BreakerStatus]

    def lines(self) -> list[str]:
        """Return the plan as sentences."""
        return [
            f"spout {spout} of topology {self.topology}: its breaker is {found.state}"
            + (
                f" ({found.text}); closing it lets the spout emit new records and replays again"
                if found.state == "open"
                else ""
            )
            for spout, found in self.spouts.items()
        ]

    def to_json(self, written: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the plan as a JSON object; ``written`` are the offsets of the records, by spout."""
        spouts = [
            {"spout": spout, "state": found.state, "offset": (written or {}).get(spout)}
            for spout, found in self.spouts.items()
        ]
        return {"topology": self.topology, "executed": written is not None, "spouts": spouts}


def plan_close(published: Published, spout: str | None, found: Mapping[str, BreakerStatus]) -> ClosePlan:
    """Return the plan for one spout, or for all that have a breaker (pure).

    Raises:
        NoSuchSpout: the topology has none of that name. NoBreaker: none of them has a breaker.
    """
    if spout is not None and spout not in published.spouts:
        raise no_such_spout(published, spout)
    names = published.spouts if spout is None else (spout,)
    wanted = [name for name in names if breaker_policy(published, name).is_on]
    if not wanted:
        raise NoBreaker(
            f"spout {', '.join(names)} of topology {published.name} has no breaker: set max_failure_ratio or "
            "max_consecutive_failures"
        )
    return ClosePlan(published.name, {name: found.get(name, BreakerStatus()) for name in wanted})


def execute_close(bootstrap: str, plan: ClosePlan, published: Published, user: Settings) -> dict[str, int]:
    """Write the records of all spouts of the plan; return their offsets once the broker has them.

    Raises:
        BrokerUnreachable, BrokerRefused: not all could be written.
    """
    now_ms = world.wall_ms()
    pairs = [encode_breaker_close(spout, now_ms) for spout in plan.spouts]
    records = [OperatorRecord(published.registry_topic, value, key) for key, value in pairs]
    written = written_or_raised(write_records(bootstrap, records, "records", user))
    return dict(zip(plan.spouts, written, strict=True))
