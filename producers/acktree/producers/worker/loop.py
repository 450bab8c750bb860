"""The worker: the one loop that reads a bolt's topics, executes it, sends its output and commits offsets.

Invariant: children and acks are durable before the offsets of their inputs are committed: periodically, when
a partition is revoked, and at a stop. A turn ends after the tuple during which its time is up or a stop is
requested; the others wait. Callbacks run inside the loop's own calls; another thread only watches it.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from acktree.producers.bolt import AnyBolt, Context
from acktree.producers.collecting.packing import AckPacker
from acktree.producers.functions import as_bolt
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.inputs import BATCH_RECORDS, Inputs, Place
from acktree.producers.kafka.membership import group_settings
from acktree.producers.kafka.output import Output
from acktree.producers.kafka.record_limits import read_limits
from acktree.producers.worker.batch_sizing import BatchSizer, Turn
from acktree.producers.worker.bolt_kinds import (
    check_bolt,
    collector_of,
    configure,
    find_bolt_name,
    find_execute_timeout,
    make_execution,
)
from acktree.producers.worker.bolt_reports import BoltReports
from acktree.producers.worker.execute_limit import ExecuteLimit, LastActs, reason_for
from acktree.producers.worker.input_commits import InputCommits
from acktree.producers.worker.intake import Intake
from acktree.schemas import world
from acktree.schemas.client_settings import Settings, is_kip_848
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.schemas.group_offsets import read_committed
from acktree.schemas.kafka_errors import as_clear_error
from acktree.schemas.progress import Progress, stuck_after_of
from acktree.schemas.registry import Registry
from acktree.schemas.standstill import StandstillReports
from acktree.schemas.stats import STATS_INTERVAL_S

IDLE_WAIT_S = 0.1
BUSY_WAIT_S = 0.005
"""How long to wait for a record while tuples are being executed outside this loop."""
LOAD_INTERVAL_S = 1.0
"""How often an unknown version may make the worker read the registry."""
TIME_OUT_INTERVAL_S = 1.0
"""How often to look for tuples that were held for too long."""
JOIN_GRACE_S = 5.0
"""With KIP-848 a member is not told that no partition is left for it: after this time it is ready without."""
NO_PARTITION = "no partition"

log = logging.getLogger("acktree.bolt")

Ready = Callable[[str], None]


class Worker:
    """Runs one bolt as one member of its consumer group."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        bolt: AnyBolt | Callable[..., Any],
        *,
        name: str | None = None,
        user: Settings | None = None,
        ready: Ready = lambda _text: None,
        output: Output | None = None,
        stuck_after_s: float | None = None,
    ) -> None:
        """Connect without reading yet; ``bolt`` may be a function that is one.

        ``stuck_after_s``: the loop is stuck if a turn takes longer; by default ``max.poll.interval.ms``.

        Raises:
            UnknownTopology, UnknownComponent, BrokerUnreachable, RefusedSetting, BadHandler: see there.
        """
        bolt = as_bolt(bolt)
        check_bolt(bolt)
        self._bootstrap, self._user, self._ready = bootstrap, user or {}, ready
        self._registry = Registry(bootstrap, topology, self._user)
        self._history = self._registry.history
        self.name = find_bolt_name(self._registry, bolt, name)
        self.task = f"{self.name}@{world.process_name()}-{world.random_bits(16):04x}"
        latest = self._history.latest
        group = latest.group_of(self.name)
        settings = group_settings(bootstrap, group, self._user, exactly_once=self._exactly_once)
        consumer = make_consumer(settings)
        self.progress = Progress(stuck_after_of(self._user) if stuck_after_s is None else stuck_after_s)
        self.output = output or self._make_output()
        fetch_committed = (
            partial(read_committed, bootstrap, self._user, group)
            if is_kip_848(self._user)
            else partial(consumer.committed, timeout=BROKER_TIMEOUT_S)
        )
        output = self.output
        fence = output.fence_previous_owners
        self._inputs = Inputs(consumer, bootstrap, fetch_committed, output.owner, fence, self.progress)
        packer = AckPacker(self._history, self.task, output.send, output.send_at_once)
        make_collector = collector_of(bolt, self._exactly_once)
        self._collector = make_collector(
            self.name, self._history, packer, output.produce, produce_rows=output.produce_rows
        )
        configure(self._collector, bolt, latest.bolts[self.name], self.name, self._user)
        intake = Intake(self.name, self._history, self._load_version)
        inputs = self._inputs
        self._turn_limit = Turn()
        self._execution = make_execution(
            bolt, self._collector, intake, inputs.check, inputs.hand, self._turn_limit
        )
        self._batch_sizer = BatchSizer(self._execution.turn_s, self._execution.min_records, BATCH_RECORDS)
        self._reads: tuple[str, ...] = ()
        self._ready_reported = self._stopping = self._broken = False
        self._next_load_s = self._next_ack_s = self._next_commit_s = self._next_report_s = 0.0
        self._next_tick_s = self._next_time_out_s = 0.0
        self._executed_at_commit, self._ready_without_partition_s = 0, math.inf
        self.reports = BoltReports(
            Context(latest, self.name, self.task), self._collector, inputs, self._execution, self.progress
        )
        limit_s = find_execute_timeout(bolt, latest.bolts[self.name], self.name)
        acts = partial(LastActs, bootstrap, self._user, self._history, self.task, consumer, fetch_committed)
        self._limit = ExecuteLimit(limit_s, self._execution, self.reports, self.progress, acts, self._give_up)
        self._commits = InputCommits(
            self._collector, self._execution, inputs, output, self.progress, self._limit.gate
        )
        self._standstill = StandstillReports(
            bootstrap, self._user, latest.stats_topic, self.progress, self.reports.make_of_standstill
        )

    @property
    def counters(self) -> dict[str, int]:
        """The counters of this worker, by name."""
        return asdict(self._collector.counters)

    @property
    def _exactly_once(self) -> bool:
        return self._history.latest.bolts[self.name].exactly_once

    def _make_output(self) -> Output:
        latest = self._history.latest
        topics = (*latest.bolts[self.name].emits, latest.ack_topic)
        limits = read_limits(self._bootstrap, topics, self._user)
        group = latest.group_of(self.name)
        if self._exactly_once:
            return ExactlyOnce(self._bootstrap, self._user, group, limits, self.progress)
        return AtLeastOnce(
            self._bootstrap,
            self._user,
            limits,
            group=group,
            on_queue_full=lambda: self._collector.flush(),
            progress=self.progress,
        )

    def stop(self) -> None:
        """Ask ``run`` to end after the current tuple or batch; may be called from a signal handler."""
        self._stopping = self._inputs.stopping = True
        self._turn_limit.stop()
        self.output.begin_stop()

    def run(self) -> None:
        """Run until stopped.

        Raises:
            DeliveryFailed: the broker rejected a record for good; the next worker reads the inputs since the
                last commit again.
            Exception: what ``prepare``, ``tick`` or ``cleanup`` of the bolt raises.
        """
        # Life of an ack, step 1.
        try:
            self._execution.prepare(Context(self._history.latest, self.name, self.task))
            self._subscribe()
            self._standstill.start()
            self._limit.start()
            while not self._stopping:
                self._turn()
            self._execution.finish(self._inputs.in_hand())
        except BaseException as error:
            self._broken = True
            if isinstance(error, KafkaException):
                raise as_clear_error(error.args[0], self._bootstrap) from error
            raise
        finally:
            self.progress.end()
            self._standstill.stop()
            self._limit.stop()
            try:
                self._execution.cleanup()
            finally:
                self._leave()

    def _give_up(self) -> None:
        """Do nothing more when the partitions go: another thread ends this process."""
        self._broken = True

    def _leave(self) -> None:
        """Send and commit what is left, whatever the bolt's cleanup raised, and leave the group."""
        try:
            if not self._broken:
                self.reports.log_never_acked()
                self._commits.commit_leaving(self._inputs.places())
                self.reports.send(self.output)
                self.output.flush_and_commit(self._inputs.consumer, ())
        finally:
            self._broken = True
            self._inputs.close()
            self._registry.close()

    def _turn(self) -> None:
        if self._execution.moves:
            self.progress.begin_turn()
        max_records = self._batch_sizer.records
        if self._execution.max_in_hand is not None:
            max_records = min(max_records, self._inputs.room(self._execution.max_in_hand))
        records = self._inputs.read(self._wait_s(), max_records)
        if records and not self._inputs.names_owner:
            self._inputs.put_back(records)
            self._commits.commit()
            records = self._inputs.read(0, max_records)
        if self._commits.must_rewind:  # by a revocation just now: these records come again, with others
            self._commits.rewind()
            return
        if records:
            began_s = world.monotonic_s()
            self._turn_limit.begin(began_s + self._execution.turn_s)
            self.reports.taken = len(records)
            left = self._execution.run(records)
            self.reports.taken = 0
            self._inputs.put_back(left)
            if len(left) < len(records):
                self._batch_sizer.update(len(records) - len(left), world.monotonic_s() - began_s)
        self._execution.collect()
        now_s = world.monotonic_s()
        self.reports.measure(now_s)
        if now_s >= self._next_ack_s:
            if self.output.sends_acks_early:
                self._collector.flush()
            self.output.serve()
            self._next_ack_s = now_s + self.output.ack_interval_s
        tick_interval_s = self._execution.tick_interval_s
        if tick_interval_s is not None and now_s >= self._next_tick_s:
            self._next_tick_s = now_s + tick_interval_s
            self.progress.calling = "tick"
            self._execution.tick()
            self.progress.calling = ""
        if now_s >= self._next_time_out_s:
            self._next_time_out_s = now_s + TIME_OUT_INTERVAL_S
            latest = self._history.latest
            if latest.ackers and latest.message_timeout_s:
                self._execution.time_out(self._inputs.in_hand(), latest.message_timeout_s)
            if limit_s := self._limit.limit_s:
                self._execution.cut_off(limit_s, reason_for(limit_s))
        executed = self._collector.counters.executed
        if now_s >= self._next_commit_s or executed - self._executed_at_commit >= self.output.commit_records:
            self._commits.commit()
            self._executed_at_commit = executed
            self._next_commit_s = world.monotonic_s() + self.output.commit_interval_s
            self._follow_topology()
        if now_s >= self._ready_without_partition_s:
            self._report_ready(NO_PARTITION)
        if now_s >= self._next_report_s:
            self.reports.send(self.output)
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _wait_s(self) -> float:
        """Return how long to wait for a record: at most until the next flush or commit of something."""
        is_idle = self._collector.counters.executed == self._executed_at_commit and not self._inputs.has_hand
        due_s = math.inf if is_idle else self._next_commit_s
        if self._collector.has_unsent:
            due_s = min(due_s, self._next_ack_s)
        max_wait_s = BUSY_WAIT_S if self._execution.is_busy else IDLE_WAIT_S
        return min(max_wait_s, max(0.0, due_s - world.monotonic_s()))

    def _subscribe(self) -> None:
        table = self._history.latest.bolts.get(self.name)
        if table is None or table.reads == self._reads:
            return
        self._reads = table.reads
        self._inputs.subscribe(self._reads, self._assigned, self._revoked, self._lost)
        if is_kip_848(self._user):
            self._ready_without_partition_s = world.monotonic_s() + JOIN_GRACE_S

    def _follow_topology(self) -> None:
        """Apply a version that was published since: its topics and its readers."""
        if self._registry.refresh():
            self._collector.targets.use_latest()
            self._subscribe()

    def _load_version(self, version: int) -> None:
        """Read the registry to its end for an unknown version in a header, at most once a second."""
        now_s = world.monotonic_s()
        if now_s < self._next_load_s:
            return
        self._registry.catch_up()
        self._next_load_s = world.monotonic_s() + LOAD_INTERVAL_S

    def _assigned(self, places: list[Place]) -> None:
        held = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)) or NO_PARTITION
        log.info("%s reads %s", self.task, held, extra={"action": "assigned"})
        self._report_ready(held)

    def _report_ready(self, held: str) -> None:
        if not self._ready_reported:
            self._ready_reported = True
            self._ready(f"ready bolt {self.name} of topology {self._history.name} reads {held}")

    def _revoked(self, places: list[Place]) -> None:
        if not self._broken:
            self._execution.finish(self._inputs.in_hand(places))
            self._commits.commit_leaving(places, in_callback=True)
            self._commits.drop(places)

    def _lost(self, places: list[Place]) -> None:
        if not self._broken:
            self._commits.drop(places)
            self.output.must_abort = True
