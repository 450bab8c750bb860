"""What a spout's driver keeps: frontiers, what is done above them, floors, result positions, run, term.

Invariant: the state topic is the truth, and all of a commit is one transaction there; the group's offsets are
a view of it, written after it. A result position follows only what the same transaction or a written batch
holds, and a run is durable before its first use. Nothing is sent when nothing has changed, except that all is
committed again from time to time, or Kafka would expire the offsets and the transactional id.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyroaring import BitMap64

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import clear_errors
from acktree.core.topology.registry import Published
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S
from acktree.spark.driver.group_offsets import CommittedOffset, GroupOffsets, State
from acktree.spark.driver.spouts.state_topic import SpoutStates, StateTopic, UnreadableState
from acktree.spark.driver.spouts.takeover import if_newest, is_too_old, raised
from acktree.spark.ledger.logged_batch import NUMBER_BITS, PlannedBatch
from acktree.spark.ledger.partitions.done_set import CommitMetadata, encode_metadata, serialized
from acktree.spark.ledger.partitions.partition import PartitionLedger
from acktree.spark.ledger.result_cut import Emission, ResultCut
from acktree.spark.ledger.task import SourceSlot, TaskLedger
from acktree.spark.shared.options import SourceOptions
from acktree.wire.ids import MAX_RUN, next_run
from acktree.wire.state_records import (
    SPOUT_KEY,
    AppliedCommand,
    SlotKey,
    SlotState,
    SpoutState,
    TaskPosition,
    encode_slot_state,
    encode_spout_state,
)

log = logging.getLogger("acktree.spark")


@dataclass(slots=True)
class ResultPosition:
    """From where on a task's result topic is needed.

    ``replays`` is the state of the replay commands there, by their offset: the run in which a command is
    executed and the end (exclusive) of the offsets that it replays, (0, 0) once all of it is done.
    """

    next_offset: int = 0
    replays: dict[int, tuple[int, int]] = field(default_factory=dict)


def key_of(source: SourceSlot) -> SlotKey:
    """Return the key of a slot's state."""
    return SlotKey(source.topic, source.partition, source.topic_id)


