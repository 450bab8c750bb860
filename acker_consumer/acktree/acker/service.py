"""The acker: the one loop that reads the control topics, folds them, sends results and commits the cut.

One round: read a batch, fold it, send the results; a few times a second check for timeouts, once a second
flush and commit.
Invariant: a result is with the broker before a cut that no longer covers its root is committed.
"""

import logging
from collections.abc import Callable, Iterable

import numpy as np
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from acktree.acker.figures import Figures, limit_figures
from acktree.acker.folding.clock import UNKNOWN_MS, TopicClock
from acktree.acker.folding.expiry import AgeLimits
from acktree.acker.folding.invalid import InvalidRecord, InvalidRecords
from acktree.acker.folding.partition import Partition
from acktree.acker.folding.validation import RecordValidator
from acktree.acker.folding.work_clock import WorkClock
from acktree.acker.kafka.bolt_positions import BoltPositions
from acktree.acker.kafka.log_ends import LogEnds
from acktree.acker.kafka.membership import Member, group_settings, shorten_session
from acktree.acker.kafka.ownership import Ownership
from acktree.acker.kafka.result_producer import ResultProducer
from acktree.acker.kafka.results import EncodedResult, encode_finished, encode_timed_out
from acktree.acker.warm_up import warm_up
from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_admin, make_producer, refuse_missing
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.group_offsets import read_committed
from acktree.core.kafka.log_reader import Found, LogRange, LogReader
from acktree.core.kafka.settings import Settings, is_kip_848, producer_settings
from acktree.core.reports.liveness import Liveness, stuck_after_of
from acktree.core.reports.stall_reports import ReportSender, RoleReports
from acktree.core.reports.stats import STATS_INTERVAL_S, Value
from acktree.core.topology.registry import Published, Registry

BATCH = 2000
IDLE_WAIT_S = 0.1
COMMIT_INTERVAL_S = 1.0
REFRESH_INTERVAL_S = 1.0
JOIN_GRACE_S = 5.0

Ready = Callable[[str], None]

log = logging.getLogger("acktree.acker")


def steady_wall() -> Callable[[], int]:
    """Return a wall clock in milliseconds that is read once and advanced by the monotonic clock."""
    start_ms = 1000 * (world.wall_s() - world.monotonic_s())
    return lambda: int(start_ms + 1000 * world.monotonic_s())


