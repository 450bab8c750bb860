"""Plans the replay of dead letters: which source records are emitted again, and which cannot be.

Invariant: every dead letter is either replayed or refused by name with the reason; none is skipped silently.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acktree.console.replay import (
    NotReplayable,
    PartitionState,
    ReplayPlan,
    Wanted,
    plan_replay,
    read_states,
    slot_of,
    state_of,
)
from acktree.console.view.cluster import Cluster, Place
from acktree.console.view.records.dead_letter_filter import reason_of
from acktree.console.view.records.dead_letters import DeadLetter, UnknownDeadLetter, why_without_source
from acktree.core.kafka.settings import Settings
from acktree.core.topology.registry import Published
from acktree.wire.control_records import Span


@dataclass(frozen=True, slots=True)
class Refused:
    """Dead letters that cannot be replayed, as PARTITION/OFFSET, for one reason."""

    names: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class DeadLetterPlan:
    """The replay of some dead letters; several of one record share one replay."""

    replay: ReplayPlan
    wanted: tuple[Wanted, ...]
    dead_letters: int
    records: int
    reasons: int
    refused: tuple[Refused, ...]

    def head(self) -> str:
        """Return in a sentence how much is replayed.

        >>> plan = DeadLetterPlan(ReplayPlan("t", 1, 1.0, (), ()), (), 3, 2, 1, ())
        >>> plan.head()
        '3 dead letters of 1 reason will be replayed: 2 source records'
        """
        counts = [_count(self.dead_letters, "dead letter"), _count(self.reasons, "reason")]
        records = _count(self.records, "source record")
        return f"{counts[0]} of {counts[1]} will be replayed: {records}"

    def refusals(self) -> list[str]:
        """Return in sentences what is refused."""
        return [
            f"refused: {_count(len(each.names), 'dead letter')}, {' '.join(each.names)}: {each.why}"
            for each in self.refused
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what a plan of dead letters adds to the JSON of a replay."""
        refused = [{"dead_letters": list(each.names), "why": each.why} for each in self.refused]
        return {
            "dead_letters": self.dead_letters,
            "records": self.records,
            "reasons": self.reasons,
            "refused": refused,
        }


def wanted_by(dead_letters: Iterable[DeadLetter]) -> list[Wanted]:
    """Return the source records of dead letters by partition, each offset once. Raises UnknownDeadLetter."""
    offsets: dict[tuple[str, int], set[int]] = {}
    for found in dead_letters:
        if not found.topic:
            raise UnknownDeadLetter(f"dead letter {found.name} {why_without_source(found)}")
        offsets.setdefault((found.topic, found.source_partition), set()).add(found.source_offset)
    return [
        Wanted(topic, partition, tuple(Span(offset, offset + 1) for offset in sorted(mine)))
        for (topic, partition), mine in sorted(offsets.items())
    ]


def read_and_plan_dead_letters(
    cluster: Cluster, found: Sequence[DeadLetter], user: Settings
) -> DeadLetterPlan:
    """Return the plan for dead letters on a cluster. Raises BrokerUnreachable, BrokerRefused."""
    published = cluster.topology
    read_by_a_spout = {topic for table in published.spouts.values() for topic in table.topics}
    topics = sorted({each.topic for each in found} & read_by_a_spout)
    return plan_dead_letters(published, found, read_states(cluster, topics, user))


def plan_dead_letters(
    published: Published, found: Sequence[DeadLetter], states: Mapping[Place, PartitionState]
) -> DeadLetterPlan:
    """Return the plan that replays what can be replayed (pure); ``states`` by (topic, partition)."""
    replayed: list[DeadLetter] = []
    refused: dict[str, list[str]] = {}
    sources = {
        place: _source_state(published, place, states)
        for place in {(each.topic, each.source_partition) for each in found}
    }
    for each in found:
        why = _why_refused(each, sources[each.topic, each.source_partition])
        if why is None:
            replayed.append(each)
        else:
            refused.setdefault(why, []).append(each.name)
    wanted = tuple(wanted_by(replayed))
    return DeadLetterPlan(
        plan_replay(published, wanted, states),
        wanted,
        dead_letters=len(replayed),
        records=sum(len(spans) for _, _, spans in wanted),
        reasons=len(set(map(reason_of, replayed))),
        refused=tuple(Refused(tuple(names), why) for why, names in refused.items()),
    )


def _source_state(
    published: Published, place: Place, states: Mapping[Place, PartitionState]
) -> PartitionState | str:
    """Return the state of a source partition, or why none of its records can be replayed."""
    try:
        return state_of(published, slot_of(published, *place), states)
    except NotReplayable as error:
        return str(error)


def _why_refused(found: DeadLetter, state: PartitionState | str) -> str | None:
    if not found.topic:
        return f"it {why_without_source(found)}"
    if found.corrected_as:
        return f"it is closed: it was corrected as {found.corrected_as}"
    if isinstance(state, str):
        return state
    place = f"{found.topic}/{found.source_partition}"
    if found.source_offset < state.log_start:
        return (
            f"its source record is gone: {place} begins at {state.log_start}; --edit writes its value again"
        )
    if found.source_offset >= state.log_end:
        return f"its source record does not exist: {place} ends before {state.log_end}"
    return None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("s" if number != 1 else "")
