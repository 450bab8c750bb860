"""The driver of a spout: the one loop that reads results, plans batches and commits.

Invariant: nothing is committed that is not done, and the result position moves only past effects that the
same commit or a written batch holds. It runs inside Spark's calls to ``latestOffset``; there is no thread.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf

from confluent_kafka import Message, TopicPartition
from pyroaring import BitMap64

from acktree.core import world
from acktree.core.kafka.clients import ask_bounds, make_admin, make_consumer, retry_until_ready
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.log_reader import LogReader, reader_settings
from acktree.core.reports.breaker_watch import BreakerWatch
from acktree.core.reports.stats import STATS_INTERVAL_S, Report
from acktree.core.topology.flow import Flow
from acktree.core.topology.registry import History, Published, Registry
from acktree.producers.collecting.arithmetic.transaction_limit import Passage
from acktree.producers.ledger.logged_batch import MAX_REPLAYS, PlannedBatch, Range, Replays
from acktree.producers.ledger.new_records import emit_new
from acktree.producers.ledger.partitions.partition import PartitionLedger
from acktree.producers.ledger.probes import plan_probe
from acktree.producers.ledger.quotas import quota_of
from acktree.producers.ledger.replays import failing, has_backlog
from acktree.producers.ledger.slot_states import emit_logged
from acktree.producers.ledger.slots import find_ledger, find_task
from acktree.producers.ledger.task import TaskLedger
from acktree.producers.spouts.driver.dead_letters import DeadLetterReader
from acktree.producers.spouts.driver.offset_resets import OffsetResets
from acktree.producers.spouts.driver.one_record import read_records
from acktree.producers.spouts.driver.replay_queue import ReplayQueue
from acktree.producers.spouts.driver.reports.driver_metrics import serve_driver
from acktree.producers.spouts.driver.reports.reporter import FIRST_REPORT_S, Reporter
from acktree.producers.spouts.driver.reports.spout_figures import progress, reports
from acktree.producers.spouts.driver.result_topics import ResultTopics
from acktree.producers.spouts.driver.sources.log_bounds import (
    check_fetched,
    check_offsets,
    check_starts,
)
from acktree.producers.spouts.driver.sources.source_topics import SpoutTopics
from acktree.producers.spouts.driver.sources.source_watch import SourceWatch
from acktree.producers.spouts.driver.spout_commits import SpoutCommits
from acktree.producers.spouts.driver.spout_options import SpoutOptions
from acktree.producers.spouts.driver.spout_results import SpoutResults
from acktree.producers.spouts.driver.spout_sources import SpoutSources
from acktree.producers.spouts.driver.task_fencing import fence_tasks
from acktree.producers.spouts.outside_commit import GroupInUse
from acktree.producers.spouts.state_topic import OutputRecord, ZombieDriver, control_record
from acktree.wire.codec import encode_replay_command
from acktree.wire.control_records import Absent, Failure, ReplayCommand
from acktree.wire.ids import MAX_OFFSET
from acktree.wire.state_records import StateStart

COMMIT_INTERVAL_S = 0.5
IDLE_WAIT_S = 0.05
GROUP_CHECK_S = 1.0
MIN_GAP = 1_000
"""So many offsets without a record are counted in one step; fewer are planned like others."""

log = logging.getLogger("acktree.spark")


class SpoutDriver:
    """All spout tasks of one spout, for one streaming query."""

    def __init__(
        self,
        options: SpoutOptions,
        monotonic: Callable[[], float] = world.monotonic_s,
        jitter: Callable[[], float] = world.random_fraction,
    ) -> None:
        """Connect and describe the source topics; no driver before this one is fenced yet.

        Raises:
            AcktreeError: broker, topology, spout or topic does not exist; the text says which.
        """
        self._options = options
        self._monotonic = monotonic
        self._bootstrap, user = options.bootstrap, options.kafka
        self._admin = make_admin(options.bootstrap, user)
        self._registry = Registry(options.bootstrap, options.topology, user)
        self._watch = SourceWatch(self._admin, options, self._registry, monotonic)
        topics, topology = self._watch.topics(), self._registry.history.latest
        group = topology.group_of(options.spout)
        settings = reader_settings(options.bootstrap, group, user)
        self._consumer = make_consumer(settings)
        self._reporter = Reporter(options)
        self._source_reader = LogReader(
            make_consumer({**settings, "queued.min.messages": 1}), options.bootstrap, group, user
        )
        dead_letters = DeadLetterReader(
            self._source_reader, topology.dead_letter_topic, group, options.bootstrap
        )
        self.tasks: dict[int, TaskLedger] = {}
        self.commits = SpoutCommits(self._consumer, self._admin, self._registry.history, options, monotonic)
        self._resets = OffsetResets(options, self.commits, self.tasks)
        self._replay_queue = ReplayQueue(self.commits, self._hand_on)
        self._results = SpoutResults(
            ResultTopics(
                LogReader(self._consumer, options.bootstrap, group, user),
                options.bootstrap,
                self._bounds,
                lambda: self._reporter.clock_ahead_s,
            ),
            self.tasks,
            self.commits,
            self._replay_queue,
            dead_letters,
            is_removed=lambda source, offset: self._sources.is_removed(source, offset),
            is_away=lambda source: self.topics.is_away((source.topic, source.partition)),
            monotonic=monotonic,
            jitter=jitter,
            on_failed=self._reporter.last_error.failed,
        )
        self._sources = SpoutSources(
            options,
            self._registry,
            self._watch,
            topics,
            self.tasks,
            self.commits,
            self._results.follow,
            self._resets,
            monotonic,
        )
        self._watch_breaker = BreakerWatch(self._registry.history, options.spout)
        self.breaker = self._watch_breaker.breaker
        self._next_commit_s = self._next_report_s = -1e18
        self._is_group_in_use = False
        self._is_plan_lost = False
        self._planned_s, self._busy_s = inf, 0.0
        self.is_open = False
        """Whether it has taken over; one that has failed half way commits nothing."""
        self._metrics = serve_driver(options, lambda: self._reporter.latest)

    def _bounds(self, place: TopicPartition) -> tuple[int, int]:
        with clear_errors(self._bootstrap):
            return ask_bounds(self._consumer, place)

    @property
    def topics(self) -> SpoutTopics:
        """The source topics as they are read."""
        return self._sources.topics

    @property
    def topology(self) -> Published:
        """The version of the topology that is followed."""
        return self._sources.topology

    def open(
        self,
        logged: PlannedBatch | None,
        driver_before: StateStart | None = None,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take over: fence the driver before, restore its state and what the logged batch says.

        ``driver_before``: the start of a driver of all tasks that the driver of one may fence; it gives way
        to any other. It waits as long as ``may_wait()`` for a stray consumer to leave the group.

        Raises TakenOver, what ``StateTopic.take_over`` raises, and GroupInUse once it may not wait.

        What is in flight counts as emitted now. Where results of it may have been removed it is overdue: what
        the results that are left do not finish is emitted again, once they are read.
        """
        spout, commits, topics = self._options.spout, self.commits, self.topics
        versions = self._registry.history.versions.values()
        ever = {task for version in versions for task in version.spout_tasks.get(spout, ())}
        commits.begin(ever & self._topics_read(ever), driver_before)
        if driver_before is not None:  # one in Spark, whose tasks may have died in their transactions
            places = [(source.topic, source.partition) for source in topics.partitions]
            group = self.topology.group_of(spout)
            fence_tasks(self._bootstrap, group, places, self._options.kafka)
        self._wait_until(commits.probe, may_wait)
        committed = commits.take_over(topics.partitions, logged)
        self._watch.check_topics(topics, commits.is_of_former)
        is_first = commits.is_first
        starts = topics.log_starts(topics.partitions)
        if is_first:
            initial = topics.partitions if commits.term == 1 else self._sources.initial()
            starts |= topics.starting_offsets(initial)
        age_s = self.topology.control_retention_s + 1 if commits.results_are_removed() else 0
        timeout_s = self.topology.message_timeout_s
        for task in self._options.tasks_of(self.topology):
            self.tasks[task] = TaskLedger(task, {}, {}, timeout_s, breaker=self.breaker)
        restored = self._sources.add(topics.partitions, committed, starts, is_first=is_first, age_s=age_s)
        is_newest = commits.is_newest(logged)
        if logged is not None and commits.is_planned(logged):
            emit_logged(self.tasks.values(), logged, self._monotonic() - age_s)
            commits.confirm(logged)
        elif not (is_newest or is_first):
            ends = topics.log_ends()
            for task_ledger in self.tasks.values():
                for slot, ledger in task_ledger.slots.items():
                    # Of a log without a leader nobody knows how much was emitted.
                    ledger.emitted_before = ends.get(slot, MAX_OFFSET + 1)
        self._sources.begin_runs(restored)
        commits.serve(self.tasks)
        self._resets.apply({slot: entry for slot, entry in committed.items() if slot in restored})
        self._sources.go_back_to_ends()
        self._results.follow(commits.positions)
        self._wait_until(commits.commit, may_wait)
        self.is_open = True
        self._report()
        self._reporter.flush(FIRST_REPORT_S)

    def _topics_read(self, ever: set[int]) -> set[int]:
        """Return whose result topics this driver reads; the first task also reads those of removed tasks.

        A replay command may wait there, and is handed on.
        """
        tasks, task = self.topology.spout_tasks[self._options.spout], self._options.task
        if task is None:
            return ever
        return {task} | (ever - set(tasks) if task == tasks[0] else set())

    def _wait_until(self, commit: Callable[[], None], may_wait: Callable[[], bool]) -> None:
        """Commit as soon as that is possible. Raises GroupInUse."""
        while not self._try(commit):
            if not may_wait():
                commit()
                return
            world.sleep(GROUP_CHECK_S)

    def position(self) -> PlannedBatch:
        """Return an empty batch with the position of every slot."""
        ranges = tuple(
            Range(source.topic, source.partition, slot, ledger.run, at, at)
            for task in self.tasks.values()
            for slot, source in task.sources.items()
            for ledger in (task.slots[slot],)
            for at in (ledger.next_offset,)
        )
        return PlannedBatch(self.topology.version, ranges, number=self.commits.batch)

    def written(self, batch: PlannedBatch) -> None:
        """Record that Spark has logged and finished a batch; it says so with every call for the next one."""
        self.commits.written(batch)
        if self._planned_s < inf:
            self._busy_s, self._planned_s = self._monotonic() - self._planned_s, inf
        tasks = () if self._is_tracked(batch.version) else self.tasks.values()
        if sum(task.finish_batch(batch, self._monotonic()) for task in tasks):
            self._commit()  # once the next batch is logged nothing else shows that this one is done

    def _is_tracked(self, version: int) -> bool:
        return not self._options.complete_by_batch and self._registry.history.at(version).ackers > 0

    def next_batch(self, ends: Mapping[int, int], limit: int | None) -> PlannedBatch | None:
        """Return the next batch with offsets below ``ends`` by slot, None if there is nothing to emit.

        Replays come first and are never held back by max pending or by ``limit``, but none is emitted before
        all results that are there have been read once: a later one may say that it is rejected, or when it is
        due. What replay commands open is held only by what is in flight of it. A paused spout emits nothing,
        one that drains nothing new.
        With an open breaker it emits a probe now and then. Nothing is emitted while no commit is possible.

        Raises:
            DataLoss: a log ends before what is emitted of it, and failOnDataLoss is true.
            OffsetTooLarge: the next offset of a partition does not fit into a root id.
        """
        # Life of a record, step 1.
        if not self._may_emit(ends):
            return None
        self._sources.keep_epochs()
        state = self.commits.prepare()
        with self._planning():
            batch = self._plan_next(ends, limit)
            if batch is None:
                return None
            self._planned_s = self._monotonic()
            return self.commits.give(batch, state)

    @contextmanager
    def _planning(self) -> Iterator[None]:
        """Commit nothing after an error: what the ledgers call emitted, nobody was given to write."""
        try:
            yield
        except BaseException:
            self._is_plan_lost = True
            raise

    def plan(self, ends: Mapping[int, int], limit: int | None) -> PlannedBatch | None:
        """Return what is emitted next by who writes it in commits of this driver; as ``next_batch``.

        Until ``end_writing`` names them its offsets are unwritten: a restart emits them again.
        """
        if not self._may_emit(ends):
            return None
        with self._planning():
            batch = self._plan_next(ends, limit)
        if batch is None:
            return None
        for range_ in (*batch.ranges, *batch.again):
            if range_.start < range_.end:
                span = BitMap64()
                span.add_range(range_.start, range_.end)
                self._ledger_of(range_.slot).begin_writing(span)
        for replays in batch.replays:
            self._ledger_of(replays.slot).begin_writing(BitMap64(replays.offsets))
        return batch

    def _ledger_of(self, slot: int) -> PartitionLedger:
        ledger = find_ledger(self.tasks, slot)
        assert ledger is not None, "what is planned has its ledger"
        return ledger

    def _may_emit(self, ends: Mapping[int, int]) -> bool:
        """Prepare to plan; return whether that is possible at all."""
        if self._is_group_in_use:
            return False
        self._results.catch_up()
        if not self._try(lambda: self._sources.follow_ends(ends)):
            return False
        for task in self.tasks.values():
            task.renew_runs()
        return self._registry.history.flow(self._options.spout).flow is not Flow.PAUSED

    def _plan_next(self, ends: Mapping[int, int], limit: int | None) -> PlannedBatch | None:
        flow, now_s = self._registry.history.flow(self._options.spout).flow, self._monotonic()
        self._watch_breaker.follow(now_s)
        plan = self._plan_probe if self.breaker.is_open else self._plan
        batch = plan(ends, limit, flow, now_s)
        if not batch.records:
            return None
        if self._is_tracked(batch.version):
            check_offsets(batch)
        return batch

    def end_writing(self, slot: int, offsets: BitMap64, version: int, *, has_failed: bool) -> None:
        """Record what the next ``write`` is about, emitted under a version of the topology.

        Where that has no ackers it is done, unless it failed.
        """
        ledger = find_ledger(self.tasks, slot)
        if ledger is not None:
            written = offsets & ledger.unwritten
            ledger.end_writing(written)
            if not has_failed and not self._is_tracked(version):
                ledger.complete(written, ledger.run, self._monotonic())

    def send(self, output: Sequence[OutputRecord]) -> Passage:
        """Send what the next ``write`` begins with; what does not pass in time is not written.

        Raises what ``StateTopic.commit`` raises.
        """
        return self.commits.send(output)

    def write(self, output: Sequence[OutputRecord], failures: Sequence[Failure]) -> None:
        """Commit records, the failures of others that no acker knows of, and the state that says so.

        All of these are no longer unwritten. Raises what ``StateTopic.commit`` raises.
        """
        self.commits.add_output(output)
        self._results.fail(failures)
        self.commits.commit_state()

    def absent(self, absent: Absent) -> None:
        """Apply the proof that planned offsets hold no record."""
        for task in self.tasks.values():
            task.apply_absent(absent)

    def next_offsets(self) -> dict[tuple[str, int], int]:
        """Return where each source partition that the newest version reads continues."""
        return {
            (source.topic, source.partition): task.slots[slot].next_offset
            for task in self.tasks.values()
            for slot, source in task.sources.items()
            if slot not in task.left
        }

    def places(self) -> dict[tuple[str, int], tuple[int, PartitionLedger]]:
        """Return the slot and the ledger of each source partition."""
        return {
            (source.topic, source.partition): (slot, task.slots[slot])
            for task in self.tasks.values()
            for slot, source in task.sources.items()
        }

    @property
    def fails_on_data_loss(self) -> bool:
        """Whether a record that can no longer be read ends this driver."""
        return self._options.fail_on_data_loss

    def pass_empty(self, slot: int, count: int) -> None:
        """Count the next offsets of a partition, which hold no record, in one step if they are many."""
        ledger = self._ledger_of(slot)
        if count >= MIN_GAP:
            task = find_task(self.tasks, slot)
            assert task is not None
            task.counters["absent"] += ledger.pass_empty(ledger.next_offset + count)

    def check_fallen(self, partition: tuple[str, int], end: int, position: int) -> None:
        """Act on a log that ended in front of offsets that were fetched, and that may have records there now.

        ``position`` is behind the last record that was fetched, or ``end`` if none of them is lost.

        What is not done, or was beyond the end, is emitted again as it stands in the log now. Where the log
        ends now says nothing: it may have been written again.

        Raises:
            DataLoss: failOnDataLoss is true. What the check of the topics raises.
        """
        self._try(self._sources.check_now)
        if self.fails_on_data_loss:
            self._sources.log_ends()
            self._sources.check_leaders()  # which ends this driver, and each that starts after it
        if (known := self.places().get(partition)) is not None:
            self._sources.go_back(known[0], end)  # in any case: no leader epoch says so to who starts next
            if position > end:
                check_fetched(self._options, partition, end, position)

    def check_sources(self) -> None:
        """Find out why a partition holds nothing where it is read; raises as ``next_batch`` does."""
        self._try(self._look_at_sources)
        self.check_removed({slot: ledger.next_offset for slot, ledger in self.places().values()})

    def _look_at_sources(self) -> None:
        self._sources.check_now()
        self._sources.follow_ends(self.log_ends())

    def check_removed(self, offsets: Mapping[int, int]) -> None:
        """Refuse to count records as done that are gone from the beginnings of logs, by slot.

        Raises:
            DataLoss: a log begins behind the offset, and failOnDataLoss is true.
        """
        check_starts(self.topics, self._options, offsets)

    def find_removed(self, partition: tuple[str, int], offsets: BitMap64) -> BitMap64:
        """Return which of some offsets without a record are in front of their log: they are lost.

        Raises:
            DataLoss: there are such offsets, and failOnDataLoss is true.
            BrokerUnreachable: the partition has no leader.
        """
        slot, _ = self.places()[partition]
        self.check_removed({slot: offsets.min()})
        if self._options.fail_on_data_loss:
            return BitMap64()
        source = [each for each in self.topics.partitions if each.slot == slot]
        start = self.topics.whole(self.topics.log_starts(source), source)[slot]
        return BitMap64([each for each in offsets if each < start])

    def read_records(
        self, partition: tuple[str, int], offsets: Iterable[int], damaged: set[int], max_bytes: int
    ) -> tuple[dict[int, Message], list[int]]:
        """Return those records of a source partition that are still there, and what is left to read.

        See ``one_record.read_records``.
        """
        reader = self._source_reader
        return read_records(reader, partition, offsets, self._bootstrap, damaged=damaged, max_bytes=max_bytes)

    def is_away(self, partition: tuple[str, int]) -> bool:
        """Return whether a source partition has no leader now: nothing of it can be read."""
        return self.topics.is_away(partition)

    @property
    def history(self) -> History:
        """The versions of the topology, which this driver follows."""
        return self._registry.history

    @property
    def latest_reports(self) -> Sequence[Report]:
        """What was reported last."""
        return self._reporter.latest

    def _hand_on(self, command: ReplayCommand) -> bool:
        """Send a command to the task that has its slot, by the version which is known here.

        A driver of all tasks reads the topics of all of them: it would get the command again.
        """
        if self._options.task is None:
            return False
        latest = self.history.latest
        slots = [each for each in latest.slots_of(self._options.spout) if each.slot == command.slot]
        if not slots or (task := latest.task_of(slots[0])) in self.tasks:
            return False
        record = encode_replay_command(command)
        self.commits.add_output([control_record(latest.result_topic(task), 0, record)])
        return True

    def _plan_probe(
        self, ends: Mapping[int, int], limit: int | None, flow: Flow, now_s: float
    ) -> PlannedBatch:
        """Emit a probe if one is due, and all results are read: nothing else while the breaker is open."""
        if not self._results.are_read:
            return self.position()
        for task in self.tasks.values():
            task.fail_overdue(now_s - self.topology.control_retention_s, now_s, MAX_REPLAYS)
        max_pending = self.topology.spouts[self._options.spout].max_pending
        room = 0 if flow is Flow.DRAINING else max_pending
        tasks = tuple(self.tasks.values())
        ranges, replays = plan_probe(tasks, self.breaker, ends, room, limit, now_s)
        return PlannedBatch(self.topology.version, tuple(ranges), tuple(replays))

    def _plan(self, ends: Mapping[int, int], limit: int | None, flow: Flow, now_s: float) -> PlannedBatch:
        """Emit what is due again, what commands ask for, and what is new.

        After a breaker has closed nothing new is emitted before all that had failed by then is emitted again:
        the frontier waits for that, and would also wait for large batches of new records.
        """
        again: list[Range] = []
        replays: list[Replays] = []
        room = self.topology.spouts[self._options.spout].max_pending
        for task in self.tasks.values():
            task.bound(room if self._is_tracked(self.topology.version) else 0, self._busy_s)
        left = MAX_REPLAYS if self._results.are_read else 0
        by_failing = sorted(self.tasks.values(), key=lambda task: failing(task.slots.values()))
        for place, task in enumerate(by_failing):
            task.fail_overdue(now_s - self.topology.control_retention_s, now_s, left)
            due = task.replay_due(now_s, quota_of(left, len(by_failing) - place))
            left -= sum(len(group.offsets) for group in due)
            replays += due
            again += task.emit_again(room, now_s)
        slots = (ledger for task in self.tasks.values() for ledger in task.slots.values())
        if flow is Flow.DRAINING or has_backlog(slots):
            room = 0
        ranges = emit_new(self.tasks.values(), ends, room, limit, now_s)
        return PlannedBatch(self.topology.version, tuple(ranges), tuple(replays), tuple(again))

    def service(self, wait_s: float) -> None:
        """Read results, waiting up to ``wait_s``; write dead letters, apply resets, commit, report."""
        self.commits.drop_unlogged()
        self._results.read(wait_s)
        self._reporter.check()
        self._registry.refresh()
        if self._registry.refused:
            self._reporter.last_error.failed(self._registry.refused)
        if not self._is_group_in_use:
            self._try(self._follow_sources_and_commands)
        now_s = self._monotonic()
        self._watch_breaker.follow(now_s)
        if now_s >= self._next_commit_s:
            self._commit()
            self._next_commit_s = now_s + COMMIT_INTERVAL_S
        if now_s >= self._next_report_s:
            self._report()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _follow_sources_and_commands(self) -> None:
        """Follow changes of the source topics, and apply replay commands."""
        self._sources.check()
        applied = self._replay_queue.apply(partial(find_ledger, self.tasks))
        next(iter(self.tasks.values())).counters["commands"] += applied

    def _commit(self) -> None:
        """Apply resets and commit; with a stray consumer in the group try again next time."""
        self._is_group_in_use = not self._try(self._apply_resets_and_commit)

    def _apply_resets_and_commit(self) -> None:
        self.commits.commit_state()  # before the look: an offset that is set after it is overwritten
        retry_until_ready(lambda: self._resets.look(self.topics.partitions), wait_if_away=True)
        if self.commits.are_lost:  # with its topic, or by expiry
            self._sources.check_now()
        self.commits.commit()

    def _try(self, commit: Callable[[], None]) -> bool:
        """Commit, and return whether that was possible: not with a stray consumer in the group."""
        try:
            commit()
        except GroupInUse as error:
            self._reporter.last_error.failed(str(error))
            if not self._is_group_in_use:
                log.warning("emitting nothing: %s", error, extra={"action": "commit_refused"})
                self._is_group_in_use = True
            return False
        return True

    @property
    def has_caught_up(self) -> bool:
        """Return whether all results that are there have been read."""
        return self._results.are_read

    def all_done(self, targets: Mapping[int, int]) -> bool:
        """Return whether everything below ``targets`` by slot is done, and all results have been read."""
        return self._results.are_read and all(
            ledger.frontier >= targets.get(slot, 0)
            for task in self.tasks.values()
            for slot, ledger in task.slots.items()
        )

    def log_ends(self) -> dict[int, int]:
        """Return by slot the offset behind the last record that a read_committed reader may see.

        Raises:
            MissingTopic, DataLoss: a topic was deleted or recreated, and failOnDataLoss is true.
        """
        return self._sources.log_ends()

    def progress(self, ends: Mapping[int, int]) -> dict[str, int]:
        """Return how far the spout is, where the logs end at ``ends`` by slot."""
        return progress(self.tasks.values(), ends)

    def _report(self) -> None:
        version = self.topology.version
        flow = self._registry.history.flow(self._options.spout)
        about = version, flow, self._watch_breaker, self._monotonic()
        entry = reports(self._options.spout, self.tasks.values(), *about)
        self._reporter.send(self.topology.stats_topic, entry)

    def commit_and_report(self) -> None:
        """Commit what is done and report, whatever the time."""
        self.commits.commit_state()
        self._resets.look(self.topics.partitions)
        self.commits.commit()
        self._report()
        self._reporter.flush()

    def close(self) -> None:
        """Commit what is done, report and close the connections; a fenced driver only closes them.

        So does one that failed before it wrote a dead letter, in whose state that record would be due again,
        or before it gave away a plan.
        """
        try:
            if self.is_open and self._results.are_applied and not self._is_plan_lost:
                with suppress(ZombieDriver, GroupInUse):
                    self.commit_and_report()
        finally:
            self._results.close()
            self._consumer.close()
            self._registry.close()
            if self._metrics is not None:
                self._metrics.close()
