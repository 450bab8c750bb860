"""Pauses, drains and resumes spouts: a plan that changes nothing, the records that carry it out.

Invariant: a spout counts as drained only if each of its tasks reports, under the record that was written or a
later one, that nothing is pending. A missing report proves nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from acktree.console.operator_records import OperatorRecord, write_records, written_or_raised
from acktree.console.view.breakers import NO_BREAKER, BreakerStatus, breaker_of
from acktree.console.view.reports import Reports
from acktree.core import world
from acktree.core.kafka.settings import Settings
from acktree.core.topology.flow import Flow, encode_flow
from acktree.core.topology.registry import History, Published
from acktree.wire.errors import AcktreeError

_EFFECTS = {
    Flow.RUNNING: "emits",
    Flow.PAUSED: "emits nothing, neither new records nor replays",
    Flow.DRAINING: "emits no new records; what is pending continues, including replays",
}


class NoSuchSpout(AcktreeError):
    """The topology has no spout of that name."""


def no_such_spout(published: Published, spout: str) -> NoSuchSpout:
    """Return the error for a spout that a topology does not have."""
    known = ", ".join(published.spouts) or "none"
    return NoSuchSpout(f"topology {published.name} has no spout {spout!r}; it has: {known}")


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """The records that ``execute_flow`` would write: the present flow by spout, and the new one of all."""

    topology: str
    flow: Flow
    before: Mapping[str, Flow]

    @property
    def changed(self) -> list[str]:
        return [spout for spout, flow in self.before.items() if flow is not self.flow]

    def lines(self) -> list[str]:
        """Return the plan as sentences."""
        return [
            f"spout {spout} of topology {self.topology}: {flow} -> {self.flow}, it {_EFFECTS[self.flow]}"
            if flow is not self.flow
            else f"spout {spout} of topology {self.topology} is {flow} already"
            for spout, flow in self.before.items()
        ]

    def to_json(self, written: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the plan as a JSON object; ``written`` are the offsets of the records, by spout."""
        spouts = [
            {"spout": spout, "before": flow, "after": self.flow, "offset": (written or {}).get(spout)}
            for spout, flow in self.before.items()
        ]
        return {"topology": self.topology, "executed": written is not None, "spouts": spouts}


def plan_flow(history: History, spout: str | None, flow: Flow) -> FlowPlan:
    """Return the plan for one spout, or for all of them (pure).

    Raises:
        NoSuchSpout: the topology has none of that name, or none at all.
    """
    spouts = tuple(history.latest.spouts)
    if not spouts or (spout is not None and spout not in spouts):
        raise no_such_spout(history.latest, spout or "")
    wanted = spouts if spout is None else (spout,)
    return FlowPlan(history.name, flow, {name: history.flow(name).flow for name in wanted})


def execute_flow(bootstrap: str, plan: FlowPlan, published: Published, user: Settings) -> dict[str, int]:
    """Write the records of all spouts of the plan; return their offsets once the broker has them.

    Writing one again is harmless.

    Raises:
        BrokerUnreachable, BrokerRefused: not all could be written.
    """
    now_ms = world.wall_ms()
    pairs = [encode_flow(spout, plan.flow, now_ms) for spout in plan.before]
    records = [OperatorRecord(published.registry_topic, value, key) for key, value in pairs]
    written = written_or_raised(write_records(bootstrap, records, "records", user))
    return dict(zip(plan.before, written, strict=True))


@dataclass(frozen=True, slots=True)
class Draining:
    """The progress of a drain: a spout's tasks, those that have applied it, and their pending records."""

    spout: str
    tasks: int
    obeying: int
    pending: int
    breaker: BreakerStatus = NO_BREAKER

    @property
    def is_drained(self) -> bool:
        return self.obeying == self.tasks and self.pending == 0

    def line(self) -> str:
        """Return the state as a sentence."""
        if self.obeying < self.tasks:
            return (
                f"spout {self.spout}: {self.obeying} of {self.tasks} tasks report that they have applied it"
            )
        text = f"spout {self.spout}: {self.pending} pending"
        if self.breaker.state == "open":
            text += f"; its breaker is open, so this cannot end until it closes: {self.breaker.text}"
        return text


def draining(
    reports: Reports, published: Published, written: Mapping[str, int], now_ms: int
) -> Iterable[Draining]:
    """Yield how far each spout is, by what its tasks report under the record written for it, or a later.

    A task that the topology no longer has stands for none that it has; what it has pending counts.
    """
    for spout, offset in written.items():
        table = published.spouts[spout]
        tasks = published.spout_tasks[spout] if table.topics else range(table.tasks)
        pending: dict[int, int] = {}
        for process in reports.alive("spout", spout, now_ms):
            values = process.latest.values
            task, obeyed, left = (values.get(name) for name in ("task", "flow_offset", "pending"))
            if not (isinstance(task, int) and isinstance(obeyed, int) and isinstance(left, int)):
                continue
            if obeyed >= offset and values.get("paused") == 1:
                pending[task] = max(left, pending.get(task, 0))
        found = breaker_of(reports.alive("spout", spout, now_ms))
        obeying = sum(task in pending for task in tasks)
        yield Draining(spout, table.tasks, obeying, sum(pending.values()), found)
