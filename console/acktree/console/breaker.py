"""Close breakers of spouts by hand: a plan that changes nothing, and the records that carry it out.

Invariant: a breaker that is closed by hand opens again if failures go on; nothing is given up by closing it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, Message

from acktree.console.flow import NoSuchSpout
from acktree.console.view.breakers import BreakerStatus
from acktree.schemas import world
from acktree.schemas.breaker import breaker_policy
from acktree.schemas.breaker_close import encode_breaker_close
from acktree.schemas.client_settings import Settings, producer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_producer
from acktree.schemas.errors import AcktreeError, BrokerUnreachable
from acktree.schemas.kafka_errors import as_clear_error, clear_errors
from acktree.schemas.registry import Published


class NoBreaker(AcktreeError):
    """No spout that was named has a breaker."""


@dataclass(frozen=True, slots=True)
class ClosePlan:
    """Which spouts' breakers are to close, and what their processes report of them."""

    topology: str
    spouts: Mapping[str, BreakerStatus]

    def lines(self) -> list[str]:
        """Return the plan as sentences."""
        return [
            f"spout {spout} of topology {self.topology}: its breaker is {found.state}"
            + (
                f" ({found.text}); it closes, and the spout emits everything again"
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
        known = ", ".join(published.spouts) or "none"
        raise NoSuchSpout(f"topology {published.name} has no spout {spout!r}; it has: {known}")
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
    topic = published.registry_topic
    producer = make_producer({**producer_settings(bootstrap, user), "delivery.report.only.error": False})
    written: dict[str, int] = {}
    errors: list[KafkaError] = []
    with clear_errors(bootstrap, f"topic {topic}"):
        for spout in plan.spouts:

            def on_delivery(error: KafkaError | None, message: Message, spout: str = spout) -> None:
                if error is None:
                    written[spout] = message.offset() or 0
                else:
                    errors.append(error)

            key, value = encode_breaker_close(spout, world.wall_ms())
            producer.produce(topic, value, key, 0, on_delivery=on_delivery)
        producer.flush(BROKER_TIMEOUT_S)
    if errors:
        raise as_clear_error(errors[0], bootstrap, f"topic {topic}")
    if len(written) < len(plan.spouts):
        raise BrokerUnreachable("not all records are confirmed; the command may be given again")
    return written
