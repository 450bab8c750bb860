"""What the state topic of a spout holds, read from its log, whatever a driver makes of it.

Invariant: what is folded here is committed: its transaction has ended so, though its marker may be under way.
"""

from dataclasses import dataclass, field

from pyroaring import BitMap64

from acktree.producers.ledger.logged_batch import NUMBER_BITS
from acktree.testing.kafka.broker.cluster import Cluster
from acktree.testing.kafka.broker.committed import Committed
from acktree.testing.kafka.broker.log import Outcome
from acktree.wire.ids import next_run
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    OffsetSeal,
    SlotState,
    SpoutState,
    TaskState,
    decode_slot_key,
    decode_slot_state,
    decode_spout_state,
    decode_task_record,
    seal_in,
    task_in,
    task_start_key,
)

STRANGER = "stranger"
"""Who writes in transactions that hold a topic up, and are aborted."""


def seal_of(committed: Committed) -> OffsetSeal | None:
    """Return the seal of a committed offset, None if an operator has set it."""
    return seal_in(committed.metadata or "", committed.offset)


@dataclass(eq=False)
class StateLog:
    """See the module; ``slots`` are by topic and partition."""

    cluster: Cluster
    topic: str
    spout: SpoutState | None = None
    slots: dict[tuple[str, int], SlotState] = field(default_factory=dict)
    tasks: dict[bytes, TaskState] = field(default_factory=dict)
    """What tasks of a Spout class have committed, by key."""
    stage_tasks: dict[bytes, SpoutState] = field(default_factory=dict)
    """The same of tasks of a stage in Python."""
    shared: list[str] = field(default_factory=list)
    """Slots that two owners wrote in turn, of which the second did not begin after the first had ended."""
    _starts: dict[bytes, int] = field(default_factory=dict)
    """The offset of the newest start of each owner, by its key."""
    _writers: dict[tuple[str, int], tuple[bytes, int]] = field(default_factory=dict)
    """By slot the key of the start of its last owner, and where that wrote it last."""
    repeated: str = ""
    """Which task has begun with a term, a run or message numbers that another process had."""
    _known: dict[tuple[int, int, int], None] = field(default_factory=dict)
    """Terms, each with the batches that its driver knew of: the last one held, and the one planned."""
    deleted: list[tuple[str, int]] = field(default_factory=list)
    """Slots whose state a driver has deleted, though their topic is the same."""
    renewed: list[tuple[str, int, int]] = field(default_factory=list)
    """From where on a task has emitted again what others had in flight."""
    _read_to: int = 0

    def look(self) -> list[tuple[str, int]]:
        """Read what was committed since the last look; return the slots of which something was."""
        if self.topic not in self.cluster.topics:
            return []
        log, changed = self.cluster.topics[self.topic].partitions[0], dict[tuple[str, int], None]()
        for record in log.records[log.index_of(self._read_to) :]:
            is_foreign = record.is_control or record.producer == STRANGER
            if (
                record.transaction is not None
                and record.transaction.outcome is Outcome.OPEN
                and not is_foreign
            ):
                break
            self._read_to = record.offset + 1
            if is_foreign or not record.is_committed:
                continue
            if record.key == START_KEY:
                self._starts[START_KEY] = record.offset
                continue
            if record.key == SPOUT_KEY:
                self.spout = decode_spout_state(record.value or b"")
                self._known[self.spout.term, self.spout.batch, self.spout.planned] = None
                continue
            if task_in(record.key or b"") is not None:
                self._add_task(record.key or b"", record.value or b"", record.offset)
                continue
            key = decode_slot_key(record.key or b"")
            place = key.topic, key.partition
            if record.value is None:
                self.slots.pop(place, None)
                if (topic := self.cluster.topics.get(key.topic)) and topic.topic_id == key.topic_id:
                    self.deleted.append(place)
            else:
                self._check_owner(place, record.producer, record.offset)
                before, state = self.slots.get(place), decode_slot_state(record.value)
                if before and state.task != before.task and state.next_offset < before.next_offset:
                    self.renewed.append((*place, state.next_offset))
                self.slots[place] = state
                changed[place] = None
        return [place for place in changed if place in self.slots]

    def newest(self, place: tuple[str, int]) -> SlotState | None:
        """Return what is committed of a slot, also behind a transaction of another task that is open."""
        log, found = self.cluster.topics[self.topic].partitions[0], self.slots.get(place)
        for record in log.records[log.index_of(self._read_to) :]:
            is_slot = record.key not in (START_KEY, SPOUT_KEY) and task_in(record.key or b"") is None
            if record.is_control or not record.is_committed or record.producer == STRANGER or not is_slot:
                continue
            key = decode_slot_key(record.key or b"")
            if (key.topic, key.partition) == place and record.value is not None:
                found = decode_slot_state(record.value)
        return found

    def _check_owner(self, place: tuple[str, int], producer: str, offset: int) -> None:
        """Who writes a slot must have begun after all that another owner has written of it."""
        task = producer.rpartition(".")[2]
        owner = task_start_key(int(task)) if task.isdecimal() else START_KEY
        before, written = self._writers.get(place, (owner, 0))
        if before != owner and self._starts.get(owner, -1) < written:
            self.shared.append(f"{owner.decode()} wrote {place} at {offset}, {before.decode()} at {written}")
        self._writers[place] = owner, offset

    def _add_task(self, key: bytes, value: bytes, offset: int) -> None:
        """Add a record of a task in Python: the next term has the next run, and numbers never go back."""
        if key.startswith(b"start/"):
            self._starts[key] = offset
            return
        state = decode_task_record(value)
        if isinstance(state, SpoutState):
            if (known := self.stage_tasks.get(key)) is not None and state.term < known.term:
                self.repeated = f"{key.decode()} had {known}, and then {state}"
            self.stage_tasks[key] = state
            held = self.spout.batch if self.spout is not None else 0  # what was only planned it emits again
            self._known[state.term, held, held] = None
            return
        before = self.tasks.get(key)
        self.tasks[key] = state
        if before is None:
            return
        is_next = state.term == before.term + 1 and state.run == next_run(before.run)
        is_same = state.term == before.term and state.run == before.run
        if not (is_same or is_next) or state.sequence < before.sequence:
            self.repeated = f"{key.decode()} had {before}, and then {state}"

    def is_unknown(self, number: int, before: int) -> bool:
        """Return whether drivers between that of a batch and a term did not know of the batch."""
        later = [known for known in self._known if number >> NUMBER_BITS < known[0] < before]
        return any(number not in known[1:] for known in later)

    @property
    def term(self) -> int:
        """The highest term of the drivers that have committed, 0 before the first one."""
        drivers = [*self.stage_tasks.values(), *([self.spout] if self.spout else [])]
        return max((state.term for state in drivers), default=0)


def done_above(state: SlotState) -> BitMap64:
    """Return what a slot's state calls done above its frontier."""
    return BitMap64.deserialize(state.done)
