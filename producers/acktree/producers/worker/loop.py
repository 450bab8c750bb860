"""The worker: the one loop that reads a bolt's topics, executes it, sends its output and commits offsets.

Invariant: children and acks are durable before the offsets of their inputs are committed: periodically, when
a partition is revoked, and at a stop. A turn ends after the tuple that is being executed when its time is
up or a stop is requested; the others wait. Callbacks run inside the loop's own calls; another thread only
watches it.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, make_consumer
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.group_offsets import read_committed
from acktree.core.kafka.log_reader import LogReader
from acktree.core.kafka.settings import Settings, is_kip_848
from acktree.core.reports.liveness import Liveness, stuck_after_of
from acktree.core.reports.stall_reports import SILENT_AFTER_S, ReportSender
from acktree.core.reports.stats import STATS_INTERVAL_S
from acktree.core.topology.registry import Registry
from acktree.producers.bolt import AnyBolt, Context
from acktree.producers.collecting.arithmetic.packing import AckPacker
from acktree.producers.errors import ExecuteHangs
from acktree.producers.functions import as_bolt
from acktree.producers.kafka.at_least_once import AtLeastOnce
from acktree.producers.kafka.exactly_once import ExactlyOnce
from acktree.producers.kafka.inputs import Inputs
from acktree.producers.kafka.membership import group_settings
from acktree.producers.kafka.output import Output
from acktree.producers.kafka.record_limits import read_limits
from acktree.producers.tuples import Place, Record
from acktree.producers.worker.bolt_reports import BoltReports
from acktree.producers.worker.execute_limit import ExecuteLimit
from acktree.producers.worker.executing.batch_sizing import Turn
from acktree.producers.worker.executing.bolt_kinds import (
    check_bolt,
    collector_of,
    configure,
    find_bolt_name,
    find_execute_timeout,
    in_a_thread,
    make_execution,
)
from acktree.producers.worker.executing.intake import Intake
from acktree.producers.worker.input_commits import InputCommits

IDLE_WAIT_S = 0.1
BUSY_WAIT_S = 0.005
"""How long to wait for a record while tuples are being executed outside this loop."""
LOAD_INTERVAL_S = 1.0
"""How often one unknown version may make the worker read the registry."""
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
            UnknownTopology, UnknownComponent, BrokerUnreachable, RefusedSetting: see their docstrings.
            BadHandler: see its docstring.
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
        self.progress = Liveness(stuck_after_of(self._user) if stuck_after_s is None else stuck_after_s)
        self.output = output or self._make_output()
        fetch_committed = (
            partial(read_committed, bootstrap, self._user, group)
            if is_kip_848(self._user)
            else partial(consumer.committed, timeout=BROKER_TIMEOUT_S)
        )
        output = self.output
        fence = output.fence_previous_owners
        reader = LogReader(consumer, bootstrap, group, self._user, is_member=True)
        self._inputs = Inputs(
            reader, bootstrap, fetch_committed, output.owner, fence, self.progress, self._user
        )
        packer = AckPacker(self._history, self.task, output.send, output.send_at_once)
        make_collector = collector_of(bolt, self._exactly_once)
        self._collector = make_collector(
            self.name, self._history, packer, output.produce, produce_rows=output.produce_rows
        )
        self._collector.children.limit = output.limit
        configure(self._collector, bolt, latest.bolts[self.name], self.name, self._user)
        intake = Intake(self.name, self._history, self._load_version)
        inputs = self._inputs
        self._turn_limit = Turn()
        made = make_execution(
            bolt,
            self._collector,
            intake,
            inputs.hand,
            self._turn_limit,
            exactly_once=self._exactly_once,
        )
        self._execution = in_a_thread(made, self._collector, self._turn_limit, inputs.put_back, self.progress)
        inputs.unfinished = self._execution.unfinished
        self._reads: tuple[str, ...] = ()
        self._ready_reported = self._stopping = self._broken = self._hangs = False
        self._next_load_s: dict[int, float] = {}
        self._has_loaded = False
        self._next_ack_s = self._next_commit_s = self._next_report_s = 0.0
        self._next_tick_s = self._next_time_out_s = 0.0
        self._executed_at_commit, self._ready_without_partition_s = 0, math.inf
        self.reports = BoltReports(
            Context(latest, self.name, self.task), self._collector, inputs, self._execution, self.progress
        )
        limit_s = find_execute_timeout(bolt, latest.bolts[self.name], self.name)
        self._limit = ExecuteLimit(limit_s, self._execution, self.progress)
        self._commits = InputCommits(self._collector, self._execution, inputs, output, self.progress)
        self._sender = ReportSender(
            bootstrap, self._user, latest.stats_topic, self.progress, self.reports.make_of_stall
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
            return ExactlyOnce(
                self._bootstrap,
                self._user,
                group,
                limits,
                self.progress,
                on_full=lambda: self._turn_limit.end(),
            )
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
            DeliveryFailed: the broker permanently rejected a record; the next worker reads the inputs
                since the last commit again.
            ExecuteHangs: ``execute`` does not return, long after its tuple has failed.
            Exception: ``prepare``, ``tick`` or ``cleanup`` of the bolt raised it.
        """
        # Life of an ack, step 1.
        self._collector.faults.threads = {world.thread_id()}
        try:
            self._execution.prepare(Context(self._history.latest, self.name, self.task))
            self._subscribe()
            self._sender.start()
            while not self._stopping:
                self._turn()
            self._execution.finish(self._inputs.in_hand())
            self.output.renew_stop()
        except ExecuteHangs:
            self._hangs = True
            raise
        except BaseException as error:
            self._broken = True
            if isinstance(error, KafkaException):
                raise as_clear_error(error.args[0], self._bootstrap) from error
            raise
        finally:
            self.progress.end()
            self._sender.stop()
            try:
                if not self._hangs:
                    self._execution.cleanup()
            finally:
                self._leave()

    def _leave(self) -> None:
        """Send and commit what is left, whatever the bolt's cleanup raised, and leave the group."""
        try:
            if not self._broken:
                with self._collector.guard:
                    self.reports.log_never_acked()
                    self._commits.commit_leaving(self._inputs.places())
                self._sender.send_last(self.reports.make())
        finally:
            self._broken = True
            self._collector.lines.flush(is_last=True)
            self._inputs.close()
            self._registry.close()

    def _turn(self) -> None:
        if self._execution.moves:
            self.progress.begin_turn()
        self._begin()
        self._execution.wait()
        with self._collector.guard:
            self._serve()

    def _begin(self) -> None:
        """Read records and give them to the bolt, whose thread frees them: it has them in its cache."""
        records = self._read()
        self._has_loaded = False
        with self._collector.guard:
            if self._commits.must_rewind:  # by a revocation just now: these records come again, with others
                self._commits.rewind()
            elif records:
                self._inputs.put_back(self._execution.run(records))

    def _read(self) -> Sequence[Record]:
        """Serve the group, and return records if any can be executed."""
        if not self._execution.takes_records:
            self._inputs.serve()
            return ()
        max_records = self._execution.max_records
        if (limit := self._execution.max_in_hand) is not None:
            max_records = min(max_records, self._inputs.back_pressure.room(self._inputs.hands, limit))
        if self.output.limit is not None:
            max_records = min(max_records, self.output.limit.tuples)
        records = self._inputs.read(self._wait_s(), max_records)
        if records and not self._inputs.names_owner:
            self._inputs.put_back(records)
            with self._collector.guard:
                self._commits.commit()
            records = self._inputs.read(0, max_records)
        return records

    def _serve(self) -> None:
        """Take what has ended, and do what is due; with the guard, for no longer than the broker takes."""
        if self._inputs.troubles:
            for said in self._commits.pass_unreadable():
                self.reports.failed(said)
        self._execution.collect()
        now_s = world.monotonic_s()
        self.reports.measure(now_s)
        if now_s >= self._next_ack_s:
            if self.output.sends_acks_early:
                self._collector.flush()
            self.output.serve()
            self._next_ack_s = now_s + self.output.ack_interval_s
        if now_s >= self._next_time_out_s and self._execution.may_time_out:
            self._next_time_out_s = now_s + TIME_OUT_INTERVAL_S
            latest = self._history.latest
            if latest.ackers and latest.message_timeout_s:
                self._execution.time_out(self._inputs.in_hand(), latest.message_timeout_s)
        tick_interval_s = self._execution.tick_interval_s
        if tick_interval_s is not None and now_s >= self._next_tick_s and self._execution.takes_records:
            self._next_tick_s = now_s + tick_interval_s
            self._execution.tick()
        if self._limit.limit_s:
            self._limit.check()
        executed = self._collector.counters.executed
        count = executed - self._executed_at_commit
        if now_s >= self._next_commit_s or count >= self.output.commit_records or self.output.is_full:
            self.output.executed = count
            self._commits.commit()
            self._executed_at_commit = executed
            self._next_commit_s = world.monotonic_s() + self.output.commit_interval_s
            self._follow_topology()
        if now_s >= self._ready_without_partition_s:
            self._report_ready(NO_PARTITION)
        if now_s >= self._next_report_s and self.progress.turn_s < SILENT_AFTER_S:
            self._sender.send(self.reports.make())
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
        """Read the registry to its end for an unknown version in a header, once a second for each.

        Once a turn is enough for all of them: a version was published before the records that were read in
        this turn were written. One that is not there does not exist.
        """
        if not self._has_loaded and world.monotonic_s() >= self._next_load_s.get(version, 0.0):
            with self.progress.waiting():
                self._registry.catch_up()
            self._has_loaded = True
            self._next_load_s[version] = world.monotonic_s() + LOAD_INTERVAL_S

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
            self._execution.finish(self._inputs.in_hand(places), places)
            with self._collector.guard:
                self._commits.commit_leaving(places, in_callback=True)
                self._commits.drop(places)

    def _lost(self, places: list[Place]) -> None:
        if not self._broken:
            with self._collector.guard:
                self._commits.drop(places)
            self.output.must_abort = True
