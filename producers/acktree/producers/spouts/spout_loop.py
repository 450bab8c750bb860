"""The loop of a spout written in Python: emits while there is room, delivers results.

Invariant: at most ``max_pending`` messages are pending, apart from those of the last ``next_tuple``; the run
and the message numbers are durable before they are used, so no root id is ever reused. Messages that are
pending when the process ends get no result: the source must emit unacked messages again.
"""

import logging
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaException

from acktree.core import world
from acktree.core.kafka.clients import make_consumer
from acktree.core.kafka.errors import as_clear_error
from acktree.core.kafka.log_reader import LogReader, reader_settings
from acktree.core.kafka.settings import Settings
from acktree.core.reports.breaker_watch import BreakerWatch
from acktree.core.reports.liveness import Liveness, stuck_after_of
from acktree.core.reports.stall_reports import ReportSender, RoleReports
from acktree.core.reports.stats import STATS_INTERVAL_S
from acktree.core.topology.file import SpoutTable
from acktree.core.topology.flow import Flow, SetFlow, flow_figures
from acktree.core.topology.registry import Registry
from acktree.producers.collecting.arithmetic.packing import InitPacker
from acktree.producers.collecting.spout_emitter import SpoutEmitter
from acktree.producers.errors import UnknownComponent
from acktree.producers.kafka.deadline_call import close_consumer
from acktree.producers.kafka.record_limits import read_limits
from acktree.producers.ledger.pending_limit import PendingLimit
from acktree.producers.loading import check_plain, check_written
from acktree.producers.spout import Failure, Spout, SpoutContext
from acktree.producers.spouts.message_dead_letters import MessageDeadLetters
from acktree.producers.spouts.retry_choice import RetryChoice, find_retry
from acktree.producers.spouts.spout_delivery import SpoutDelivery
from acktree.producers.spouts.spout_output import SpoutOutput
from acktree.producers.spouts.spout_results import SpoutResults
from acktree.producers.spouts.spout_retries import SpoutRetries
from acktree.producers.spouts.spout_settings import find_spout_name, policy_of, slot_of, warn_of_failures
from acktree.producers.spouts.task_commits import TaskCommits
from acktree.wire.control_records import Cause

SPOUT_METHODS = (
    "prepare",
    "next_tuple",
    "ack",
    "fail",
    "gave_up",
    "attempt_failed",
    "deactivate",
    "activate",
    "cleanup",
)
CALLS_PER_TURN = 1_000
IDLE_WAIT_S = 0.01
BUSY_WAIT_S = 0.001
"""How long a spout that emitted nothing waits for results while messages are pending; Storm's waits 1 ms."""

log = logging.getLogger("acktree.spout")


