"""What a spout's driver keeps in its group: frontiers and bitmaps, result positions, runs, floors, epoch.

Invariant: a result position follows only what the same commit or a written batch holds, and a run is durable
before its first use. Nothing is sent when nothing has changed.
"""

import random
from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import Consumer, TopicPartition

from acktree.producers.claim import Claim, claim_run, is_first, next_epoch
from acktree.schemas.ids import MAX_RUN, next_run, run_at_least
from acktree.schemas.registry import Published
from acktree.spark.batch import Batch
from acktree.spark.done_set import encode_metadata
from acktree.spark.group_offsets import Committed, GroupOffsets
from acktree.spark.ledger import PartitionLedger
from acktree.spark.result_cut import ResultCut
from acktree.spark.takeover import raised
from acktree.spark.task_ledger import SourcePartition, TaskLedger

State = tuple[SourcePartition, int, str]


class SpoutCommits:
    """All claims and cuts of one spout, by task; one run and one epoch for all of them."""

    def __init__(self, consumer: Consumer, published: Published, spout: str, bootstrap: str) -> None:
        self._consumer, self._published, self._bootstrap = consumer, published, bootstrap
        self._group = published.group_of(spout)
        self._offsets = GroupOffsets(consumer, self._group, bootstrap)
        self.claims: dict[int, Claim] = {}
        self.cuts: dict[int, ResultCut] = {}
        self._tasks: Mapping[int, TaskLedger] = {}
        self._texts: dict[int, tuple[object, State, int]] = {}
        self._committed: object = None

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
        """Claim tasks that were added, under the run and epoch of the others."""
        run, epoch = self.run, next(iter(self.claims.values())).epoch
        for task in sorted(tasks):
            self.claim([task])
            self.claims[task].run, self.claims[task].epoch = run, epoch

    def take_over(self, sources: Sequence[SourcePartition], logged: Batch | None) -> dict[int, Committed]:
        """Return what is committed by slot, with run and epoch of all claims above all that was."""
        committed = self._offsets.fetch(sources, None)
        run = 0
        for claim in self.claims.values():
            run = claim.run if not run or run_at_least(claim.run, run) else run
        logged_runs = [range_.run for range_ in logged.ranges] if logged else []
        if self._outrank(committed.values(), bool(logged_runs)):
            run = next_run(max(logged_runs)) if logged_runs else random.randint(1, MAX_RUN)
        self.use_run(run)
        return committed

    def _outrank(self, committed: Iterable[Committed], has_logged: bool) -> bool:
        """Give all claims one epoch, above every commit of ours: who starts last is the driver.

        Returns True where all claims are new though this spout ran before: which runs it used is not known.
        """
        highest = max((stands.ours.epoch for stands in committed if stands.ours), default=0)
        epoch = max(claim.epoch for claim in self.claims.values())
        lost = is_first(epoch) and (highest > 0 or has_logged)
        if epoch <= highest:
            epoch = next_epoch(highest)
        for claim in self.claims.values():
            claim.epoch = epoch
        return lost

    def serve(self, tasks: Mapping[int, TaskLedger]) -> None:
        """Say whose state is committed from here on."""
        self._tasks = tasks

    @property
    def run(self) -> int:
        return next(iter(self.claims.values())).run

    @property
    def floors(self) -> dict[int, int]:
        """Return the lowest run that counts, by slot."""
        return {slot: floor for claim in self.claims.values() for slot, floor in claim.floors.items()}

    def use_run(self, run: int) -> None:
        """Give all tasks one run, so that a slot may move between them; durable with the next commit."""
        for claim in self.claims.values():
            claim.run = run
            claim.floors = {slot: raised(floor, run) for slot, floor in claim.floors.items()}
        for number, task in self._tasks.items():
            task.run = run
            for slot, ledger in task.slots.items():
                ledger.floor = self.claims[number].floors[slot]

    def moved(self, sources: Sequence[SourcePartition]) -> dict[int, Committed]:
        """Return by slot what somebody else has committed since our last commit.

        Raises:
            ZombieDriver: it is a newer driver's.
        """
        epoch = next(iter(self.claims.values())).epoch
        moved = self._offsets.fetch(sources, {source.slot: epoch for source in sources})
        if moved:
            self._committed = None  # whatever it is, it is overwritten with what holds
        return moved

    def commit_claims(self) -> None:
        """Commit runs, floors and commands; the result positions stay."""
        self._send({}, [self._position(task, claim.next_offset) for task, claim in self.claims.items()])

    def commit_states(self) -> None:
        """Commit frontiers and bitmaps alone."""
        states, _, _ = self._encode()
        self._offsets.commit(states, [])
        self._committed = None

    def commit(self) -> None:
        """Commit all that has changed."""
        self._end_commands()
        states, reach, seen = self._encode()
        frontiers = {slot: frontier for slot, (_, frontier, _) in states.items()}
        positions = [
            self._position(task, cut.cut(reach, frontiers, self._is_open)) for task, cut in self.cuts.items()
        ]
        told = (seen, [(position.topic, position.offset, position.metadata) for position in positions])
        if told != self._committed:
            self._send(states, positions)
            self._committed = told
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                ledger.forget_blocks(reach[slot])

    def _position(self, task: int, next_offset: int) -> TopicPartition:
        return TopicPartition(self.result_topic(task), 0, next_offset, metadata=self.claims[task].metadata())

    def _send(self, states: Mapping[int, State], positions: Sequence[TopicPartition]) -> None:
        self._offsets.commit(states, positions)
        self._committed = None
        for claim, position in zip(self.claims.values(), positions, strict=True):
            claim.next_offset = position.offset

    def _is_open(self, slot: int, first: int) -> bool:
        return any(task.is_open(slot, first) for task in self._tasks.values())

    def _encode(self) -> tuple[dict[int, State], dict[int, int], list[object]]:
        """Return states and reach by slot, and what the states depend on."""
        states, reach, seen = dict[int, State](), dict[int, int](), list[object]()
        epoch = next(iter(self.claims.values())).epoch
        for task in self._tasks.values():
            for slot, ledger in task.slots.items():
                mark = (slot, epoch, ledger.changes)
                known = self._texts.get(slot)
                if known is None or known[0] != mark:
                    known = self._texts[slot] = (mark, *_encoded(epoch, task.sources[slot], ledger))
                states[slot], reach[slot] = known[1:]
                seen.append(mark)
        return states, reach, seen

    def _end_commands(self) -> None:
        """Note the commands that are done; forget those that the committed position has passed."""
        live = set()
        for task in self._tasks.values():
            for ledger in task.slots.values():
                ledger.end_command()
                if ledger.command is not None:
                    live.add((ledger.command.task, ledger.command.position))
        for number, claim in self.claims.items():
            claim.replays = {
                position: obeyed if (number, position) in live else (0, 0)
                for position, obeyed in claim.replays.items()
                if (number, position) in live or position >= claim.next_offset
            }


def _encoded(epoch: int, source: SourcePartition, ledger: PartitionLedger) -> tuple[State, int]:
    text, reach = encode_metadata(epoch, source.topic_id, ledger.frontier, ledger.done)
    return (source, ledger.frontier, text), reach
