"""The loop that runs a spout written in Python: emit while there is room, deliver results.

Invariant: at most ``max_pending`` messages are pending, apart from those of the last ``next_tuple``; the run
and the message numbers are durable before they are used, so no root id is ever reused; two that claim at once
may have the same run, but their numbers are apart. Messages that are pending when the process ends get no
result: the source must emit again whatever was not acked.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from confluent_kafka import KafkaException, TopicPartition

from acktree.producers.bolt import Context
from acktree.producers.errors import UnknownComponent
from acktree.producers.kafka.claim import LostClaim, claim_run, commit_claim, read_claim
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline, close_consumer
from acktree.producers.kafka.inputs import check_error
from acktree.producers.kafka.packing import InitPacker
from acktree.producers.kafka.record_limits import read_limits
from acktree.producers.kafka.spout_output import SpoutOutput
from acktree.producers.loading import check_written
from acktree.producers.spout import (
    AnySpout,
    Failure,
    Message,
    Sequences,
    Spout,
    SpoutEmitter,
    ValueSpout,
)
from acktree.schemas import world
from acktree.schemas.client_settings import Settings, consumer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S, make_consumer, retry_until_ready
from acktree.schemas.codec import decode_result
from acktree.schemas.control_records import Cause
from acktree.schemas.errors import AcktreeError, MalformedRecord
from acktree.schemas.flow import Flow, SetFlow, flow_figures
from acktree.schemas.ids import MAX_OFFSET
from acktree.schemas.kafka_errors import as_clear_error, clear_errors, was_transient
from acktree.schemas.outages import log_retry
from acktree.schemas.progress import Progress, stuck_after_of
from acktree.schemas.registry import Published, Registry, Slot
from acktree.schemas.standstill import RoleReports, StandstillReports
from acktree.schemas.stats import STATS_INTERVAL_S

SPOUTS: tuple[type[AnySpout], ...] = (Spout, ValueSpout)
CALLS_PER_TURN = 1_000
IDLE_WAIT_S = 0.01
BUSY_WAIT_S = 0.001
"""How long a spout that emitted nothing waits for results while messages are pending; Storm's waits 1 ms."""
FIRST_CLAIM_INTERVAL_S, CLAIM_INTERVAL_S = 0.5, 10.0
"""How long from one look at the claim to the next; it doubles, since who claimed at once is found at once."""
SPREAD_BITS = 31
"""A start leaves out up to 2^31 numbers at random: two processes that claim at once, and read the same claim,
give out others. 255 starts leave out less than the 2^39 numbers after which they begin again."""
SEQUENCES = 1 << 22
"""How many message numbers each claim reserves; when they run out, the next claim is made immediately."""
RESULTS_PER_TURN = 1_000

log = logging.getLogger("acktree.spout")


def find_spout_name(latest: Published, spout: AnySpout, wanted: str | None) -> str:
    """Return the spout's name in the topology: ``wanted``, its class's, or the only one without topics.

    Raises:
        UnknownComponent: there is no such spout, it reads topics, or there are several to choose from.
    """
    candidates = [name for name, table in latest.spouts.items() if not table.topics]
    name = wanted or spout.name or (candidates[0] if len(candidates) == 1 else "")
    if name in candidates:
        return name
    raise UnknownComponent(
        f"topology {latest.name} has no spout {name!r} without topics; it has: "
        f"{', '.join(candidates) or 'none'}"
    )


