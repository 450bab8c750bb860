"""Commits the state of a spout: its slots, positions on its result topics, term and batch.

Invariant: the state topic is the truth, and each commit is one transaction there: the effects of results and
commands, and the positions behind them. The group's offsets are a view of it, written after it. Spark's batch
is planned on a committed state that does not hold it: it is in flight only if the checkpoint has it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from acktree.core import world
from acktree.core.kafka.clients import ask_bounds
from acktree.core.kafka.errors import clear_errors
from acktree.core.topology.registry import History
from acktree.producers.collecting.arithmetic.transaction_limit import Passage
from acktree.producers.ledger.logged_batch import NUMBER_BITS, PlannedBatch
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.slot_states import state_of
from acktree.producers.ledger.task import SourceSlot, TaskLedger
from acktree.producers.spouts.driver.group_offsets import CommittedOffset, GroupOffsets
from acktree.producers.spouts.driver.owners import Owners
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.driver.spout_states import SpoutStates
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S
from acktree.producers.spouts.state_topic import (
    TRANSACTION_TIMEOUT_MS,
    DeadLetter,
    OutputRecord,
    StateTopic,
)
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import MAX_RUN
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    SlotKey,
    SlotState,
    SpoutState,
    StateStart,
    TaskPosition,
    encode_slot_state,
    encode_spout_state,
    task_key,
    task_start_key,
)

log = logging.getLogger("acktree.spark")

Records = dict[bytes, bytes]
"""Records of the state topic by key."""


class BatchNotLogged(AcktreeError):
    """Spark continues from a batch other than the last one it was given."""


@dataclass(slots=True)
class ResultPosition:
    """Tracks how far a task's results are applied; a command among them may still wait."""

    read: int = 0
    waiting: set[int] = field(default_factory=set)
    applied: set[int] = field(default_factory=set)

    @property
    def next_offset(self) -> int:
        """Return from where a restart reads on; what it reads again changes nothing."""
        return min(self.read, *self.waiting) if self.waiting else self.read

    def state(self, task: int) -> TaskPosition:
        """Return what a commit says, and forget the commands that it has passed."""
        self.applied = {each for each in self.applied if each >= self.next_offset}
        return TaskPosition(task, self.next_offset, sorted(self.applied))


class _Encoded(NamedTuple):
    """The encoded record of a slot, for one version of its ledger."""

    ledger: PartitionLedger
    version: object
    key: bytes
    record: bytes


def key_of(source: SourceSlot) -> SlotKey:
    """Return the key of a slot's state."""
    return SlotKey(source.topic, source.partition, source.topic_id)


