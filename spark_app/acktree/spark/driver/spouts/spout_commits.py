"""What a spout's driver keeps in its group: frontiers and bitmaps, result positions, runs, floors, epoch.

Invariant: a result position follows only what the same commit or a written batch holds, and a run is durable
before its first use. Nothing is committed by a driver that could know of a newer one. Nothing is sent when
nothing has changed, except that offsets are committed again from time to time, or Kafka would expire them.
"""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from confluent_kafka import Consumer, TopicPartition
from pyroaring import BitMap64

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import clear_errors
from acktree.core.topology.registry import Published
from acktree.producers.spouts.claim import Claim, claim_run, next_epoch, read_claims
from acktree.producers.spouts.outside_commit import RENEW_INTERVAL_S
from acktree.spark.driver.group_offsets import CommittedOffset, GroupOffsets, State, ZombieDriver
from acktree.spark.driver.spouts.takeover import if_newest, is_too_old, raised
from acktree.spark.ledger.logged_batch import NUMBER_BITS, PlannedBatch
from acktree.spark.ledger.partitions.done_set import encode_metadata
from acktree.spark.ledger.partitions.partition import PartitionLedger
from acktree.spark.ledger.result_cut import Emission, ResultCut
from acktree.spark.ledger.task import SourceSlot, TaskLedger
from acktree.spark.shared.options import SourceOptions
from acktree.wire.ids import MAX_RUN, next_run, run_at_least

log = logging.getLogger("acktree.spark")


