"""The driver side of a spout: the one loop that reads results, plans batches and commits.

Invariant: nothing is committed that is not done, and the result position only follows what the same commit
or a written batch holds. It runs inside Spark's calls to ``latestOffset``; there is no thread.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.producers.claim import Claim, claim_run, is_first, next_epoch
from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    consumer_settings,
    make_admin,
    make_consumer,
    make_producer,
    producer_settings,
)
from acktree.schemas.codec import Absent, decode_told_to_spout
from acktree.schemas.errors import MalformedRecord
from acktree.schemas.ids import MAX_RUN, next_run, run_at_least
from acktree.schemas.registry import Registry
from acktree.schemas.stats import STATS_INTERVAL_S, Report
from acktree.spark.batch import MAX_REPLAYS, Batch, Range, Replays
from acktree.spark.dead_letters import DeadLetterWriter
from acktree.spark.done_set import encode_metadata
from acktree.spark.group_offsets import Committed, GroupOffsets
from acktree.spark.ledger import PartitionLedger, Replay, RetryPolicy
from acktree.spark.options import SourceOptions
from acktree.spark.result_cut import Place, ResultCut
from acktree.spark.source_topics import SpoutTopics
from acktree.spark.task_ledger import DeadLetter, SourcePartition, TaskLedger

COMMIT_INTERVAL_S = 0.5
IDLE_WAIT_S = 0.05
OLDEST_FLOOR_RUNS = 100
MAX_RESULTS_PER_POLL = 1_000


class SpoutDriver:
    """All spout tasks of one spout, for one streaming query."""

    def __init__(
        self,
        options: SourceOptions,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Connect and look at the source topics; nothing is claimed yet.

        Raises:
            AcktreeError: broker, topology, spout or topic is not there; the text says which.
        """
        self._options = options
        self._monotonic, self._jitter = monotonic, jitter
        self._bootstrap, user = options.bootstrap, options.kafka
        self._admin = make_admin(options.bootstrap, user)
        self._registry = Registry(options.bootstrap, options.topology, user)
        self.topology = self._registry.history.latest
        self.topics = SpoutTopics(self._admin, options, self.topology)
        self._group = self.topology.group_of(options.spout)
        settings = consumer_settings(options.bootstrap, self._group, user, enable_partition_eof=True)
        self._consumer = make_consumer(settings)
        self._offsets = GroupOffsets(self._consumer, self._group, options.bootstrap)
        self._producer = make_producer(producer_settings(options.bootstrap, user))
        reader = make_consumer({**settings, "auto.offset.reset": "error", "queued.min.messages": 1})
        self._letters = DeadLetterWriter(reader, self._producer, self.topology.dead_letter_topic, self._group)
        self._claims: dict[int, Claim] = {}
        self._tasks: dict[int, TaskLedger] = {}
        self._cuts: dict[int, ResultCut] = {}
        self._committed_state: object = None
        self._next_commit_s = self._next_report_s = -1e18

    @property
    def is_open(self) -> bool:
        return bool(self._tasks)

    def open(self, logged: Batch | None) -> None:
        """Take over: claim a run per task, restore what is committed and what the logged batch says.

        Tasks that a later version took away are claimed, too: their result topics are read until drained.
        """
        by_task: dict[int, list[SourcePartition]] = {
            task: [] for task in self.topology.spout_tasks[self._options.spout]
        }
        for source in self.topics.partitions:
            by_task[self.topics.task_of[source.slot]].append(source)
        versions = self._registry.history.versions.values()
        ever = {task for version in versions for task in version.spout_tasks.get(self._options.spout, ())}
        run, floors = 0, dict[int, int]()
        for task in sorted(ever):
            topic = self.topology.result_topic(task)
            claim = claim_run(self._consumer, topic, self._group, self._bootstrap)
            self._claims[task] = claim
            self._cuts[task] = ResultCut(claim.next_offset)
            run = claim.run if not run or run_at_least(claim.run, run) else run
            floors |= claim.floors
        committed = self._offsets.fetch(self.topics.partitions, None)
        logged_runs = [range_.run for range_ in logged.ranges] if logged else []
        if self._outrank(committed.values(), bool(logged_runs)):
            run = next_run(max(logged_runs)) if logged_runs else random.randint(1, MAX_RUN)
        self._use_run(run)
        starts = self.topics.starting_offsets([s for s in self.topics.partitions if s.slot not in committed])
        for task, sources in by_task.items():
            self._tasks[task] = self._open_task(task, sources, committed, starts, floors, logged)
        results = [
            TopicPartition(self.topology.result_topic(task), 0, claim.next_offset)
            for task, claim in self._claims.items()
        ]
        self._consumer.assign(results)
        self._commit()

    def _open_task(
        self,
        task: int,
        sources: list[SourcePartition],
        committed: Mapping[int, Committed],
        starts: Mapping[int, int],
        floors: Mapping[int, int],
        logged: Batch | None,
    ) -> TaskLedger:
        table = self.topology.spouts[self._options.spout]
        policy = RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts)
        claim = self._claims[task]
        now_s = self._monotonic()
        ends = {range_.slot: range_ for range_ in logged.ranges} if logged else {}
        slots: dict[int, PartitionLedger] = {}
        for source in sources:
            stands = committed.get(source.slot)
            floor = floors.get(source.slot, claim.run)
            if (claim.run - floor) % 255 > OLDEST_FLOOR_RUNS:
                floor = (claim.run - OLDEST_FLOOR_RUNS - 1) % 255 + 1
            if stands is not None and stands.ours is None:
                floor = claim.run
            frontier = stands.next_offset if stands else starts[source.slot]
            known = ends.get(source.slot)
            trusted = known is not None and run_at_least(known.run, floor)
            next_offset = max(frontier, known.end) if known is not None and trusted else frontier
            done = stands.done() if stands else None
            ledger = PartitionLedger(frontier, next_offset, floor, policy)
            if done is not None:
                ledger.done = done
            ledger.resume(now_s)
            slots[source.slot] = ledger
            claim.floors[source.slot] = floor
        by_slot = {source.slot: source for source in sources}
        opened = TaskLedger(task, claim.run, by_slot, slots, self.topology.message_timeout_s)
        for replays in logged.replays if logged else ():
            for offset in replays.offsets if replays.slot in slots else ():
                replay = Replay(offset, replays.generation, replays.attempts)
                slots[replays.slot].restore_replay(replay, now_s)
        return opened

    def position(self) -> Batch:
        """Return an empty batch that says where every slot stands."""
        ranges = tuple(
            Range(
                s.topic, s.partition, s.slot, t.run, t.slots[s.slot].next_offset, t.slots[s.slot].next_offset
            )
            for t in self._tasks.values()
            for s in t.sources.values()
        )
        return Batch(self.topology.version, ranges)

    def written(self, batch: Batch) -> None:
        """Note that Spark has logged and finished a batch."""
        replayed = [(replays.slot, offset) for replays in batch.replays for offset in replays.offsets]
        for cut in self._cuts.values():
            cut.written(replayed)
        if self._registry.history.at(batch.version).ackers == 0:
            for task in self._tasks.values():
                task.finish_batch(batch.ranges)

    def next_batch(self, ends: Mapping[int, int], most: int | None) -> Batch | None:
        """Return the next batch with offsets below ``ends`` by slot, None if there is nothing to emit.

        Replays come first and are never held back by max pending or by ``most``.
        """
        now_s = self._monotonic()
        ranges: list[Range] = []
        replays: list[Replays] = []
        room = self.topology.spouts[self._options.spout].max_pending
        for task in self._tasks.values():
            budget = MAX_REPLAYS - sum(len(group.offsets) for group in replays)
            task.fail_overdue(now_s - self.topology.control_retention_s, now_s, budget)
            replays += task.replay_due(now_s, budget)
            allowed = max(0, room - task.pending)
            fresh = task.emit(ends, allowed if most is None else min(allowed, most), now_s)
            if most is not None:
                most -= sum(range_.end - range_.start for range_ in fresh)
            ranges += fresh
        batch = Batch(self.topology.version, tuple(ranges), tuple(replays))
        return batch if batch.records else None

    def service(self, wait_s: float) -> None:
        """Read results, waiting up to ``wait_s``; write letters, obey resets, commit, report."""
        messages = self._consumer.consume(MAX_RESULTS_PER_POLL, wait_s)
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF or error.retriable():
                    continue
                raise KafkaException(error)
            self._take(message.topic() or "", message.offset() or 0, message.value() or b"")
        if self._registry.refresh():
            self.topology = self._registry.history.latest
            for task in self._tasks.values():
                task.message_timeout_s = self.topology.message_timeout_s
        now_s = self._monotonic()
        if now_s >= self._next_commit_s:
            self._obey_resets()
            self._commit()
            self._next_commit_s = now_s + COMMIT_INTERVAL_S
        if now_s >= self._next_report_s:
            self._report()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _take(self, topic: str, offset: int, value: bytes) -> None:
        cut = self._cuts[int(topic.rpartition("-")[2])]
        try:
            told = decode_told_to_spout(value)
        except MalformedRecord:
            next(iter(self._tasks.values())).counters["set_aside"] += 1
            cut.note(offset, {}, ())
            return
        highest: dict[int, int] = {}
        opened: list[Place] = []
        for task in self._tasks.values():
            if isinstance(told, Absent):
                effect = task.take_absent(told)
            else:
                effect = task.take(told, self._monotonic(), self._jitter())
            highest |= effect.highest
            opened += effect.opened
            for letter in effect.letters:
                self._bury(task, letter)
        cut.note(offset, highest, opened)

    def _bury(self, task: TaskLedger, letter: DeadLetter) -> None:
        self._letters.write(letter)
        task.bury(letter)

    def _obey_resets(self) -> None:
        epochs = {slot: self._claims[task].epoch for slot, task in self.topics.task_of.items()}
        for slot, stands in self._offsets.fetch(self.topics.partitions, epochs).items():
            self._committed_state = None  # whatever it is, it is overwritten with what holds
            if stands.ours is not None:
                continue
            task = self._tasks[self.topics.task_of[slot]]
            ledger, claim = task.slots[slot], self._claims[task.task]
            if stands.next_offset < ledger.frontier:
                self._use_run(next_run(claim.run))
                claim.floors[slot] = claim.run
                self._commit_claims()
            ledger.rewind(stands.next_offset, claim.run)
            task.counters["rewinds"] += 1

    def _outrank(self, committed: Iterable[Committed], has_logged: bool) -> bool:
        """Give all claims one epoch, above every commit of ours: who starts last is the driver.

        Returns True where all claims are new though this spout ran before: which runs it used is not known.
        """
        highest = max((stands.ours.epoch for stands in committed if stands.ours), default=0)
        epoch = max(claim.epoch for claim in self._claims.values())
        lost = is_first(epoch) and (highest > 0 or has_logged)
        if epoch <= highest:
            epoch = next_epoch(highest)
        for claim in self._claims.values():
            claim.epoch = epoch
        return lost

    def _use_run(self, run: int) -> None:
        """Give all tasks one run, so that a slot may move between them; durable with the next commit."""
        for claim in self._claims.values():
            claim.run = run
        for task in self._tasks.values():
            task.run = run

    def _commit_claims(self) -> None:
        self._offsets.commit({}, [self._result_position(task, {}) for task in self._claims])

    def _result_position(self, task: int, reach: Mapping[int, int]) -> TopicPartition:
        next_offset = self._cuts[task].cut(reach, self._is_open)
        topic = self.topology.result_topic(task)
        return TopicPartition(topic, 0, next_offset, metadata=self._claims[task].metadata())

    def _is_open(self, slot: int, offset: int) -> bool:
        return any(task.is_open(slot, offset) for task in self._tasks.values())

    def _commit(self) -> None:
        states, reach = {}, {}
        seen: list[object] = []
        for task in self._tasks.values():
            epoch = self._claims[task.task].epoch
            for slot, ledger in task.slots.items():
                source = task.sources[slot]
                text, reach[slot] = encode_metadata(epoch, source.topic_id, ledger.frontier, ledger.done)
                states[slot] = (source, ledger.frontier, text)
                seen.append((slot, ledger.frontier, len(ledger.done)))
        positions = [self._result_position(task, reach) for task in self._claims]
        seen += [(position.topic, position.offset, position.metadata) for position in positions]
        if seen != self._committed_state:
            self._offsets.commit(states, positions)
            self._committed_state = seen

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Tell whether everything below ``targets`` by slot is done."""
        return all(
            ledger.frontier >= targets.get(slot, 0)
            for task in self._tasks.values()
            for slot, ledger in task.slots.items()
        )

    def _report(self) -> None:
        for task in self._tasks.values():
            values = task.figures() | {"version": self.topology.version}
            instance = f"{self._options.spout}-{task.task}"
            report = Report("spout", self._options.spout, instance, int(time.time() * 1000), values)
            self._producer.produce(self.topology.stats_topic, report.encode(), report.key())
        self._producer.poll(0)

    def settle(self) -> None:
        """Commit what is done and report, whatever the time."""
        self._commit()
        self._report()
        self._producer.flush(BROKER_TIMEOUT_S)

    def close(self) -> None:
        """Commit what is done, report once more and let go of the broker."""
        if self.is_open:
            self.settle()
        self._consumer.close()
        self._registry.close()