class SpoutCommits:
    """The state of one spout, and its commits; one term for all tasks."""

    def __init__(
        self,
        consumer: Consumer,
        admin: AdminClient,
        history: History,
        options: SpoutOptions,
        monotonic: Callable[[], float],
    ) -> None:
        published, task = history.latest, options.task
        self._consumer, self._published, self._bootstrap = consumer, published, options.bootstrap
        self._owners = Owners(history, options.spout, task)
        self._group = published.group_of(options.spout)
        self._offsets = GroupOffsets(consumer, self._group, options.bootstrap)
        self._task, self._key = task, SPOUT_KEY if task is None else task_key(task)
        self._topic = StateTopic(
            admin,
            options.bootstrap,
            options.kafka,
            self._group,
            published.state_topic(options.spout),
            self._owners.id_of(task),
            start_key=START_KEY if task is None else task_start_key(task),
            version=published.version,
            **({} if task is None else {"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}),
        )
        self._read = SpoutStates(task)
        """What was read at the start of slots that are not read."""
        self._known_ids: dict[str, set[str]] = {}
        """The ids of each topic that the state knew at the start, no matter which task read it."""
        self._kept: set[SlotKey] = set()
        """Slots of which all that was in flight at the start still is."""
        self._stored: dict[bytes, bytes] = {}
        """What this driver has committed, by key."""
        self._encoded: dict[SourceSlot, _Encoded] = {}
        self._unread: dict[SlotKey, bytes] = {}
        """The same of slots that are not read."""
        self.term = 0
        self.batch = self.planned = 0
        """Numbers of the last batch known to be in the checkpoint, and of the one planned on the state."""
        self._number = 0
        self._given: int | None = None
        """The batch that Spark was given and that it has not named since."""
        self.is_first = False
        """Whether nobody has done anything for these tasks."""
        self.positions: dict[int, ResultPosition] = {}
        self._tasks: Mapping[int, TaskLedger] = {}
        self._monotonic, self._renew_at_s = monotonic, 0.0
        self._dead_letters: list[DeadLetter] = []
        """Those of records that are done in memory: whatever is committed next has them with it."""
        self._output: list[OutputRecord] = []
        """The same of records that are written in memory."""
        self._viewed: object = None
        self._driver = f"{world.current().host_name()}/{world.process_id()}"

    def result_topic(self, task: int) -> str:
        return self._published.result_topic(task)

    def driver_start(self) -> StateStart | None:
        """Return the newest start of a driver of all tasks, as far as it is committed."""
        return self._topic.read_committed(SpoutStates()).starts.get(None)

    def begin(self, tasks: Iterable[int], driver_before: StateStart | None = None) -> None:
        """Fence who was there before, and read the state; those taken away are among ``tasks``.

        Their results are read until drained. Raises TakenOver, and what ``StateTopic.take_over`` raises.
        """
        to_end = partial(self._owners.to_end, driver_before=driver_before)
        states = self._topic.take_over(SpoutStates(self._task), to_end).at_start()
        wanted = set(tasks)
        readers = states.readers
        for task, (_, (_, next_offset, applied)) in readers.items():
            if self._task is None or task in wanted:
                self.positions[task] = ResultPosition(next_offset, applied=set(applied))
        for key in states.slots:
            self._known_ids.setdefault(key.topic, set()).add(key.topic_id)
        states.slots = {key: state for key, state in states.slots.items() if self._owners.has(key)}
        self._kept = {key for key, state in states.slots.items() if self._owners.keeps(state, readers)}
        self._read = states
        self._stored = dict.fromkeys((key.encode() for key in self._read.slots), b"")
        self.join(wanted)

    def join(self, tasks: Iterable[int]) -> None:
        """Add tasks, each with the position that is known of it."""
        for task in sorted(tasks):
            self.positions.setdefault(task, ResultPosition())

    def probe(self) -> None:
        """Commit the result positions to the group, for its tools, and to see that it has no members.

        Raises:
            GroupInUse: it has some. BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        self._offsets.commit({}, self.term, self._positions())

    def _positions(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.result_topic(task), 0, position.next_offset)
            for task, position in self.positions.items()
        ]

    def take_over(
        self, sources: Sequence[SourceSlot], logged: PlannedBatch | None
    ) -> dict[int, CommittedOffset]:
        """Return what the group holds by slot; the term is then above all earlier ones.

        Where there is no state, it is new or lost; one that is older than the group or the checkpoint was
        restored from a backup. Which runs a slot has used, if any, is not known then.
        """
        group = self._offsets.fetch(sources, None)
        terms = [entry.seal.term for entry in group.values() if entry.seal]
        states = self._read
        others = max(*terms, logged.term if logged else 0, 0)
        self.term = 1 + max(others, states.term)
        self._number = self.term << NUMBER_BITS
        if self._task is None and states.spout is not None:
            self.batch = states.spout.batch
            self.planned = 0 if any(map(states.is_newer, states.tasks)) else states.spout.planned
        if states.term < others:
            for key, slot in states.slots.items():
                run = _any_run()
                states.slots[key] = SlotState(
                    slot.frontier, slot.frontier, run, slot.done, run=run, epoch=slot.epoch
                )
        own = states.tasks if self._task is None else states.tasks.keys() & {self._task}
        is_known = states.spout is not None or own or states.slots or terms or logged
        self.is_first = not (is_known or self._have_results())
        return group

    def first_run(self) -> int:
        """Return the run of a slot without a state."""
        return 1 if self.is_first else _any_run()

    def take_state(self, source: SourceSlot) -> SlotState | None:
        """Return, once, what the state that was read at the start says of a slot; None for nothing."""
        return self._read.slots.pop(key_of(source), None)

    def keeps(self, source: SourceSlot) -> bool:
        """Return whether what the state has in flight of a slot stays so; see ``Owners.keeps``.

        Of a slot that is added once results are read, some have been passed.
        """
        return not self._tasks and key_of(source) in self._kept

    def is_of_former(self, topic: str, topic_id: str) -> bool:
        """Return whether the state is of a topic of this name with another id, and not of this one."""
        ids = self._known_ids.get(topic, set())
        return bool(ids) and topic_id not in ids

    def is_newest(self, logged: PlannedBatch | None) -> bool:
        """Return whether a checkpoint ends with the last batch that the state knows to be there, or the next.

        An older checkpoint, or one of another query, says nothing: all that the state has emitted is in
        flight, and what was planned on it since is emitted again.
        """
        if logged is None:
            return False
        if logged.number == self.batch or self.is_planned(logged):
            return True
        text = "the checkpoint is not the newest one of group %s: the last batch is emitted again"
        log.warning(text, self._group, extra={"action": "older_checkpoint"})
        return False

    def is_planned(self, logged: PlannedBatch) -> bool:
        """Return whether a batch is the one that was planned on the state, which does not hold it."""
        return self.planned > 0 and logged.number == self.planned

    def _have_results(self) -> bool:
        """Return whether anything was ever emitted for this spout, even if its state is lost."""
        return any(end > 0 for _, end in self._result_bounds().values())

    def results_are_removed(self) -> bool:
        """Return whether retention has removed results that no driver has read for good."""
        bounds = self._result_bounds()
        return any(begin > self.positions[task].read for task, (begin, _) in bounds.items())

    def _result_bounds(self) -> dict[int, tuple[int, int]]:
        """Return by task where its result topic begins and ends."""
        places = {task: TopicPartition(self.result_topic(task), 0) for task in self.positions}
        with clear_errors(self._bootstrap):
            return {task: ask_bounds(self._consumer, place) for task, place in places.items()}

    def serve(self, tasks: Mapping[int, TaskLedger]) -> None:
        """Set the tasks whose state is committed from here on."""
        self._tasks = tasks

    def written(self, batch: PlannedBatch) -> None:
        """Record that Spark has logged a batch and finished it; its first one may be a position alone.

        Raises:
            BatchNotLogged: it is not the one that was given to Spark last.
        """
        if self._given is None:
            return
        if batch.number != self._given:
            raise BatchNotLogged(
                f"Spark was given batch {self._given} of group {self._group}, but continued after batch "
                f"{batch.number}: it did not log the batch it was given. Restart the query"
            )
        self._given = None
        self.confirm(batch)

    def drop_unlogged(self) -> None:
        """Do not believe any more what was planned on the state and what Spark has not named by now.

        From here on results of it are passed. Not before: Spark asks a driver for an initial offset, and
        takes another one, where the first batch was logged before a crash.
        """
        if self._given is None:
            self.planned = 0

    def confirm(self, batch: PlannedBatch) -> None:
        """Record that a batch which was planned on the state is in the checkpoint: the state holds it now."""
        self.batch, self.planned = batch.number, 0

    def prepare(self) -> Records:
        """Return the state on which the next batch is planned; ``give`` commits it."""
        return self._records(self._number + 1)

    def give(self, batch: PlannedBatch, state: Records) -> PlannedBatch:
        """Commit the state on which a batch is planned, and return the batch with its number.

        No other commit follows before Spark has named the batch. Raises what ``StateTopic.commit`` raises.
        """
        self._store(state)
        self._number = self.planned = self._given = self._number + 1
        return replace(batch, number=self._number)

    def moved(self, sources: Sequence[SourceSlot]) -> dict[int, CommittedOffset]:
        """Return by slot what somebody else has committed since our last commit.

        Raises:
            ZombieDriver: it is a newer driver's.
        """
        moved = self._offsets.fetch(sources, self.term)
        if moved or self._offsets.has_lost:
            self._viewed = None  # whatever it is, it is overwritten with what holds
        return moved

    @property
    def are_lost(self) -> bool:
        """Return whether the group no longer holds an offset that was committed, at the last check."""
        return self._offsets.has_lost

    def commit(self) -> None:
        """Commit all that has changed, and show it in the group; all of it every RENEW_INTERVAL_S.

        Raises what ``StateTopic.commit`` and ``commit_offsets`` raise.
        """
        # Life of a record, step 12.
        if self._given is not None:
            return
        self._topic.check_fenced()
        if is_due := self._monotonic() >= self._renew_at_s:
            self._offsets.forget()
            self._encoded.clear()  # durations count from the time of their record
            self._renew_at_s = self._monotonic() + RENEW_INTERVAL_S
        self._store(self._records(self.planned), is_due)
        frontiers = {
            task.sources[slot]: ledger.frontier
            for task in self._tasks.values()
            for slot, ledger in task.slots.items()
            if slot not in task.left or ledger.frontier < ledger.next_offset
        }
        positions = [position.next_offset for position in self.positions.values()]
        if is_due or (frontiers, positions) != self._viewed:
            self._offsets.commit(frontiers, self.term, self._positions())
            self._viewed = (frontiers, positions)

    def commit_state(self) -> None:
        """Commit what has changed, without the group's offsets. Raises what ``StateTopic.commit`` raises."""
        if self._given is None:
            self._topic.check_fenced()
            self._store(self._records(self.planned))

    def commit_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Commit dead letters and the state in which their records are done; the view follows later.

        Raises what ``StateTopic.commit`` raises, and BrokerRefused: a topic takes no form of a letter. From
        then on nothing is committed without these letters.
        """
        assert self._given is None, "results are applied between batches"
        self._dead_letters += letters
        self._store(self._records(self.planned))

    def send(self, output: Sequence[OutputRecord]) -> Passage:
        """Begin the next commit with output, as ``StateTopic.send`` does; ``add_output`` then adds it.

        Nothing else may be committed meanwhile: what waits for a commit is committed first.
        """
        assert self._given is None, "a commit would wait for the batch that Spark was given"
        if self._output or self._dead_letters:
            self.commit_state()
        return self._topic.send(output)

    def add_output(self, output: Sequence[OutputRecord]) -> None:
        """Add records to what is committed next; in memory the state says already that they are written."""
        assert self._given is None, "a commit would wait for the batch that Spark was given"
        self._output += output

    def _store(self, records: Records, everything: bool = False) -> None:
        """Commit what has changed of the state, or all of it: else the transactional id would expire."""
        gone = self._stored.keys() - records.keys()
        known = {} if everything else self._stored
        changed: dict[bytes, bytes | None] = {
            key: value for key, value in records.items() if known.get(key) != value
        }
        if changed or gone or self._dead_letters or self._output:
            self._topic.commit(changed | dict.fromkeys(gone), self._dead_letters, self._output)
            self._dead_letters.clear()
            self._output.clear()
            self._stored = dict(records)

    def _records(self, planned: int) -> Records:
        return {**self._slot_records(), self._key: self._spout_record(planned)}

    def _spout_record(self, planned: int) -> bytes:
        tasks = [position.state(task) for task, position in self.positions.items()]
        numbers = self.term, self._driver, self.batch, planned
        return encode_spout_state(SpoutState(*numbers, tasks, self._published.version))

    def _slot_records(self) -> Records:
        """Return by key what is known of all slots, including those that are no longer read.

        Of a topic that was recreated only its newest incarnation is kept.
        """
        records: Records = {}
        ids: dict[str, str] = {}
        encoded: dict[SourceSlot, _Encoded] = {}
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                source = task.sources[slot]
                ids[source.topic] = source.topic_id
                made = self._encoded.get(source)
                if made is None or made.ledger is not ledger or made.version != ledger.version:
                    made = self._encode(source, ledger)
                encoded[source] = made
                records[made.key] = made.record
        self._encoded = encoded
        for key, state in self._read.slots.items():
            if ids.get(key.topic, key.topic_id) == key.topic_id:
                if key not in self._unread:
                    self._unread[key] = encode_slot_state(state)
                records[key.encode()] = self._unread[key]
        return records

    def _encode(self, source: SourceSlot, ledger: PartitionLedger) -> _Encoded:
        ledger.end_command()
        ledger.discard_blocks()
        record = encode_slot_state(state_of(ledger, self._monotonic())._replace(term=self.term))
        return _Encoded(ledger, ledger.version, key_of(source).encode(), record)


def _any_run() -> int:
    """Return the run to begin with where earlier ones may have been used, and nobody knows which."""
    return 1 + int(world.random_fraction() * MAX_RUN)
