"""The driver side of a spout: the one loop that reads results, plans batches and commits.

Invariant: nothing is committed that is not done, and the result position only follows what the same commit
or a written batch holds. It runs inside Spark's calls to ``latestOffset``; there is no thread.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import TopicPartition

from acktree.schemas.clients import consumer_settings, make_admin, make_consumer
from acktree.schemas.codec import Absent, ReplayCommand
from acktree.schemas.registry import Registry
from acktree.schemas.stats import STATS_INTERVAL_S
from acktree.spark.driver.dead_letters import DeadLetterWriter
from acktree.spark.driver.driver_metrics import serve_driver
from acktree.spark.driver.log_bounds import check_offsets, is_removed
from acktree.spark.driver.reporter import Reporter
from acktree.spark.driver.result_topics import ResultRecord, ResultTopics
from acktree.spark.driver.source_topics import SpoutTopics, VanishedPartition
from acktree.spark.driver.source_watch import SourceWatch
from acktree.spark.driver.spout_commits import SpoutCommits
from acktree.spark.driver.spout_figures import CrowdedSlots, progress, reports
from acktree.spark.driver.takeover import Takeover, empty_batch, known_frontiers, with_state
from acktree.spark.ledger.partition import PartitionLedger
from acktree.spark.ledger.replay_queue import QueuedReplay, ReplayQueue
from acktree.spark.ledger.result_cut import OpenFailure
from acktree.spark.ledger.retries import RetryPolicy
from acktree.spark.ledger.task import ExhaustedRecord, TaskLedger
from acktree.spark.options import SourceOptions
from acktree.spark.runtime.logged_batch import MAX_REPLAYS, PlannedBatch, Range, Replays

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
        self.topics = self._watch.topics()
        self.topology = self._registry.history.latest
        self._group = self.topology.group_of(options.spout)
        settings = consumer_settings(options.bootstrap, self._group, user, enable_partition_eof=True)
        self._consumer = make_consumer(settings)
        self._reporter = Reporter(options)
        reader = make_consumer({**settings, "auto.offset.reset": "error", "queued.min.messages": 1})
        topic = self.topology.dead_letter_topic
        self._dead_letters = DeadLetterWriter(
            reader, self._reporter.producer, topic, self._group, options.bootstrap
        )
        self.commits = SpoutCommits(self._consumer, self.topology, options, monotonic)
        self._replay_queue = ReplayQueue(self.commits)
        self.tasks: dict[int, TaskLedger] = {}
        self._results = ResultTopics(self._consumer, options.bootstrap)
        self._crowded_slots = CrowdedSlots()
        self._next_commit_s = self._next_report_s = -1e18
        self._has_caught_up = False
        self._metrics = serve_driver(options, lambda: self._reporter.latest)

    @property
    def is_open(self) -> bool:
        return bool(self.tasks)

    def open(self, logged: PlannedBatch | None) -> None:
        """Take over: claim a run per task, restore what is committed and what the logged batch says."""
        spout, commits = self._options.spout, self.commits
        versions = self._registry.history.versions.values()
        commits.claim({task for version in versions for task in version.spout_tasks.get(spout, ())})
        floors = commits.floors
        found = commits.take_over(self.topics.partitions, logged)
        committed = self._watch.check_committed(self.topics, found, floors)
        has_run = bool(floors or found or logged)
        known = known_frontiers(logged)
        new = [s for s in self.topics.partitions if s.slot not in committed and s.slot not in known]
        starts = known | (self.topics.log_starts(new) if has_run else self.topics.starting_offsets(new))
        live = self._replay_queue.live(self._consumer, self._bootstrap)
        takeover = Takeover(
            committed, starts, floors, live, logged, self.topics.log_ends() if has_run else {}
        )
        for task in self.topology.spout_tasks[spout]:
            sources = [s for s in self.topics.partitions if self.topics.task_of[s.slot] == task]
            claim = commits.claims[task]
            opened = takeover.task(self.topology, spout, claim, task, sources, self._monotonic())
            self.tasks[task] = opened
        commits.serve(self.tasks)
        self._go_back_to_ends()
        self._read_results(commits.claims)
        commits.remove_floors(self.topics.former)
        commits.commit()

    def _catch_up(self) -> None:
        """Read all that is told of earlier emissions, where some would be repeated: it may be done.

        Only by who emits: a driver that Spark has asked for its first offset alone does not know the blocks
        of the batch that Spark has logged, and would take an ack of one for its first record's.
        """
        ledgers = [ledger for task in self.tasks.values() for ledger in task.slots.values()]
        if all(ledger.next_offset >= ledger.emitted_before for ledger in ledgers):
            return
        for entry in self._results.read_to_ends():
            self._apply_result(entry)

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see.

        Raises:
            MissingTopic, DataLoss: a topic was deleted, or created anew, and failOnDataLoss is true.
        """
        try:
            return self.topics.log_ends()
        except VanishedPartition:
            self._watch.check_next_time()
            self._check_topics()
            return self.topics.log_ends()

    def _next_offsets(self) -> dict[int, int]:
        ledgers = (ledger for task in self.tasks.values() for ledger in task.slots.items())
        return {slot: ledger.next_offset for slot, ledger in ledgers}

    def _go_back_to_ends(self) -> None:
        """Where a log ends before what is emitted of it, go on at its end, if the options allow it."""
        for slot, end in self._watch.beyond_ends(self.topics, self._next_offsets()).items():
            task = self._task_of(slot)
            assert task is not None, "every slot that is read has its task"
            ledger = task.slots[slot]
            task.counters["lost"] += ledger.open_from(end)
            self.commits.begin_run(task.task, slot)
            ledger.emit_anew(min(end, ledger.frontier), self.commits.run)
            self.commits.commit()  # floor and offsets at once: old bits must not stand for new records

    def _follow_ends(self, ends: Mapping[int, int]) -> None:
        """Where a log ends before what is emitted of it, find out why."""
        if any(offset > ends.get(slot, offset) for slot, offset in self._next_offsets().items()):
            self._watch.check_next_time()
            self._check_topics()
            self._go_back_to_ends()

    def _check_topics(self) -> None:
        topics = self._watch.changed_topics(self.topics, self.topology.version, self._next_offsets())
        if topics is not None:
            self._adopt(topics)

    def _read_results(self, tasks: Iterable[int]) -> None:
        """Read the result topics of tasks from their committed positions on, besides those read already."""
        claims, topic_of = self.commits.claims, self.commits.result_topic
        self._results.follow(TopicPartition(topic_of(task), 0, claims[task].next_offset) for task in tasks)

    def position(self) -> PlannedBatch:
        """Return an empty batch that says where every slot stands."""
        return empty_batch(self.topology.version, self.tasks.values())

    def written(self, batch: PlannedBatch) -> None:
        """Note that Spark has logged and finished a batch; it says so with every call for the next one."""
        self.commits.written(batch)
        tasks = () if self._is_tracked(batch.version) else self.tasks.values()
        if sum(task.finish_batch(batch) for task in tasks):
            self.commits.commit()  # once the next batch is logged nothing tells that this one is done

    def _is_tracked(self, version: int) -> bool:
        return not self._options.complete_by_batch and self._registry.history.at(version).ackers > 0

    def next_batch(self, ends: Mapping[int, int], limit: int | None) -> PlannedBatch | None:
        """Return the next batch with offsets below ``ends`` by slot, None if there is nothing to emit.

        Replays come first and are never held back by max pending or by ``limit``; what replay commands open
        is held only by what is in flight of it.

        Raises:
            DataLoss: a log ends before what is emitted of it, and failOnDataLoss is true.
            OffsetTooLarge: the next offset of a partition does not fit into a root id.
        """
        if not self._has_caught_up:
            self._catch_up()
            self._has_caught_up = True
        self._follow_ends(ends)
        self.commits.renew_run()
        now_s = self._monotonic()
        ranges: list[Range] = []
        again: list[Range] = []
        replays: list[Replays] = []
        room, largest_block = self.topology.spouts[self._options.spout].max_pending, limit
        for task in self.tasks.values():
            budget = MAX_REPLAYS - sum(len(group.offsets) for group in replays)
            task.fail_overdue(now_s - self.topology.control_retention_s, now_s, budget)
            replays += task.replay_due(now_s, budget)
            again += task.emit_again(room, now_s)
            allowed = max(0, room - task.pending)
            fresh = task.emit(ends, allowed if limit is None else min(allowed, limit), now_s, largest_block)
            if limit is not None:
                limit -= sum(range_.end - range_.start for range_ in fresh)
            ranges += fresh
        self._crowded_slots.log_new(self.tasks.values())
        batch = PlannedBatch(self.topology.version, tuple(ranges), tuple(replays), tuple(again))
        if not batch.records:
            return None
        if self._is_tracked(batch.version):
            check_offsets(batch)
        self.commits.planned = with_state(batch, self.tasks.values())
        return self.commits.planned

    def service(self, wait_s: float) -> None:
        """Read results, waiting up to ``wait_s``; write letters, obey resets, commit, report."""
        for task in self.tasks.values():
            task.add_pending_time(self._monotonic())
        for entry in self._results.read(wait_s):
            self._apply_result(entry)
        self._reporter.check()
        self._registry.refresh()
        self._check_topics()
        applied = self._replay_queue.apply(self._ledger_of)
        if applied:
            next(iter(self.tasks.values())).counters["commands"] += applied
        now_s = self._monotonic()
        if now_s >= self._next_commit_s:
            self._apply_resets()
            self.commits.commit()
            self._next_commit_s = now_s + COMMIT_INTERVAL_S
        if now_s >= self._next_report_s:
            self._report()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _adopt(self, topics: SpoutTopics) -> None:
        """Go on with a newer version, or with partitions that were not there before; they begin at the first
        offset that is there."""
        self.commits.check_epoch()
        self.topics, self.topology = topics, self._registry.history.latest
        table = self.topology.spouts[self._options.spout]
        if new := set(self.topology.spout_tasks[self._options.spout]) - set(self.commits.claims):
            self.commits.join(new)
            self._read_results(sorted(new))
        policy = RetryPolicy(table.retry_initial_s, table.retry_max_s, table.max_attempts)
        present = {source.slot for source in topics.partitions}
        ids = {source.topic: source.topic_id for source in topics.partitions}
        known: set[int] = set()
        for task in self.tasks.values():
            task.message_timeout_s = self.topology.message_timeout_s
            for slot, source in list(task.sources.items()):
                if ids.get(source.topic, source.topic_id) != source.topic_id:
                    task.drop(slot)
                    continue
                task.slots[slot].policy, task.slots[slot].block = policy, table.block
                known.add(slot)
        fresh = [source for source in topics.partitions if source.slot in present - known]
        starts = topics.log_starts(fresh)
        moved = self.commits.moved(fresh).items()
        starts |= {slot: committed.next_offset for slot, committed in moved if not committed.is_of_another}
        for source in fresh:
            task = self.tasks.get(topics.task_of[source.slot]) or next(iter(self.tasks.values()))
            self.commits.claims[task.task].floors[source.slot] = self.commits.run
            start, run = starts[source.slot], self.commits.run
            task.sources[source.slot] = source
            task.slots[source.slot] = PartitionLedger(start, start, run, policy, table.block)
        self.commits.remove_floors(topics.former)
        self.commits.commit()

    def _apply_result(self, entry: ResultRecord) -> None:
        record, cut = entry.record, self.commits.cuts[entry.task]
        if record is None or isinstance(record, ReplayCommand):
            if record is None:
                next(iter(self.tasks.values())).counters["set_aside"] += 1
            else:
                self._replay_queue.add(QueuedReplay(entry.task, entry.offset, record))
            cut.record(entry.offset, {}, ())
            return
        highest: dict[int, int] = {}
        opened: list[OpenFailure] = []
        for task in self.tasks.values():
            if isinstance(record, Absent):
                effect = task.apply_absent(record)
            else:
                effect = task.apply(record, self._monotonic(), self._jitter())
            highest |= effect.highest
            opened += effect.opened
            for exhausted in effect.exhausted:
                self._send_dead_letter(task, exhausted)
        cut.record(entry.offset, highest, opened)

    def _send_dead_letter(self, task: TaskLedger, record: ExhaustedRecord) -> None:
        if self._dead_letters.write(record):
            task.finish_record(record, "dead_lettered")
        else:
            is_lost = is_removed(self.topics, self._options, record.source, record.offset)
            task.finish_record(record, "lost" if is_lost else "absent")

    def _task_of(self, slot: int) -> TaskLedger | None:
        return next((task for task in self.tasks.values() if slot in task.slots), None)

    def _ledger_of(self, slot: int) -> PartitionLedger | None:
        task = self._task_of(slot)
        return task.slots[slot] if task else None

    def _apply_resets(self) -> None:
        moved = self.commits.moved(self.topics.partitions)
        if self.commits.are_lost:  # with its topic, or by expiry
            self._watch.check_next_time()
            self._check_topics()
        for slot, committed in moved.items():
            task = self._task_of(slot)
            if committed.ours is not None or task is None:
                continue
            ledger = task.slots[slot]
            if committed.next_offset < ledger.frontier:
                self.commits.begin_run(task.task, slot)
                self.commits.commit_claims()
            ledger.rewind(committed.next_offset, self.commits.run)
            task.counters["rewinds"] += 1

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Tell whether everything below ``targets`` by slot is done, and all that was told has been read."""
        return self._results.are_read and all(
            ledger.frontier >= targets.get(slot, 0)
            for task in self.tasks.values()
            for slot, ledger in task.slots.items()
        )

    def progress(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Return how far the spout is, where the logs end at ``ends`` by slot."""
        return progress(self.tasks.values(), ends)

    def _report(self) -> None:
        version = self.topology.version
        entry = reports(self._options.spout, self.tasks.values(), version, self._monotonic())
        self._reporter.send(self.topology.stats_topic, entry)

    def commit_and_report(self) -> None:
        """Commit what is done and report, whatever the time."""
        self.commits.commit()
        self._report()
        self._reporter.flush()

    def close(self) -> None:
        """Commit what is done, report once more and let go of the broker."""
        if self.is_open:
            self.commit_and_report()
        self._consumer.close()
        self._registry.close()
        if self._metrics is not None:
            self._metrics.close()