class SpoutCommits:
    """All claims and cuts of one spout, by task; one run and one epoch for all of them."""

    def __init__(
        self,
        consumer: Consumer,
        published: Published,
        options: SourceOptions,
        monotonic: Callable[[], float],
    ) -> None:
        self._consumer, self._published, self._bootstrap = consumer, published, options.bootstrap
        self._group = published.group_of(options.spout)
        self._offsets = GroupOffsets(consumer, self._group, options.bootstrap)
        self.claims: dict[int, Claim] = {}
        self.cuts: dict[int, ResultCut] = {}
        self._tasks: Mapping[int, TaskLedger] = {}
        self._texts: dict[int, tuple[object, State, int, BitMap64]] = {}
        self._committed: object = None
        self._monotonic, self._renew_at_s = monotonic, 0.0
        self.planned: PlannedBatch | None = None
        self.number = 0
        """The number of the batch planned last."""
        self._begins = False

    def result_topic(self, task: int) -> str:
        return self._published.result_topic(task)

    def claim(self, tasks: Iterable[int]) -> None:
        """Claim tasks, those that were taken away among them: their results are read until drained.

        Raises:
            DamagedClaim, LostClaim, GroupInUse, BrokerUnreachable: see ``claim_run``.
        """
        for task in sorted(tasks):
            claim = claim_run(self._consumer, self.result_topic(task), self._group, self._bootstrap)
            self.claims[task] = claim
            self.cuts[task] = ResultCut(claim.next_offset)

    def join(self, tasks: Iterable[int]) -> None:
        """Claim tasks that were added, under the run of the others and the highest epoch of all."""
        run = self.run
        self.claim(tasks)
        epoch = max(claim.epoch for claim in self.claims.values())
        for claim in self.claims.values():
            claim.run, claim.epoch = run, epoch
        self.number = max(self.number, epoch << NUMBER_BITS)

    def take_over(
        self, sources: Sequence[SourceSlot], logged: PlannedBatch | None
    ) -> dict[int, CommittedOffset]:
        """Return what is committed by slot; run and epoch of all claims are then above all earlier ones.

        Claims with floors are those of a driver that has opened: their run is above all before it. Those
        without say nothing, be they new or left by a driver that died at once: which runs the spout used
        before, if any, is not known then.
        """
        committed = self._offsets.fetch(sources, None)
        run = 0
        for claim in self.claims.values():
            run = claim.run if not run or run_at_least(claim.run, run) else run
        logged_runs = [range_.run for range_ in logged.ranges] if logged else []
        epochs = [entry.ours.epoch for entry in committed.values() if entry.ours]
        highest = max(*epochs, logged.epoch if logged else 0, 0)
        if not self.floors and (highest or logged_runs or self._have_results()):
            run = next_run(max(logged_runs)) if logged_runs else 1 + int(world.random_fraction() * MAX_RUN)
        self._outrank(highest)
        self.use_run(run)
        self.number = next(iter(self.claims.values())).epoch << NUMBER_BITS
        return committed

    def continued(self, logged: PlannedBatch | None) -> PlannedBatch | None:
        """Return what a checkpoint has logged last, None if a driver has gone on since without it."""
        newest = if_newest(logged, *max(claim.logged for claim in self.claims.values()))
        self._begins = logged is None
        if logged is not None:
            self._see(logged.number if newest is not None else self.number)
        if logged is not newest:
            text = "the checkpoint is not the newest one of group %s: what is not done is emitted again"
            log.warning(text, self._group, extra={"action": "older_checkpoint"})
        return newest

    def _see(self, number: int) -> None:
        """Let all later commits say which batch is logged: a checkpoint without it is an older one."""
        for claim in self.claims.values():
            claim.logged = max(claim.logged, (number, self.number >> NUMBER_BITS))

    def plan(self, batch: PlannedBatch) -> PlannedBatch:
        """Number a batch that is given to Spark."""
        self.number += 1
        self.planned = replace(batch, number=self.number)
        return self.planned

    def _have_results(self) -> bool:
        """Return whether anything was ever emitted for this spout, even if its offsets have expired."""
        return any(end > 0 for _, end in self._result_bounds().values())

    def results_are_removed(self) -> bool:
        """Return whether retention has removed results that no driver has read for good."""
        bounds = self._result_bounds()
        return any(begin > self.claims[task].next_offset for task, (begin, _) in bounds.items())

    def _result_bounds(self) -> dict[int, tuple[int, int]]:
        """Return by task where its result topic begins and ends."""
        places = {task: TopicPartition(self.result_topic(task), 0) for task in self.claims}
        with clear_errors(self._bootstrap):
            return {
                task: self._consumer.get_watermark_offsets(place, timeout=BROKER_TIMEOUT_S)
                for task, place in places.items()
            }

    def _outrank(self, highest: int) -> None:
        """Give all claims one epoch, above every commit of ours: who starts last is the driver."""
        epoch = max(claim.epoch for claim in self.claims.values())
        if epoch <= highest:
            epoch = next_epoch(highest)
        for claim in self.claims.values():
            claim.epoch = epoch

    def serve(self, tasks: Mapping[int, TaskLedger]) -> None:
        """Set the tasks whose state is committed from here on."""
        self._tasks = tasks

    @property
    def run(self) -> int:
        return next(iter(self.claims.values())).run

    @property
    def floors(self) -> dict[int, int]:
        """Return the lowest run that counts, by slot; of a slot that has moved between tasks the newest."""
        found: dict[int, int] = {}
        for claim in self.claims.values():
            for slot, floor in claim.floors.items():
                if slot not in found or run_at_least(floor, found[slot]):
                    found[slot] = floor
        return found

    @property
    def frontiers(self) -> dict[int, int]:
        """Return by slot below which offset all is done, as the claims say."""
        return {slot: at for claim in self.claims.values() for slot, at in claim.frontiers.items()}

    def remove_floors(self, gone: Container[int]) -> None:
        """Remove floors of slots that are gone, and those that another task holds now."""
        owners = {slot: number for number, task in self._tasks.items() for slot in task.slots}
        for number, claim in self.claims.items():
            claim.floors = {
                slot: floor
                for slot, floor in claim.floors.items()
                if slot not in gone and owners.get(slot, number) == number
            }

    def use_run(self, run: int) -> None:
        """Give all tasks one run, so that a slot may move between them; durable with the next commit."""
        for number, task in self._tasks.items():
            task.run = run
            for slot, ledger in task.slots.items():
                if is_too_old(ledger.floor, run):
                    ledger.renew(run)
                self.claims[number].floors[slot] = ledger.floor
        for claim in self.claims.values():
            claim.run = run
            claim.floors = {slot: raised(floor, run) for slot, floor in claim.floors.items()}

    def begin_run(self, task: int, slot: int) -> None:
        """Begin a run, durable with the next commit; earlier emissions of the slot count no more."""
        self.use_run(next_run(self.run))
        self.claims[task].floors[slot] = self.run

    def renew_run(self) -> None:
        """Begin a run, durably, where one more replay may have the root id of an earlier emission."""
        if any(task.is_run_used_up for task in self._tasks.values()):
            self.use_run(next_run(self.run))
            self.commit_claims()

    def written(self, batch: PlannedBatch) -> None:
        """Record that Spark has logged a batch: the failures it replays no longer hold the result position.

        Only for the batch planned last: Spark names a batch until it has logged the next one. A driver that
        began without a checkpoint makes durable that all others are older: not before, because Spark asks for
        an initial offset even if it has logged a first batch.
        """
        self._see(self.number if self._begins else batch.number)
        if self._begins:
            self._begins = False
            self.commit_claims()
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
        epoch = next(iter(self.claims.values())).epoch
        moved = self._offsets.fetch(sources, {source.slot: epoch for source in sources})
        if moved or self._offsets.has_lost:
            self._committed = None  # whatever it is, it is overwritten with what holds
        return moved

    @property
    def are_lost(self) -> bool:
        """Return whether the group no longer holds an offset that was committed, at the last check."""
        return self._offsets.has_lost

    def check_epoch(self) -> None:
        """Check that the claims are still ours; one that was lost or overwritten is written again.

        Raises:
            ZombieDriver: a newer driver has claimed a task.
        """
        topics = {self.result_topic(task): claim for task, claim in self.claims.items()}
        for topic, entry in read_claims(self._consumer, topics, self._bootstrap).items():
            claim = topics[topic]
            if entry is not None and entry.epoch > claim.epoch:
                raise ZombieDriver(
                    f"a newer driver (epoch {entry.epoch}, this one has {claim.epoch}) has claimed group "
                    f"{self._group}; only one driver may run per spout task, this one stops"
                )
            if entry is None or entry.epoch < claim.epoch:
                self._committed = None

    def commit_claims(self) -> None:
        """Commit runs, floors and commands; the result positions stay."""
        self._send({}, [self._position(task, claim.next_offset) for task, claim in self.claims.items()])

    def commit_states(self) -> None:
        """Commit frontiers and bitmaps alone."""
        # Life of a record, step 12.
        self.check_epoch()
        states, _, _ = self._encode()
        self._commit(self._offsets.unheld(states), [])

    def commit(self) -> None:
        """Commit all that has changed, or everything if the last commit is RENEW_INTERVAL_S old."""
        self.end_commands()
        for number, claim in self.claims.items():
            slots = self._tasks[number].slots if number in self._tasks else {}
            claim.frontiers = {slot: ledger.frontier for slot, ledger in slots.items()}
        states, reach, versions = self._encode()
        positions = [self._position(task, cut.cut(reach, self._is_open)) for task, cut in self.cuts.items()]
        state = (versions, [(position.topic, position.offset, position.metadata) for position in positions])
        if (is_due := self._monotonic() >= self._renew_at_s) or state != self._committed:
            self._send(states if is_due else self._offsets.unheld(states), positions)
            self._committed = state
            self._renew_at_s = self._monotonic() + RENEW_INTERVAL_S
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                ledger.discard_blocks(reach[slot])

    def _position(self, task: int, next_offset: int) -> TopicPartition:
        return TopicPartition(self.result_topic(task), 0, next_offset, metadata=self.claims[task].metadata())

    def _send(self, states: Mapping[int, State], positions: Sequence[TopicPartition]) -> None:
        self.check_epoch()
        self._commit(states, positions)
        for claim, position in zip(self.claims.values(), positions, strict=True):
            claim.next_offset = position.offset

    def _commit(self, states: Mapping[int, State], positions: Sequence[TopicPartition]) -> None:
        self._offsets.commit(states, positions)
        self._committed = None
        for task in self._tasks.values():
            for slot in task.slots.keys() & states.keys():
                task.slots[slot].committed_done = self._texts[slot][3].copy()

    def _is_open(self, emission: Emission) -> bool:
        return any(task.is_open(emission) for task in self._tasks.values())

    def _encode(self) -> tuple[dict[int, State], dict[int, int], list[object]]:
        """Return states and reach by slot, and what the states depend on."""
        states, reach, versions = dict[int, State](), dict[int, int](), list[object]()
        epoch = next(iter(self.claims.values())).epoch
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                version = (slot, epoch, ledger.changes)
                known = self._texts.get(slot)
                if known is None or known[0] != version:
                    known = self._texts[slot] = (version, *_encoded(epoch, task.sources[slot], ledger))
                states[slot], reach[slot] = known[1:3]
                versions.append(version)
        return states, reach, versions

    def end_commands(self) -> None:
        """End the commands that are done; remove those that the committed position has passed."""
        live = set[tuple[int, int]]()
        for task in self._tasks.values():
            for ledger in task.slots.values():
                ledger.end_command()
                live.update((command.task, command.position) for command in ledger.on_record)
        for number, claim in self.claims.items():
            claim.replays = {
                position: applied if (number, position) in live else (0, 0)
                for position, applied in claim.replays.items()
                if (number, position) in live or position >= claim.next_offset
            }


def _encoded(epoch: int, source: SourceSlot, ledger: PartitionLedger) -> tuple[State, int, BitMap64]:
    made = encode_metadata(epoch, source.topic_id, ledger.frontier, ledger.done, ledger.committed_done)
    return (source, ledger.frontier, made.text), min(made.reach, ledger.known_end), made.committed