class SpoutWorker:
    """Runs one task of a spout; ``task`` counts the spout's tasks from 0."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        spout: Spout,
        *,
        task: int = 0,
        name: str | None = None,
        user: Settings | None = None,
        ready: Callable[[str], None] = lambda _text: None,
        stuck_after_s: float | None = None,
    ) -> None:
        """Connect and begin a run.

        ``stuck_after_s``: the loop is stuck if a turn takes longer; by default ``max.poll.interval.ms``.

        Raises:
            UnknownTopology, UnknownComponent, BrokerUnreachable, GroupInUse: see their docstrings.
            BadHandler: see its docstring.
            MissingTopic, UnreadableState, ZombieDriver: as ``StateTopic.take_over``.
        """
        check_written(spout, (Spout,), "next_tuple")
        check_plain(spout, SPOUT_METHODS)
        retry = find_retry(spout)
        user = user or {}
        self._bootstrap, self._spout, self._ready = bootstrap, spout, ready
        self._registry = Registry(bootstrap, topology, user)
        self._history = self._registry.history
        latest = self._history.latest
        self.name = find_spout_name(latest, spout, name)
        if not 0 <= task < latest.spouts[self.name].tasks:
            raise UnknownComponent(
                f"spout {self.name} has tasks 0 to {latest.spouts[self.name].tasks - 1}; task {task} does "
                "not exist"
            )
        number = latest.spout_tasks[self.name][task]
        self.task = f"{self.name}@{world.process_name()}"
        result_topic = latest.result_topic(number)
        group = latest.group_of(self.name)
        self._consumer = make_consumer(reader_settings(bootstrap, group, user))
        self.progress = Liveness(stuck_after_of(user) if stuck_after_s is None else stuck_after_s)
        self._stopping, self._is_active, self._obeyed = False, True, SetFlow()
        self.commits = TaskCommits(bootstrap, user, latest, self.name, number, self.progress)
        reader = LogReader(self._consumer, bootstrap, group, user)
        self.results = SpoutResults(reader, result_topic, self.commits, bootstrap)
        topics = [*latest.spouts[self.name].emits, latest.ack_init_topic]
        limits = read_limits(bootstrap, [*topics, latest.dead_letter_topic] if retry else topics, user)
        self._output = SpoutOutput(
            bootstrap, user, limits, on_queue_full=self._send_inits, progress=self.progress
        )
        self._packer = InitPacker(self._history, number, self._output.send)
        self.emitter = SpoutEmitter(
            self.name,
            self._history,
            slot_of(latest, self.name, task).slot,
            self.commits.state.run,
            self._packer,
            self._output.produce_confirmed,
            self.commits.sequences,
        )
        self._limit, self._overtaken = PendingLimit(), 0
        self._watch_breaker = BreakerWatch(self._history, self.name)
        self.breaker = self._watch_breaker.breaker
        self._retries = (
            self._make_retries(group, RetryChoice(self.name, None if retry is True else retry))
            if retry
            else None
        )
        self.reports = RoleReports("spout", self.name, self.task, self.progress, {"task": task})
        self._sender = ReportSender(bootstrap, user, latest.stats_topic, self.progress, self.reports.of_stall)
        self._delivery = SpoutDelivery(
            *(spout, self.emitter, self._history, self.progress, self.reports.last_error),
            *(self._retries, self.breaker),
        )
        self._task_index, self._tasks = task, latest.spouts[self.name].tasks
        self._measured_s = world.monotonic_s()
        self._next_flush_s = self._next_report_s = 0.0

    def _make_retries(self, group: str, choice: RetryChoice) -> SpoutRetries:
        history, name = self._history, self.name
        produce = self._output.produce_confirmed
        letters = MessageDeadLetters(name, produce, lambda: history.latest.dead_letter_topic, group)
        policy = partial(policy_of, self._history, name)
        jitter = world.random_fraction
        return SpoutRetries(self.emitter, letters, choice, policy, jitter, self.breaker)

    @property
    def pending(self) -> int:
        """How many messages are pending, those that wait for their next attempt included."""
        return len(self.emitter.pending)

    @property
    def _table(self) -> SpoutTable:
        return self._history.latest_with(self.name).spouts[self.name]

    @property
    def _is_removed(self) -> bool:
        return self.name not in self._history.latest.spouts

    @property
    def _is_over(self) -> bool:
        return self._is_removed and not self.pending

    def stop(self) -> None:
        """Ask ``run`` to end; may be called from a signal handler."""
        self._stopping = True
        self._output.begin_stop()

    def run(self) -> None:
        """Run until stopped, or until nothing is pending of a spout that the topology no longer has.

        Raises:
            Misuse, DeliveryFailed, ZombieDriver: see their docstrings.
            UnknownComponent: the spout was removed from the topology.
        """
        try:
            latest, where = self._history.latest, (self._task_index, self._tasks)
            self._spout.prepare(SpoutContext(latest, self.name, self.task, *where))
            run = self.commits.state.run
            self._ready(f"ready spout {self.name} of topology {self._history.name}, run {run}")
            if self._retries is None:
                warn_of_failures(self._history.latest, self.name, self._spout)
            self._sender.start()
            self._follow_flow()
            while not (self._stopping or self._is_over):
                self._turn()
            self._flush()
            if self._is_over:
                raise UnknownComponent(
                    f"topology {self._history.name} no longer has spout {self.name}; none of its messages "
                    "are pending"
                )
        except KafkaException as error:
            raise as_clear_error(error.args[0], self._bootstrap) from error
        finally:
            self.progress.end()
            self._sender.stop()
            try:
                self._spout.cleanup()
            finally:
                close_consumer(self._consumer)
                self.commits.close()
                self._registry.close()

    def _turn(self) -> None:
        self.progress.begin_turn()
        now_s = world.monotonic_s()
        self._measured_s = now_s
        self.progress.calling = "next_tuple"
        emitted = self._emit(now_s)
        self.progress.calling = ""
        self._read_results(self._wait_s(emitted))
        self._delivery.finish_exhausted()
        if now_s >= self._next_flush_s:
            self._output.serve()
            self._send_inits()
            self._ack_done()
            self._follow_times(now_s)
            self._next_flush_s = now_s + self._output.ack_interval_s
        self.commits.follow(now_s)
        if now_s >= self._next_report_s:
            self._report()
            self._fail_expired(now_s)
            if self._registry.refresh():
                self.emitter.targets.use_latest()
            self._follow_flow()
            self._watch_breaker.follow(now_s)
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _wait_s(self, emitted: int) -> float:
        if emitted:
            return 0.0
        return BUSY_WAIT_S if self.pending else IDLE_WAIT_S

    def _follow_flow(self) -> None:
        """Tell the spout when an operator has paused or resumed it; one that was removed drains."""
        self._obeyed = SetFlow(Flow.DRAINING) if self._is_removed else self._history.flow(self.name)
        is_active = self._obeyed.flow is Flow.RUNNING
        if is_active is not self._is_active:
            self._is_active = is_active
            self.progress.calling = "activate" if is_active else "deactivate"
            (self._spout.activate if is_active else self._spout.deactivate)()
            self.progress.calling = ""

    def _emit(self, now_s: float) -> int:
        """Emit again what is due, unless the spout is paused, then what is new while there is room."""
        if self.breaker.is_open:
            return self._emit_probe(now_s)
        emitted = 0
        if self._retries is not None and self._obeyed.flow is not Flow.PAUSED:
            emitted = self._retries.emit_due(now_s, CALLS_PER_TURN)
        if not self._is_active:
            return emitted
        for _ in range(min(self._room(), CALLS_PER_TURN)):
            if self.emitter.pending.kept_bytes >= self._spout.max_kept_bytes:
                break
            count = self.emitter.call(self._spout.next_tuple, now_s)
            emitted += count
            if not count:
                break
        return emitted

    def _room(self) -> int:
        """Return how many new messages may be emitted."""
        room = self._table.max_pending - self.pending
        self._limit.bound(self._table.max_pending if self._history.latest.ackers else 0)
        if not self._limit.allowed:
            return room
        allowed = self._limit.allowed - self.emitter.pending.in_flight + self._overtaken
        if allowed < min(room, CALLS_PER_TURN):
            self._limit.hold_back()
        return min(room, allowed)

    def _follow_times(self, now_s: float) -> None:
        """Follow how long messages take; what was overtaken waits in no queue."""
        self._limit.complete(self._delivery.pop_times(), now_s)
        self._overtaken = len(self.emitter.pending.older_than(self._limit.overtaken_s))

    def _emit_probe(self, now_s: float) -> int:
        """Emit one message now and then while the breaker is open: in turn one that failed and a new one."""
        if not self.breaker.is_probe_due(now_s) or self._obeyed.flow is Flow.PAUSED:
            return 0
        emitted = 0
        for is_new in (True, False) if self.breaker.probes_sent % 2 else (False, True):
            if not is_new and self._retries is not None:
                emitted = self._retries.emit_due(now_s, 1)
            elif is_new and self._is_active and self.pending < self._table.max_pending:
                emitted = self.emitter.call(self._spout.next_tuple, now_s)
            if emitted:
                self.breaker.probed(self.emitter.newest_roots, now_s)
                break
        return emitted

    def _send_inits(self) -> None:
        """Send the inits of the trees whose tuples are all in the log."""
        self.emitter.pack_inits()
        self._packer.flush()

    def _flush(self) -> None:
        """Wait until the broker has all tuples, and then all their inits."""
        self._output.drain()
        self._send_inits()
        self._output.flush_and_commit(self._consumer, ())
        self._ack_done()
        self._delivery.finish_exhausted()

    def _ack_done(self) -> None:
        """Ack the messages that are done without an acker: they are in the log."""
        for message in self.emitter.pop_done():
            self._delivery.ack(message)

    def _read_results(self, wait_s: float) -> None:
        for result in self.results.read(wait_s):
            for failed in result.failed:
                self._delivery.fail(failed.root, Failure.of(failed))
            for root in result.acked.tolist():
                self._delivery.ack_root(root)

    def _fail_expired(self, now_s: float) -> None:
        """Fail messages older than the control topics' retention: their results can no longer come."""
        for root in self.emitter.pending.older_than(now_s - self._history.latest.control_retention_s):
            self._delivery.fail(root, Failure(Cause.TIMED_OUT, "", ""), is_overdue=True)

    def _oldest_s(self) -> float:
        """Return how long ago the oldest pending message was emitted for the first time, 0 for none."""
        first_s = self.emitter.pending.first_emitted_s
        return 0.0 if first_s is None else round(max(0.0, world.monotonic_s() - first_s), 3)

    def _report(self) -> None:
        values = {
            **self._delivery.figures(),
            "pending": self.pending,
            "pending_limit": self._limit.allowed,
            f"held_s..{self._task_index}": self._oldest_s(),
            "invalid": self.results.invalid,
            "task": self._task_index,
            **flow_figures(self._obeyed),
            **self._watch_breaker.figures(len(self._retries.held) if self._retries else 0, self._measured_s),
        }
        self._sender.send(self.reports.of_loop(values))
