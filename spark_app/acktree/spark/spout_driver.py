"""The driver side of a spout: the one loop that reads results, plans batches and commits.

Invariant: nothing is committed that is not done, and the result position only follows what the same commit
or a written batch holds. It runs inside Spark's calls to ``latestOffset``; there is no thread.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from confluent_kafka import TopicPartition

from acktree.schemas.clients import consumer_settings, make_admin, make_consumer
from acktree.schemas.codec import Absent, ReplayCommand
from acktree.schemas.ids import next_run
from acktree.schemas.registry import Registry
from acktree.schemas.stats import STATS_INTERVAL_S
from acktree.spark.batch import MAX_ATTEMPT_SPANS, MAX_REPLAYS, Batch, Range, Replays
from acktree.spark.dead_letters import DeadLetterWriter
from acktree.spark.driver_metrics import serve_driver
from acktree.spark.ledger import PartitionLedger
from acktree.spark.log_bounds import is_removed
from acktree.spark.options import SourceOptions
from acktree.spark.replay_orders import Order, ReplayOrders
from acktree.spark.reporter import Reporter
from acktree.spark.result_cut import Opened
from acktree.spark.results import ResultTopics, Told
from acktree.spark.retries import RetryPolicy
from acktree.spark.source_topics import SpoutTopics, VanishedPartition
from acktree.spark.source_watch import SourceWatch
from acktree.spark.spout_commits import SpoutCommits
from acktree.spark.spout_figures import Crowds, progress, reports
from acktree.spark.takeover import Takeover
from acktree.spark.task_ledger import DeadLetter, TaskLedger

COMMIT_INTERVAL_S = 0.5
IDLE_WAIT_S = 0.05


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
        self._watch = SourceWatch(self._admin, options, self._registry, monotonic)
        self.topics = self._watch.find()
        self.topology = self._registry.history.latest
        self._group = self.topology.group_of(options.spout)
        settings = consumer_settings(options.bootstrap, self._group, user, enable_partition_eof=True)
        self._consumer = make_consumer(settings)
        self._reporter = Reporter(options)
        reader = make_consumer({**settings, "auto.offset.reset": "error", "queued.min.messages": 1})
        letters = self.topology.dead_letter_topic
        self._letters = DeadLetterWriter(
            reader, self._reporter.producer, letters, self._group, options.bootstrap
        )
        self._commits = SpoutCommits(self._consumer, self.topology, options.spout, options.bootstrap)
        self._orders = ReplayOrders(self._commits)
        self._tasks: dict[int, TaskLedger] = {}
        self._results = ResultTopics(self._consumer, options.bootstrap)
        self._crowds = Crowds()
        self._next_commit_s = self._next_report_s = -1e18
        self._metrics = serve_driver(options, lambda: self._reporter.latest)

    @property
    def is_open(self) -> bool:
        return bool(self._tasks)

    def open(self, logged: Batch | None) -> None:
        """Take over: claim a run per task, restore what is committed and what the logged batch says."""
        spout, commits = self._options.spout, self._commits
        versions = self._registry.history.versions.values()
        commits.claim({task for version in versions for task in version.spout_tasks.get(spout, ())})
        floors = commits.floors
        found = commits.take_over(self.topics.partitions, logged)
        committed = self._watch.check_committed(self.topics, found, floors)
        new = [source for source in self.topics.partitions if source.slot not in committed]
        starts = self.topics.log_starts(new) if floors or found else self.topics.starting_offsets(new)
        stands = Takeover(
            committed, starts, floors, self._orders.live(self._consumer, self._bootstrap), logged
        )
        for task in self.topology.spout_tasks[spout]:
            sources = [s for s in self.topics.partitions if self.topics.task_of[s.slot] == task]
            claim = commits.claims[task]
            opened = stands.task(self.topology, spout, claim, task, sources, self._monotonic())
            self._tasks[task] = opened
        commits.serve(self._tasks)
        self._go_back_to_ends()
        self._read_results(commits.claims)
        commits.commit()

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see.

        Raises:
            MissingTopic, DataLoss: a topic was deleted, or created anew, and failOnDataLoss is true.
        """
        try:
            return self.topics.log_ends()
        except VanishedPartition:
            self._watch.look_at_once()
            self._look_at_topics()
            return self.topics.log_ends()

    def _next_offsets(self) -> dict[int, int]:
        ledgers = (ledger for task in self._tasks.values() for ledger in task.slots.items())
        return {slot: ledger.next_offset for slot, ledger in ledgers}

    def _go_back_to_ends(self) -> None:
        """Where a log ends before what is emitted of it, go on at its end, if the options allow it."""
        for slot, end in self._watch.beyond_ends(self.topics, self._next_offsets()).items():
            task = self._task_of(slot)
            assert task is not None, "every slot that is read has its task"
            ledger = task.slots[slot]
            task.counters["lost"] += ledger.open_from(end)
            self._use_new_run(task, slot)
            ledger.emit_anew(min(end, ledger.frontier), self._commits.run)

    def _follow_ends(self, ends: Mapping[int, int]) -> None:
        """Where a log ends before what is emitted of it, find out why."""
        if any(offset > ends.get(slot, offset) for slot, offset in self._next_offsets().items()):
            self._watch.look_at_once()
            self._look_at_topics()
            self._go_back_to_ends()

    def _look_at_topics(self) -> None:
        topics = self._watch.look(self.topics, self.topology.version, self._next_offsets())
        if topics is not None:
            self._adopt(topics)

    def _read_results(self, tasks: Iterable[int]) -> None:
        """Read the result topics of tasks from their committed positions on, besides those read already."""
        claims, topic_of = self._commits.claims, self._commits.result_topic
        self._results.follow(TopicPartition(topic_of(task), 0, claims[task].next_offset) for task in tasks)

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
        for cut in self._commits.cuts.values():
            cut.written(replayed)
        if self._options.complete_by_batch or self._registry.history.at(batch.version).ackers == 0:
            for task in self._tasks.values():
                task.finish_batch((*batch.ranges, *batch.again))

    def next_batch(self, ends: Mapping[int, int], most: int | None) -> Batch | None:
        """Return the next batch with offsets below ``ends`` by slot, None if there is nothing to emit.

        Replays come first and are never held back by max pending or by ``most``; what replay commands open
        is held only by what is in flight of it.

        Raises:
            DataLoss: a log ends before what is emitted of it, and failOnDataLoss is true.
        """
        self._follow_ends(ends)
        now_s = self._monotonic()
        ranges: list[Range] = []
        again: list[Range] = []
        replays: list[Replays] = []
        room, limit = self.topology.spouts[self._options.spout].max_pending, most
        for task in self._tasks.values():
            budget = MAX_REPLAYS - sum(len(group.offsets) for group in replays)
            task.fail_overdue(now_s - self.topology.control_retention_s, now_s, budget)
            replays += task.replay_due(now_s, budget)
            again += task.emit_again(room, now_s)
            allowed = max(0, room - task.pending)
            fresh = task.emit(ends, allowed if most is None else min(allowed, most), now_s, limit)
            if most is not None:
                most -= sum(range_.end - range_.start for range_ in fresh)
            ranges += fresh
        self._crowds.say(self._tasks.values())
        batch = Batch(self.topology.version, tuple(ranges), tuple(replays), tuple(again))
        if not batch.records:
            return None
        tasks = self._tasks.values()
        return replace(
            batch,
            progress=tuple(each for task in tasks for each in task.progress()),
            attempts=tuple(each for task in tasks for each in task.attempts(MAX_ATTEMPT_SPANS // len(tasks))),
            blocks=tuple(each for task in tasks for each in task.blocks()),
        )

    def service(self, wait_s: float) -> None:
        """Read results, waiting up to ``wait_s``; write letters, obey resets, commit, report."""
        for task in self._tasks.values():
            task.look(self._monotonic())
        for told in self._results.read(wait_s):
            self._take(told)
        self._reporter.check()
        self._registry.refresh()
        self._look_at_topics()
        obeyed = self._orders.obey(self._ledger_of)
        if obeyed:
            next(iter(self._tasks.values())).counters["commands"] += obeyed
        now_s = self._monotonic()
        if now_s >= self._next_commit_s:
            self._obey_resets()
            self._commits.commit()
            self._next_commit_s = now_s + COMMIT_INTERVAL_S
        if now_s >= self._next_report_s:
            self._report()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _adopt(self, topics: SpoutTopics) -> None:
        """Go on with a newer version, or with partitions that were not there before; they begin at the first
        offset that is there."""
        self.topics, self.topology = topics, self._registry.history.latest
        table = self.topology.spouts[self._options.spout]
        if new := set(self.topology.spout_tasks[self._options.spout]) - set(self._commits.claims):
            self._commits.join(new)
            self._read_results(sorted(new))
        policy = RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts)
        there = {source.slot for source in topics.partitions}
        ids = {source.topic: source.topic_id for source in topics.partitions}
        known: set[int] = set()
        for task in self._tasks.values():
            task.message_timeout_s = self.topology.message_timeout_s
            for slot, source in list(task.sources.items()):
                if ids.get(source.topic, source.topic_id) != source.topic_id:
                    task.drop(slot)
                    continue
                task.slots[slot].policy, task.slots[slot].block = policy, table.block
                known.add(slot)
        fresh = [source for source in topics.partitions if source.slot in there - known]
        starts = topics.log_starts(fresh)
        moved = self._commits.moved(fresh).items()
        starts |= {slot: stands.next_offset for slot, stands in moved if not stands.is_of_another}
        for source in fresh:
            task = self._tasks.get(topics.task_of[source.slot]) or next(iter(self._tasks.values()))
            self._commits.claims[task.task].floors[source.slot] = self._commits.run
            start, run = starts[source.slot], self._commits.run
            task.sources[source.slot] = source
            task.slots[source.slot] = PartitionLedger(start, start, run, policy, table.block)
        self._commits.commit()

    def _take(self, told: Told) -> None:
        record, cut = told.record, self._commits.cuts[told.task]
        if record is None or isinstance(record, ReplayCommand):
            if record is None:
                next(iter(self._tasks.values())).counters["set_aside"] += 1
            else:
                self._orders.note(Order(told.task, told.offset, record))
            cut.note(told.offset, {}, ())
            return
        highest: dict[int, int] = {}
        opened: list[Opened] = []
        for task in self._tasks.values():
            if isinstance(record, Absent):
                effect = task.take_absent(record)
            else:
                effect = task.take(record, self._monotonic(), self._jitter())
            highest |= effect.highest
            opened += effect.opened
            for letter in effect.letters:
                self._bury(task, letter)
        cut.note(told.offset, highest, opened)

    def _bury(self, task: TaskLedger, letter: DeadLetter) -> None:
        if self._letters.write(letter):
            task.bury(letter, "dead_lettered")
        else:
            is_lost = is_removed(self.topics, self._options, letter.source, letter.offset)
            task.bury(letter, "lost" if is_lost else "absent")

    def _task_of(self, slot: int) -> TaskLedger | None:
        return next((task for task in self._tasks.values() if slot in task.slots), None)

    def _ledger_of(self, slot: int) -> PartitionLedger | None:
        task = self._task_of(slot)
        return task.slots[slot] if task else None

    def _obey_resets(self) -> None:
        for slot, stands in self._commits.moved(self.topics.partitions).items():
            task = self._task_of(slot)
            if stands.ours is not None or task is None:
                continue
            ledger = task.slots[slot]
            if stands.next_offset < ledger.frontier:
                self._use_new_run(task, slot)
            ledger.rewind(stands.next_offset, self._commits.run)
            task.counters["rewinds"] += 1

    def _use_new_run(self, task: TaskLedger, slot: int) -> None:
        """Begin a run, durably; it is the floor of a slot of which earlier emissions count no more."""
        self._commits.use_run(next_run(self._commits.run))
        self._commits.claims[task.task].floors[slot] = self._commits.run
        self._commits.commit_claims()

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Tell whether everything below ``targets`` by slot is done, and all that was told has been read."""
        return self._results.are_read and all(
            ledger.frontier >= targets.get(slot, 0)
            for task in self._tasks.values()
            for slot, ledger in task.slots.items()
        )

    def progress(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Return how far the spout is, where the logs end at ``ends`` by slot."""
        return progress(self._tasks.values(), ends)

    def _report(self) -> None:
        version = self.topology.version
        told = reports(self._options.spout, self._tasks.values(), version, self._monotonic())
        self._reporter.send(self.topology.stats_topic, told)

    def settle(self) -> None:
        """Commit what is done and report, whatever the time."""
        self._commits.commit()
        self._report()
        self._reporter.settle()

    def close(self) -> None:
        """Commit what is done, report once more and let go of the broker."""
        if self.is_open:
            self.settle()
        self._consumer.close()
        self._registry.close()
        if self._metrics is not None:
            self._metrics.close()