class SpoutCommits:
    """All positions and cuts of one spout, by task; one run and one term for all of them."""

    def __init__(
        self,
        consumer: Consumer,
        admin: AdminClient,
        published: Published,
        options: SourceOptions,
        monotonic: Callable[[], float],
    ) -> None:
        self._consumer, self._published, self._bootstrap = consumer, published, options.bootstrap
        self._group, self._slots = published.group_of(options.spout), published.slots_of(options.spout)
        self._offsets = GroupOffsets(consumer, self._group, options.bootstrap)
        topic = published.state_topic(options.spout)
        self._topic = StateTopic(admin, options.bootstrap, options.kafka, self._group, topic)
        self._read = SpoutStates()
        self._stored: dict[bytes, bytes] = {}
        """What is committed, of what this driver has written, by key."""
        self.run = self.term = 0
        self.logged = (0, 0)
        """The number of the last batch in the checkpoint, and the term of the driver that has seen it."""
        self.positions: dict[int, ResultPosition] = {}
        self.cuts: dict[int, ResultCut] = {}
        self._tasks: Mapping[int, TaskLedger] = {}
        self._encoded: dict[int, tuple[object, bytes, State]] = {}
        self._committed: object = None
        self._monotonic, self._renew_at_s = monotonic, 0.0
        self._driver = f"{world.current().host_name()}/{world.process_id()}"
        self.planned: PlannedBatch | None = None
        self.number = 0
        """The number of the batch planned last."""
        self._begins = False

    def result_topic(self, task: int) -> str:
        return self._published.result_topic(task)

    def begin(self, tasks: Iterable[int]) -> None:
        """Fence the driver before, and read its state; ``tasks`` have those that were taken away among them.

        Their results are read until drained. Raises what ``StateTopic.take_over`` raises.
        """
        self._read = self._topic.take_over()
        for position in self._read.spout.tasks if self._read.spout else ():
            replays = {each.position: (each.run, each.end) for each in position.commands}
            self.positions[position.task] = ResultPosition(position.next_offset, replays)
        self._stored = dict.fromkeys((key.encode() for key in self._read.slots), b"")
        self.join(tasks)

    def join(self, tasks: Iterable[int]) -> None:
        """Add tasks, each with the position that is known of it."""
        for task in sorted({*tasks, *self.positions} - self.cuts.keys()):
            position = self.positions.setdefault(task, ResultPosition())
            self.cuts[task] = ResultCut(position.next_offset)

    def probe(self) -> None:
        """Commit the result positions to the group, for its tools, and to see that it has no members.

        Raises:
            GroupInUse: it has some. BrokerUnreachable, BrokerRefused: see there.
        """
        self._offsets.commit({}, self._positions())

    def _positions(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.result_topic(task), 0, position.next_offset)
            for task, position in self.positions.items()
        ]

    def take_over(
        self, sources: Sequence[SourceSlot], logged: PlannedBatch | None
    ) -> dict[int, CommittedOffset]:
        """Return by slot what is durable: the state, or what an operator has set since.

        Run and term are then above all earlier ones. Where there is no state, it is new or lost: which runs
        the spout used before, if any, is not known then, and what we had committed to the group counts.
        """
        group = self._offsets.fetch(sources, None)
        terms = [entry.ours.term for entry in group.values() if entry.ours]
        state = self._read.spout
        self.term = 1 + max(*terms, logged.term if logged else 0, state.term if state else 0, 0)
        self.number = self.term << NUMBER_BITS
        self.logged = (state.batch, state.batch_term) if state else (0, 0)
        logged_runs = [range_.run for range_ in logged.ranges] if logged else []
        if state is not None:
            self.use_run(next_run(state.run))
        elif terms or logged_runs or self._have_results():
            run = next_run(max(logged_runs)) if logged_runs else 1 + int(world.random_fraction() * MAX_RUN)
            self.use_run(run)
        else:
            self.use_run(1)
        known = {source.slot: entry for source in sources if (entry := self.known(source))}
        foreign = {slot for slot, entry in group.items() if entry.ours is None}
        return group | {slot: entry for slot, entry in known.items() if slot not in foreign}

    def known(self, source: SourceSlot) -> CommittedOffset | None:
        """Return what the state that was read at the start says of a slot.

        Raises:
            UnreadableState: its bitmap is damaged.
        """
        if (state := self._read.slots.get(key_of(source))) is None:
            return None
        try:
            done = BitMap64.deserialize(state.done)
        except ValueError as error:
            raise UnreadableState(
                f"{self._topic.topic}: what is done of {source.topic}/{source.partition} is damaged: {error}"
            ) from error
        return CommittedOffset(state.frontier, CommitMetadata(self.term, source.topic_id, done))

    def continued(self, logged: PlannedBatch | None) -> PlannedBatch | None:
        """Return what a checkpoint has logged last, None if a driver has gone on since without it."""
        newest = if_newest(logged, *self.logged)
        self._begins = logged is None
        if logged is not None:
            self._see(logged.number if newest is not None else self.number)
        if logged is not newest:
            text = "the checkpoint is not the newest one of group %s: what is not done is emitted again"
            log.warning(text, self._group, extra={"action": "older_checkpoint"})
        return newest

    def _see(self, number: int) -> None:
        """Let all later commits say which batch is logged: a checkpoint without it is an older one."""
        self.logged = max(self.logged, (number, self.term))

    def plan(self, batch: PlannedBatch) -> PlannedBatch:
        """Number a batch that is given to Spark."""
        self.number += 1
        self.planned = replace(batch, number=self.number)
        return self.planned

    def _have_results(self) -> bool:
        """Return whether anything was ever emitted for this spout, even if its state is lost."""
        return any(end > 0 for _, end in self._result_bounds().values())

    def results_are_removed(self) -> bool:
        """Return whether retention has removed results that no driver has read for good."""
        bounds = self._result_bounds()
        return any(begin > self.positions[task].next_offset for task, (begin, _) in bounds.items())

    def _result_bounds(self) -> dict[int, tuple[int, int]]:
        """Return by task where its result topic begins and ends."""
        places = {task: TopicPartition(self.result_topic(task), 0) for task in self.positions}
        with clear_errors(self._bootstrap):
            return {
                task: self._consumer.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S)
                for task, place in places.items()
            }

    def serve(self, tasks: Mapping[int, TaskLedger]) -> None:
        """Set the tasks whose state is committed from here on."""
        self._tasks = tasks

    @property
    def has_state(self) -> bool:
        """Return whether a driver before this one has committed."""
        return self._read.spout is not None

    @property
    def floors(self) -> dict[int, int]:
        """Return the lowest run that counts, by slot, as the state that was read at the start says."""
        slots = {SlotKey(slot.topic, slot.partition, slot.topic_id): slot.slot for slot in self._slots}
        return {slots[key]: state.floor for key, state in self._read.slots.items() if key in slots}

    def use_run(self, run: int) -> None:
        """Give all tasks one run, so that a slot may move between them; durable with the next commit."""
        self.run = run
        for task in self._tasks.values():
            task.run = run
            for ledger in task.slots.values():
                if is_too_old(ledger.floor, run):
                    ledger.renew(run)
        for key, state in self._read.slots.items():
            self._read.slots[key] = state._replace(floor=raised(state.floor, run))

    def begin_run(self) -> None:
        """Begin a run, durable with the next commit."""
        self.use_run(next_run(self.run))

    def renew_run(self) -> None:
        """Begin a run, durably, where one more replay may have the root id of an earlier emission."""
        if any(task.is_run_used_up for task in self._tasks.values()):
            self.begin_run()
            self.store()

    def written(self, batch: PlannedBatch) -> None:
        """Record that Spark has logged a batch: the failures it replays no longer hold the result position.

        Only for the batch planned last: Spark names a batch until it has logged the next one. A driver that
        began without a checkpoint makes durable that all others are older: not before, because Spark asks for
        an initial offset even if it has logged a first batch.
        """
        self._see(self.number if self._begins else batch.number)
        if self._begins:
            self._begins = False
            self.store()
        if batch == self.planned:
            self.planned = None
            replayed = [emission for task in self._tasks.values() for emission in task.pop_answered()]
            for cut in self.cuts.values():
                cut.written(replayed)

    def moved(self, sources: Sequence[SourceSlot]) -> dict[int, CommittedOffset]:
        """Return by slot what somebody else has committed since our last commit.

        Raises:
            ZombieDriver: it is a newer driver's.
        """
        moved = self._offsets.fetch(sources, self.term)
        if moved or self._offsets.has_lost:
            self._committed = None  # whatever it is, it is overwritten with what holds
        return moved

    @property
    def are_lost(self) -> bool:
        """Return whether the group no longer holds an offset that was committed, at the last check."""
        return self._offsets.has_lost

    def store(self) -> None:
        """Commit the state; the result positions stay, and the group's offsets wait for the next commit.

        Raises what ``StateTopic.commit`` raises.
        """
        self._store({task: position.next_offset for task, position in self.positions.items()}, is_due=False)

    def commit(self) -> None:
        """Commit all that has changed, or everything if the last commit is RENEW_INTERVAL_S old."""
        # Life of a record, step 12.
        self.end_commands()
        reach = {slot: each.known_end for task in self._tasks.values() for slot, each in task.slots.items()}
        cuts = {task: cut.cut(reach, self._is_open) for task, cut in self.cuts.items()}
        is_due = self._monotonic() >= self._renew_at_s
        self._store(cuts, is_due)
        if is_due or self._stored != self._committed:
            views = {slot: view for slot, (_, _, view) in self._encoded.items()}
            self._offsets.commit(views if is_due else self._offsets.unheld(views), self._positions())
            self._committed = self._stored
            if is_due:
                self._renew_at_s = self._monotonic() + RENEW_INTERVAL_S
        for task in self._tasks.values():
            for ledger in task.slots.values():
                ledger.discard_blocks()

    def _store(self, cuts: Mapping[int, int], is_due: bool) -> None:
        """Commit what has changed of the state with these result positions, all of it if that is due."""
        records: dict[bytes, bytes | None] = {**self._slot_records(), SPOUT_KEY: self._spout_record(cuts)}
        gone = self._stored.keys() - records.keys()
        known = {} if is_due else self._stored
        changed = {key: value for key, value in records.items() if known.get(key) != value}
        if changed or gone:
            self._topic.commit(changed | dict.fromkeys(gone))
            self._stored = {key: value for key, value in records.items() if value is not None}
        for task, next_offset in cuts.items():
            self.positions[task].next_offset = next_offset

    def _spout_record(self, cuts: Mapping[int, int]) -> bytes:
        tasks = [
            TaskPosition(
                task, cuts[task], [AppliedCommand(at, *each) for at, each in position.replays.items()]
            )
            for task, position in self.positions.items()
        ]
        return encode_spout_state(SpoutState(self.term, self._driver, self.run, *self.logged, tasks))

    def _slot_records(self) -> dict[bytes, bytes]:
        """Return by key what is known of all slots, of those that are not read any more, too.

        Of a topic that was created anew nothing is kept but of its newest incarnation.
        """
        records: dict[bytes, bytes] = {}
        ids: dict[str, str] = {}
        encoded: dict[int, tuple[object, bytes, State]] = {}
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                source = task.sources[slot]
                ids[source.topic] = source.topic_id
                version, made = (slot, ledger.floor, ledger.changes), self._encoded.get(slot)
                if made is None or made[0] != version:
                    made = version, *_encoded(self.term, source, ledger)
                encoded[slot] = made
                records[key_of(source).encode()] = made[1]
        self._encoded = encoded
        for key, state in self._read.slots.items():
            if ids.get(key.topic, key.topic_id) == key.topic_id:
                records.setdefault(key.encode(), encode_slot_state(state))
        return records

    def _is_open(self, emission: Emission) -> bool:
        return any(task.is_open(emission) for task in self._tasks.values())

    def end_commands(self) -> None:
        """End the commands that are done; remove those that the committed position has passed."""
        live = set[tuple[int, int]]()
        for task in self._tasks.values():
            for ledger in task.slots.values():
                ledger.end_command()
                live.update((command.task, command.position) for command in ledger.on_record)
        for number, at in self.positions.items():
            at.replays = {
                position: applied if (number, position) in live else (0, 0)
                for position, applied in at.replays.items()
                if (number, position) in live or position >= at.next_offset
            }


def _encoded(term: int, source: SourceSlot, ledger: PartitionLedger) -> tuple[bytes, State]:
    """Return the state of a slot, and what the group shows of it."""
    state = SlotState(ledger.frontier, ledger.floor, serialized(ledger.done))
    view = encode_metadata(term, source.topic_id, ledger.frontier, ledger.done).text
    return encode_slot_state(state), (source, ledger.frontier, view)