class SpoutWorker:
    """Runs one task of a spout; ``task`` counts the spout's tasks from 0."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        spout: AnySpout,
        *,
        task: int = 0,
        name: str | None = None,
        user: Settings | None = None,
        ready: Callable[[str], None] = lambda _text: None,
        stuck_after_s: float | None = None,
    ) -> None:
        """Connect and claim a run.

        ``stuck_after_s``: the loop is stuck if a turn takes longer; by default ``max.poll.interval.ms``.

        Raises:
            UnknownTopology, UnknownComponent, BrokerUnreachable, LostClaim, GroupInUse, BadHandler: there.
        """
        check_written(spout, SPOUTS, "next_tuple")
        self._bootstrap, self._spout, self._ready = bootstrap, spout, ready
        self._registry = Registry(bootstrap, topology, user or {})
        self._history = self._registry.history
        latest = self._history.latest
        self.name = find_spout_name(latest, spout, name)
        if not 0 <= task < latest.spouts[self.name].tasks:
            raise UnknownComponent(f"spout {self.name} has {latest.spouts[self.name].tasks} tasks, no {task}")
        number = latest.spout_tasks[self.name][task]
        self.task = f"{self.name}@{world.process_name()}"
        self._result_topic = latest.result_topic(number)
        self._group = latest.group_of(self.name)
        self._settings = consumer_settings(bootstrap, self._group, user or {})
        self._claims, self._consumer = make_consumer(self._settings), make_consumer(self._settings)
        self.claim = claim_run(self._claims, self._result_topic, self._group, bootstrap)
        with clear_errors(bootstrap):
            self._assign_results()
        topics = (*latest.spouts[self.name].emits, latest.ack_init_topic)
        limits = read_limits(bootstrap, topics, user or {})
        user = user or {}
        self.progress = Progress(stuck_after_of(user) if stuck_after_s is None else stuck_after_s)
        self._output = SpoutOutput(
            bootstrap, user, limits, on_queue_full=self._send_inits, progress=self.progress
        )
        self._packer = InitPacker(self._history, number, self._output.send)
        self.emitter = SpoutEmitter(
            self.name,
            self._history,
            _slot_of(latest, self.name, task).slot,
            self.claim.run,
            self._packer,
            self._output.produce_confirmed,
            Sequences(self.claim.sequence + world.random_bits(SPREAD_BITS), self._reserve),
        )
        self._max_kept_bytes = spout.max_kept_bytes if isinstance(spout, ValueSpout) else math.inf
        self.emitter.keeps_values = isinstance(spout, ValueSpout)
        self.rejected = self.timed_out = 0
        self.reports = RoleReports("spout", self.name, self.task, self.progress, {"task": task})
        self._standstill = StandstillReports(
            bootstrap, user, latest.stats_topic, self.progress, self.reports.of_standstill
        )
        self._task_index = task
        self._pending_s, self._measured_s = 0.0, world.monotonic_s()
        self._stopping, self._is_active, self._obeyed = False, True, SetFlow()
        self._next_flush_s = self._next_claim_s = self._next_report_s = 0.0
        self._claim_interval_s = FIRST_CLAIM_INTERVAL_S

    def _assign_results(self) -> None:
        """Read results from the end of the topic: older ones are of earlier runs."""
        place = TopicPartition(self._result_topic, 0)
        ask = partial(self._consumer.get_watermark_offsets, place, timeout=BROKER_TIMEOUT_S)
        _, end = retry_until_ready(ask, wait_if_away=True)
        self.claim.next_offset = max(end, self.claim.next_offset)
        self._consumer.assign([TopicPartition(self._result_topic, 0, self.claim.next_offset)])

    @property
    def pending(self) -> int:
        """How many messages are pending."""
        return len(self.emitter.pending)

    def stop(self) -> None:
        """Ask ``run`` to end; may be called from a signal handler."""
        self._stopping = True
        self._output.begin_stop()

    def run(self) -> None:
        """Run until stopped. Raises Misuse, DeliveryFailed, LostClaim."""
        try:
            self._spout.prepare(Context(self._history.latest, self.name, self.task))
            self._ready(f"ready spout {self.name} of topology {self._history.name}, run {self.claim.run}")
            self._standstill.start()
            self._follow_flow()
            while not self._stopping:
                self._turn()
            self._flush()
        except KafkaException as error:
            raise as_clear_error(error.args[0], self._bootstrap) from error
        finally:
            self.progress.end()
            self._standstill.stop()
            try:
                self._spout.cleanup()
            finally:
                close_consumer(self._consumer)
                close_consumer(self._claims)
                self._registry.close()

    def _turn(self) -> None:
        self.progress.begin_turn()
        now_s = world.monotonic_s()
        self._pending_s += self.pending * (now_s - self._measured_s)
        self._measured_s = now_s
        self.progress.calling = "next_tuple"
        emitted = self._emit(now_s)
        self.progress.calling = ""
        self._read_results(self._wait_s(emitted))
        if now_s >= self._next_flush_s:
            self._output.serve()
            self._send_inits()
            self._ack_done()
            self._next_flush_s = now_s + self._output.ack_interval_s
        if now_s >= self._next_claim_s:
            self._renew_claim()
            self._fail_expired(now_s)
            self._next_claim_s = world.monotonic_s() + self._claim_interval_s
            self._claim_interval_s = min(2 * self._claim_interval_s, CLAIM_INTERVAL_S)
        if now_s >= self._next_report_s:
            self._report()
            if self._registry.refresh():
                self.emitter.targets.use_latest()
            self._follow_flow()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _wait_s(self, emitted: int) -> float:
        if emitted:
            return 0.0
        return BUSY_WAIT_S if self.pending else IDLE_WAIT_S

    def _follow_flow(self) -> None:
        """Tell the spout when an operator has paused it, and when it goes on."""
        self._obeyed = self._history.flow(self.name)
        is_active = self._obeyed.flow is Flow.RUNNING
        if is_active is not self._is_active:
            self._is_active = is_active
            self.progress.calling = "activate" if is_active else "deactivate"
            (self._spout.activate if is_active else self._spout.deactivate)()
            self.progress.calling = ""

    def _emit(self, now_s: float) -> int:
        if not self._is_active:
            return 0
        room = self._history.latest.spouts[self.name].max_pending - self.pending
        emitted = 0
        for _ in range(min(room, CALLS_PER_TURN)):
            if self.emitter.pending.kept_bytes >= self._max_kept_bytes:
                break
            count = self.emitter.call(self._spout, now_s)
            emitted += count
            if not count:
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

    def _ack_done(self) -> None:
        """Ack the messages that are done without an acker: they are in the log."""
        for message in self.emitter.pop_done():
            self._deliver_ack(message)

    def _read_results(self, wait_s: float) -> None:
        records = self._consumer.consume(RESULTS_PER_TURN, 0) or self._consumer.consume(1, wait_s)
        for record in records:
            if (error := record.error()) is not None:
                check_error(error, self._bootstrap)
                continue
            self.claim.next_offset = (record.offset() or 0) + 1
            try:
                result = decode_result(record.value() or b"")
            except MalformedRecord as malformed:
                self.rejected += 1
                log.warning("%s@%s rejected: %s", self._result_topic, record.offset(), malformed)
                continue
            for failed in result.failed:
                self._deliver_fail(failed.root, Failure.of(failed))
            for root in result.acked.tolist():
                message = self.emitter.pending.pop(root)
                if message is not None:
                    self._deliver_ack(message)

    def _deliver_ack(self, message: Message) -> None:
        self.emitter.counters.acked += 1
        self.progress.calling = "ack"
        self._spout.notify_acked(message)
        self.progress.calling = ""

    def _deliver_fail(self, root: int, failure: Failure) -> None:
        message = self.emitter.pending.pop(root)
        if message is not None:
            self.reports.last_error.failed(failure.reason or "a message timed out")
            if failure.cause is Cause.TIMED_OUT:
                self.timed_out += 1
            else:
                self.emitter.counters.failed += 1
            self.progress.calling = "fail"
            self._spout.notify_failed(message, failure)
            self.progress.calling = ""

    def _fail_expired(self, now_s: float) -> None:
        """Fail messages older than the control topics' retention: their results can no longer come."""
        for root in self.emitter.pending.older_than(now_s - self._history.latest.control_retention_s):
            self._deliver_fail(root, Failure(Cause.TIMED_OUT, "", ""))

    def _renew_claim(self) -> None:
        """Check that the task is still ours, and renew the claim; if the broker is away, do it later."""
        until_s = world.monotonic_s() + BROKER_TIMEOUT_S
        try:
            reserved = call_with_deadline(
                self._check_and_commit_claim, lambda: not self._stopping and world.monotonic_s() < until_s
            )
            self.emitter.sequences.extend(reserved)
        except CallTimedOut:
            log_retry(log, "claim not renewed: no answer", action="claim_not_renewed")
            self._claims = make_consumer(self._settings)  # the old one is stuck in its call
        except AcktreeError as error:
            if not was_transient(error):
                raise
            log_retry(log, "claim not renewed: %s", error, action="claim_not_renewed")

    def _reserve(self) -> int:
        """Reserve message numbers within a call of ``next_tuple``, however long that takes."""
        with self.progress.waiting():
            return retry_until_ready(self._check_and_commit_claim, wait_if_away=True)

    def _check_and_commit_claim(self) -> int:
        """Commit the claim with more message numbers; return where they end.

        Changes nothing here: where its caller no longer waits, it runs beside the loop.
        """
        claims = self._claims
        committed = read_claim(claims, self._result_topic, self._bootstrap)
        if committed is not None and committed.epoch != self.claim.epoch:  # none is fine: its offset expired
            raise LostClaim(f"another process runs this task of spout {self.name}; this one stops")
        claim = replace(self.claim, sequence=min(self.emitter.sequences.next + SEQUENCES, MAX_OFFSET + 1))
        commit_claim(claims, self._result_topic, claim, self._group, self._bootstrap)
        return claim.sequence

    def _report(self) -> None:
        counters = self.emitter.counters
        values = {
            "emitted": counters.emitted,
            "acked": counters.acked,
            "failed": counters.failed,
            "timed_out": self.timed_out,
            "pending": self.pending,
            "set_aside": self.rejected,
            "pending_s": round(self._pending_s, 3),
            "task": self._task_index,
            **flow_figures(self._obeyed),
        }
        report = self.reports.of_loop(values)
        self._output.produce(self._history.latest.stats_topic, report.encode(), report.key(), None)


def _slot_of(latest: Published, spout: str, task: int) -> Slot:
    for slot in latest.slots_of(spout):
        if slot.topic == "" and slot.partition == task:
            return slot
    raise UnknownComponent(f"task {task} of spout {spout} has no slot; apply the topology again")
