"""Replays source records: a plan that changes nothing, and the commands that carry it out.

Invariant: no record is copied; a command names offsets of the source topic, and the spout's driver emits
those again, immediately or when it is started. Records that cannot be replayed are named in the plan or
refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from acktree.console.operator_records import OperatorRecord, write_records, written_or_raised
from acktree.console.view.cluster import Cluster, CommittedOffset, Place
from acktree.core.kafka.clients import make_admin
from acktree.core.kafka.settings import Settings
from acktree.core.topology.publish import describe
from acktree.core.topology.registry import Published, Slot
from acktree.wire.codec import encode_replay_command
from acktree.wire.control_records import ReplayCommand, Span, command_end
from acktree.wire.errors import AcktreeError


class NotReplayable(AcktreeError):
    """The requested records cannot be emitted again: no spout reads them, or they are not in their topic."""


class Wanted(NamedTuple):
    """Records of one source partition; spans in any order, overlapping or not."""

    topic: str
    partition: int
    spans: tuple[Span, ...]


class PartitionState(NamedTuple):
    """The state of a source partition on the cluster; ``frontier`` is None if the group has none."""

    topic_id: str
    log_start: int
    log_end: int
    frontier: int | None


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command: spans of one slot, and the result topic that it is written to."""

    topic: str
    partition: int
    slot: int
    result_topic: str
    frontier: int | None
    spans: tuple[Span, ...]

    @property
    def offsets(self) -> int:
        """Return how many offsets the spans cover; some may hold no record (compaction, markers)."""
        return sum(following - first for first, following in self.spans)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The commands that ``execute_replay`` would write; ``notes`` say which records are left out, and why.

    ``kept_s`` is how long a command waits for a driver: result topics are kept no longer.
    """

    topology: str
    version: int
    kept_s: float
    commands: tuple[PlannedCommand, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the plan as sentences."""
        sentences = [
            f"replay {command.offsets} offset(s) of {command.topic}/{command.partition}: "
            f"{_ranges(command.spans)}"
            for command in self.commands
        ]
        return [*sentences, *(f"note: {note}" for note in self.notes)]

    def to_json(self, written: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the plan as a JSON object; ``written`` are the commands' offsets on their result topics."""
        commands = [
            {
                "topic": command.topic,
                "partition": command.partition,
                "slot": command.slot,
                "frontier": command.frontier,
                "spans": [{"from": first, "to": following} for first, following in command.spans],
                "offsets": command.offsets,
                "result_topic": command.result_topic,
                "command_offset": None if written is None else written[index],
            }
            for index, command in enumerate(self.commands)
        ]
        about: dict[str, Any] = {"topology": self.topology, "version": self.version}
        about |= {"executed": written is not None, "kept_s": self.kept_s}
        return {**about, "commands": commands, "notes": list(self.notes)}


def plan_replay(
    published: Published, wanted: Iterable[Wanted], states: Mapping[Place, PartitionState]
) -> ReplayPlan:
    """Return the plan that replays what is wanted (pure); ``states`` by (topic, partition).

    Raises:
        NotReplayable: no spout reads a topic, or a topic holds none of the records asked for.
    """
    commands: list[PlannedCommand] = []
    notes: list[str] = []
    for topic, partition, spans in wanted:
        slot = slot_of(published, topic, partition)
        state = state_of(published, slot, states)
        here = _clip(topic, partition, _merge(spans), state, notes)
        result_topic = published.result_topic(published.task_of(slot))
        end = 0
        while end < len(here):
            start, end = end, command_end(here, end)
            part = tuple(here[start:end])
            commands.append(PlannedCommand(topic, partition, slot.slot, result_topic, state.frontier, part))
    return ReplayPlan(
        published.name, published.version, published.control_retention_s, tuple(commands), tuple(notes)
    )


def state_of(published: Published, slot: Slot, states: Mapping[Place, PartitionState]) -> PartitionState:
    """Return the state of a slot's partition. Raises NotReplayable: the topic is gone, or is another one."""
    state = states.get((slot.topic, slot.partition))
    if state is None or state.topic_id != slot.topic_id:
        raise NotReplayable(
            f"topic {slot.topic!r} is not the one that topology {published.name} knows: it was deleted or "
            "recreated, and its old records are gone"
        )
    return state


def read_and_plan(cluster: Cluster, wanted: Sequence[Wanted], user: Settings) -> ReplayPlan:
    """Return the plan for a cluster. Raises what ``plan_replay`` raises, BrokerUnreachable."""
    for topic, partition, _ in wanted:
        slot_of(cluster.topology, topic, partition)
    states = read_states(cluster, [topic for topic, _, _ in wanted], user)
    return plan_replay(cluster.topology, wanted, states)


def read_states(cluster: Cluster, topics: Iterable[str], user: Settings) -> dict[Place, PartitionState]:
    """Return the state of every partition of source topics. Raises BrokerUnreachable, BrokerRefused."""
    published = cluster.topology
    places = cluster.partitions(topics)
    about = describe(make_admin(cluster.bootstrap, user), cluster.bootstrap, [topic for topic, _ in places])
    starts, ends = cluster.starts(places), cluster.ends(places)
    commits: dict[Place, CommittedOffset] = {}
    for spout, table in published.spouts.items():
        mine = [place for place in places if place[0] in table.topics]
        commits |= cluster.committed(published.group_of(spout), mine)
    return {
        place: PartitionState(
            about[place[0]].topic_id,
            starts[place],
            ends[place],
            commits[place].next_offset if place in commits else None,
        )
        for place in places
        if place in starts and place in ends
    }


def execute_replay(bootstrap: str, plan: ReplayPlan, user: Settings) -> list[int]:
    """Write the plan's commands and return their offsets once the broker has them all.

    Doing it twice replays twice. Where it fails half way, commands that were written are executed.

    Raises:
        BrokerUnreachable, BrokerRefused: not all could be written; the text says how many were.
    """
    return written_or_raised(write_commands(bootstrap, plan, user))


def write_commands(bootstrap: str, plan: ReplayPlan, user: Settings) -> list[int | AcktreeError]:
    """Write the plan's commands; return for each its offset, or why it is not known to be written."""
    records = [
        OperatorRecord(c.result_topic, encode_replay_command(ReplayCommand(c.slot, c.spans)))
        for c in plan.commands
    ]
    return write_records(bootstrap, records, "replay commands", user)


def slot_of(published: Published, topic: str, partition: int) -> Slot:
    """Return the newest slot of a source partition. Raises NotReplayable: no spout reads it."""
    mine = [s for s in published.slots if s.spout in published.spouts and s.topic == topic]
    if not topic or not mine:
        known = sorted({topic for table in published.spouts.values() for topic in table.topics})
        raise NotReplayable(
            f"no spout of topology {published.name} reads topic {topic!r}; "
            f"it must be one of: {', '.join(known) or 'none'}"
        )
    for slot in reversed(mine):
        if slot.partition == partition:
            return slot
    raise NotReplayable(
        f"topology {published.name} knows no partition {partition} of topic {topic!r}; "
        f"it must be 0 to {max(slot.partition for slot in mine)}"
    )


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets as spans in order that do not touch."""
    joined: list[Span] = []
    for first, following in sorted(spans):
        if not 0 <= first < following:
            raise NotReplayable(
                f"{first} to {following} is not an offset range: FROM is the first, TO is one past the last"
            )
        if joined and first <= joined[-1].next:
            joined[-1] = Span(joined[-1].first, max(joined[-1].next, following))
        else:
            joined.append(Span(first, following))
    return joined


def _clip(
    topic: str, partition: int, spans: list[Span], state: PartitionState, notes: list[str]
) -> list[Span]:
    """Return what of the spans the topic holds; say what is left out."""
    place = f"{topic}/{partition}"
    held = [Span(max(s.first, state.log_start), min(s.next, state.log_end)) for s in spans]
    held = [span for span in held if span.first < span.next]
    if not held:
        raise NotReplayable(
            f"{place} holds offsets {state.log_start} to {state.log_end - 1}, none of {_ranges(spans)}"
            if state.log_start < state.log_end
            else f"{place} holds no record; nothing of {_ranges(spans)} can be replayed"
        )
    if spans[0].first < state.log_start:
        notes.append(f"{place} begins at {state.log_start}: older records are gone and are not replayed")
    if spans[-1].next > state.log_end:
        notes.append(f"{place} ends before {state.log_end}: nothing can be replayed from there on")
    if state.frontier is None or held[-1].next > state.frontier:
        notes.append(
            f"{place} is done up to {state.frontier or 0}: from there on pending records are emitted again, "
            "and records not emitted yet are emitted once, as usual"
        )
    return held


def _ranges(spans: Sequence[Span], limit: int = 5) -> str:
    ranges = [str(first) if first + 1 == last else f"{first} to {last - 1}" for first, last in spans[:limit]]
    return ", ".join(ranges) + (f" and {len(spans) - limit} more ranges" if len(spans) > limit else "")