class Acker:
    """One member of a topology's acker group."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        *,
        user: Settings | None = None,
        ready: Ready = lambda _text: None,
        wall_ms: Callable[[], int] | None = None,
        now_s: Callable[[], float] = world.monotonic_s,
        seed: int | None = None,
        stuck_after_s: float | None = None,
    ) -> None:
        """Connect and compile; :meth:`run` joins the group.

        ``stuck_after_s``: the loop is stuck if a round takes longer; by default ``max.poll.interval.ms``.

        Raises:
            UnknownTopology, MissingTopic, BrokerUnreachable, RefusedSetting: see their docstrings.
        """
        self.name = topology
        self._bootstrap, self._user, self._ready = bootstrap, user or {}, ready
        self._wall_ms, self._now_s = wall_ms or steady_wall(), now_s
        self._seed = world.random_bits(64) if seed is None else seed
        self._admin = make_admin(bootstrap, self._user)
        self._registry = Registry(bootstrap, topology, self._user)
        latest = self.latest
        self._topics = (latest.ack_init_topic, latest.ack_topic)
        self._partition_counts()
        self._limits = _limits_of(latest)
        self.progress = Liveness(stuck_after_of(self._user) if stuck_after_s is None else stuck_after_s)
        self.reports = RoleReports("acker", "acker", world.process_name(), self.progress)
        self.invalid, self._figures = InvalidRecords(self.reports.last_error.failed), Figures()
        self._validator = RecordValidator(self._registry.history, self._look_up, self.invalid)
        settings = group_settings(bootstrap, latest.acker_group, self._user)
        if is_kip_848(self._user):
            shorten_session(self._admin, latest.acker_group)
        self.ownership = Ownership(
            self._topics,
            make_partition=lambda start: Partition(start, self._limits, self._seed),
            on_drop=self._figures.keep_totals_of,
            flush=self._flush_results,
            read_committed=lambda _, places: read_committed(
                bootstrap, self._user, latest.acker_group, places
            ),
            now_s=now_s,
        )
        self._member = Member(
            {**settings, "on_commit": self.ownership.on_commit},
            self._user,
            self._topics,
            on_assign=self.ownership.on_assign,
            on_revoke=self.ownership.on_revoke,
            on_lost=self.ownership.on_lost,
        )
        producer = make_producer(producer_settings(bootstrap, self._user, linger_ms=1))
        self._producer = ResultProducer(producer, self.progress)
        self._ends = LogEnds(self._admin, self._wall_ms)
        self._end_sums: dict[int, int] = {}
        self._sender = ReportSender(
            bootstrap, self._user, latest.stats_topic, self.progress, self.reports.of_stall
        )
        self._work = WorkClock()
        self._work.follow(self._registry.history)
        self._positions = BoltPositions(
            bootstrap, self._user, self._registry.history, self._wall_ms, self.reports.last_error.failed
        )
        with clear_errors(bootstrap):
            self._positions.check()
        self._due: dict[str, float] = {}
        self._is_ready = self._is_stopping = self._is_crashing = False
        warm_up()

    @property
    def reader(self) -> LogReader:
        """The reader of the control topics; another one while its ``group.instance.id`` is in use."""
        return self._member.reader

    @property
    def latest(self) -> Published:
        """The newest version of the topology that this acker knows."""
        return self._registry.history.latest

    def stop(self) -> None:
        """Ask the loop to end; safe in a signal handler."""
        self._is_stopping = self.ownership.is_leaving = True

    def run(self) -> None:
        """Serve until :meth:`stop`, then flush, commit and leave the group.

        Raises:
            AcktreeError: the broker refused something, or the assignment is not co-partitioned.
        """
        # Life of an ack, step 8.
        with clear_errors(self._bootstrap):
            self._member.join()
            joined_s = self._now_s()
            self._sender.start()
            self._positions.start()
            try:
                while not self._is_stopping:
                    self._round()
                    if not self._member.ensure_joined():
                        joined_s = self._now_s()
                    elif not self._is_ready:
                        self._report_ready(joined_s)
            except BaseException:
                self._is_crashing = True
                raise
            finally:
                self.progress.end()
                self._sender.stop()
                self._positions.stop()
                self._close()
                self._positions.join()

    def _round(self) -> None:
        self.progress.begin_turn()
        found = self._member.read(BATCH, IDLE_WAIT_S)
        begun = self.ownership.begin_other_halves(self.reader)
        self._fold(log_range for log_range in found if log_range.place not in begun)
        self.ownership.align_topics(self.reader)
        self._producer.poll()
        if self._is_due("expire", self._limits.scan_interval_ms / 1000):
            self._expire()
        if self._is_due("refresh", REFRESH_INTERVAL_S):
            self._refresh_topology()
        if self._is_due("commit", COMMIT_INTERVAL_S):
            self.ownership.commit(self.reader)
        if self._is_due("report", STATS_INTERVAL_S):
            self._report()

    def _is_due(self, what: str, interval_s: float) -> bool:
        now = self._now_s()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + interval_s
        return True

    # Folding.

    def _fold(self, found: Iterable[LogRange]) -> None:
        """Fold what has come of the partitions with a state, inits first."""
        partitions = self.ownership.partitions
        for log_range in sorted(found, key=lambda log_range: log_range.place[0] != self._topics[0]):
            partition = partitions.get(log_range.place[1])
            if log_range.found is Found.GONE:
                log.info("action=kafka_error reason=%s", log_range.error)
            elif partition is not None and log_range.found is Found.READ:
                self._fold_records(log_range, partition)
            elif partition is not None:
                self._pass(log_range, partition)

    def _clock(self, topic: str, partition: Partition) -> TopicClock:
        return partition.clock.inits if topic == self._topics[0] else partition.clock.acks

    def _fold_records(self, log_range: LogRange, partition: Partition) -> None:
        (topic, number), records, behind = log_range.place, log_range.records, log_range.end
        clock = self._clock(topic, partition)
        assert clock.next_offset in (0, log_range.start), (topic, number, clock.next_offset, log_range.start)
        if not records:
            clock.reach(behind)
            return
        wall_ms = self._wall_ms()
        values, offsets = [each.value() or b"" for each in records], [each.offset() or 0 for each in records]
        append_ms = np.array([_append_ms(*each.timestamp()) for each in records], np.int64)
        where = (topic, number, values, offsets, wall_ms)
        if topic == self._topics[0]:
            finished = partition.fold_inits(self._validator.inits(*where), append_ms, behind, wall_ms)
        else:
            finished = partition.fold_acks(self._validator.acks(*where), append_ms, behind, wall_ms)
        self._figures.totals["acked"] += len(finished.acked)
        self._figures.totals["failed"] += len(finished.failed)
        for result in encode_finished(number, finished):
            self._send(result)

    def _pass(self, log_range: LogRange, partition: Partition) -> None:
        """Pass what is lost or damaged; what was folded stays, so its trees end or time out."""
        (topic, number), start, end = log_range.place, log_range.start, log_range.end
        clock = self._clock(topic, partition)
        if log_range.found is Found.FELL:
            partition.go_back(clock, start)
            self._ends.forget()
            self.reader.begin({log_range.place: start})
        else:
            clock.reach(end)
        if log_range.found is Found.DAMAGED:
            for offset in range(start, end):
                self.invalid.add(InvalidRecord(topic, number, offset, "damaged in the log"), self._wall_ms())
        log.warning("action=%s %s", log_range.action, log_range.text)
        self.reports.last_error.failed(log_range.text)

    def _expire(self) -> None:
        """Collect where the logs end, and time out the roots that expired."""
        partitions = self.ownership.partitions
        ends = self._ends.collect()
        for look in self._positions.take():
            self._work.see(look)
        for number, partition in partitions.items():
            halves = [ends.get((topic, number)) for topic in self._topics]
            inits, acks = halves
            if inits is not None and acks is not None:
                partition.observe(inits, acks)
                self._end_sums[number] = inits.high + acks.high
            clocks_ms = self._work.clocks(partition.clock.time_ms, partition.clock.folded_ms)
            timed_out = partition.expire(self._wall_ms(), clocks_ms)
            if timed_out is not None:
                self._figures.totals["timed_out"] += len(timed_out.roots)
                for result in encode_timed_out(number, timed_out):
                    self._send(result)
        self._positions.want(any(partition.may_time_out for partition in partitions.values()))
        self._ends.ask((topic, number) for topic in self._topics for number in partitions)

    def _send(self, result: EncodedResult) -> None:
        self._producer.send(self.latest.result_topic(result.spout_task), result.value)

    def _flush_results(self) -> bool:
        """Flush; return whether a cut may be committed: not after a crash, when results may be missing."""
        return not self._is_crashing and self._producer.flush()

    # Changes of the topology.

    def _refresh_topology(self) -> None:
        """Apply newer topology versions: the timeouts of the latest one apply to all roots."""
        if self._registry.refresh():
            self._apply_latest()
        self.ownership.refuse_halves(self._partition_counts)

    def _look_up(self) -> None:
        """Read the registry to its end, to find a version that this process has not seen."""
        self._registry.catch_up()
        self._apply_latest()

    def _apply_latest(self) -> None:
        self._limits = _limits_of(self.latest)
        self._work.follow(self._registry.history)
        for partition in self.ownership.partitions.values():
            partition.change_limits(self._limits)

    def _partition_counts(self) -> set[int]:
        """Return how many partitions the control topics have; raise MissingTopic if there is none."""
        with clear_errors(self._bootstrap):
            topics = self._admin.list_topics(timeout=BROKER_TIMEOUT_S).topics
        if missing := [topic for topic in self._topics if topic not in topics]:
            text = f"topic {missing[0]!r} does not exist; create it with: acktree topology apply FILE"
            refuse_missing(self._admin, self._bootstrap, missing[0], text)
            return self._partition_counts()
        return {len(topics[topic].partitions) for topic in self._topics}

    # Reports, leaving.

    def _report_ready(self, joined_s: float) -> None:
        waited_s = self._now_s() - joined_s
        if not self.ownership.assignments and waited_s < JOIN_GRACE_S:
            return
        if not self.ownership.assignments and not self.reader.consumer.memberid():
            return
        numbers = ", ".join(map(str, sorted(self.ownership.partitions)))
        self._is_ready = True
        self._ready(f"ready acker {self.latest.name}: " + (f"partitions {numbers}" if numbers else "idle"))

    def figures(self) -> dict[str, Value]:
        """Return the figures that the acker reports; docs/acker.md explains them."""
        own = self.ownership
        return {
            **self._figures.values(own.partitions, self._end_sums),
            "invalid": self.invalid.total,
            "refolds": own.refolds,
            "rebalances": own.assignments,
            "failed_commits": own.failed_commits,
            **limit_figures(self._work.limits(self._wall_ms()) if self._positions.is_wanted else {}),
        }

    def _report(self) -> None:
        values = {**self.figures(), **self._figures.oldest(self.ownership.partitions)}
        self._sender.send(self.reports.of_loop(values))

    def _close(self) -> None:
        """Leave the group; the revocation that follows commits the cuts."""
        self.ownership.is_leaving = True
        self.reader.consumer.close()
        self._producer.flush()
        self._registry.close()


def _append_ms(kind: int, time_ms: int) -> int:
    return time_ms if kind == TIMESTAMP_LOG_APPEND_TIME else UNKNOWN_MS


def _limits_of(latest: Published) -> AgeLimits:
    return AgeLimits.of_seconds(latest.message_timeout_s, latest.orphan_timeout_s, latest.control_retention_s)
