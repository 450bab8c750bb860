"""The worker: the one loop that reads a bolt's topics, executes it, and gets its outputs and offsets out.

Invariant: children and acks are durable before the offsets of their inputs are committed: at an interval,
when a partition is revoked, at a stop. Callbacks run inside the loop's own calls; there is no other thread.
"""

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict

from acktree.producers.bolt import AnyBolt, BasicBolt, BatchBolt, Bolt, Context
from acktree.producers.collector import Collector
from acktree.producers.errors import TransactionAborted, UnknownComponent
from acktree.producers.exactly_once import ExactlyOnce
from acktree.producers.execution import make_execution
from acktree.producers.inputs import BATCH_RECORDS, Inputs, Place
from acktree.producers.intake import Intake
from acktree.producers.loading import check_written
from acktree.producers.outlet import AtLeastOnce, Outlet
from acktree.producers.packing import AckPacker
from acktree.schemas.clients import Settings, consumer_settings, make_consumer
from acktree.schemas.registry import Registry, read_history
from acktree.schemas.stats import STATS_INTERVAL_S, Report

BOLTS: tuple[type[AnyBolt], ...] = (BasicBolt, Bolt, BatchBolt)
IDLE_WAIT_S = 0.1
LEARN_INTERVAL_S = 1.0
SESSION_TIMEOUT_MS = 10_000

log = logging.getLogger("acktree.bolt")

Ready = Callable[[str], None]


def find_bolt_name(registry: Registry, bolt: AnyBolt, wanted: str | None) -> str:
    """Return the bolt's name in the topology: as wanted, as its class says, or the only one there is.

    Raises:
        UnknownComponent: the topology has no such bolt, or several to choose from.
    """
    latest = registry.history.latest
    name = wanted or bolt.name
    if not name and len(latest.bolts) == 1:
        return next(iter(latest.bolts))
    if name in latest.bolts:
        return name
    there = ", ".join(latest.bolts) or "none"
    if not name:
        raise UnknownComponent(f"topology {latest.name} has several bolts, choose one with --bolt: {there}")
    raise UnknownComponent(f"topology {latest.name} has no bolt {name!r}; it has: {there}")


class Worker:
    """Runs one bolt as one member of its consumer group."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        bolt: AnyBolt,
        *,
        name: str | None = None,
        user: Settings | None = None,
        ready: Ready = lambda _text: None,
        outlet: Outlet | None = None,
    ) -> None:
        """Connect; nothing is read yet.

        Raises:
            UnknownTopology, UnknownComponent, BrokerUnreachable, RefusedSetting, BadHandler: see there.
        """
        check_written(bolt, BOLTS, "execute")
        self._bootstrap, self._user, self._bolt, self._ready = bootstrap, user or {}, bolt, ready
        self._registry = Registry(bootstrap, topology, self._user)
        self._history = self._registry.history
        self.name = find_bolt_name(self._registry, bolt, name)
        self.task = f"{self.name}@{socket.gethostname()}:{os.getpid()}-{uuid.uuid4().hex[:4]}"
        latest = self._history.latest
        settings = consumer_settings(
            bootstrap, latest.group_of(self.name), self._user, session_timeout_ms=SESSION_TIMEOUT_MS
        )
        self._inputs = Inputs(make_consumer(settings), bootstrap)
        self._outlet = outlet or self._make_outlet()
        packer = AckPacker(self._history, self.task, self._outlet.send)
        self._collector = Collector(self.name, self._history, packer, self._outlet.produce)
        intake = Intake(self.name, self._history, self._learn)
        inputs = self._inputs
        self._execution = make_execution(bolt, self._collector, intake, inputs.check, inputs.hand)
        self._reads: tuple[str, ...] = ()
        self._told_ready = self._stopping = self._broken = False
        self._next_learn_s = self._next_ack_s = self._next_settle_s = self._next_report_s = 0.0
        self._next_tick_s = 0.0
        self._executed_at_settle = 0
        self._busy_s = 0.0
        self._executed_at_report = 0

    @property
    def counters(self) -> dict[str, int]:
        """What was executed, emitted, acked, failed, set aside, dropped, never acked."""
        return asdict(self._collector.counters)

    def _make_outlet(self) -> Outlet:
        latest = self._history.latest
        if latest.bolts[self.name].exactly_once:
            return ExactlyOnce(self._bootstrap, self._user, latest.group_of(self.name))
        return AtLeastOnce(self._bootstrap, self._user)

    def stop(self) -> None:
        """Ask ``run`` to end after its current batch; may be called from a signal handler."""
        self._stopping = True
        self._outlet.hurry()

    def run(self) -> None:
        """Work until stopped.

        Raises:
            Misuse: the bolt broke a rule. DeliveryFailed: the broker refused a record for good. In both cases
            the inputs since the last commit are read again by whoever runs the bolt next.
        """
        try:
            self._bolt.prepare(Context(self._history.latest, self.name, self.task))
            self._subscribe()
            while not self._stopping:
                self._turn()
        except BaseException:
            self._broken = True
            raise
        finally:
            try:
                self._bolt.cleanup()
                if not self._broken:
                    self._name_never_acked()
                    self._settle()
                    self._report()
                    self._outlet.serve()
            finally:
                self._broken = True
                self._inputs.consumer.close()
                self._registry.close()

    def _turn(self) -> None:
        bolt, most = self._bolt, BATCH_RECORDS
        if isinstance(bolt, Bolt):
            most = self._inputs.room(bolt.max_in_hand)
        records = self._inputs.read(self._wait_s(), most)
        if records:
            began_s = time.perf_counter()
            self._execution.run(records)
            self._busy_s += time.perf_counter() - began_s
        now_s = time.monotonic()
        if now_s >= self._next_ack_s:
            self._collector.flush()
            self._outlet.serve()
            self._next_ack_s = now_s + self._outlet.ack_interval_s
        if isinstance(bolt, Bolt) and bolt.tick_interval_s is not None and now_s >= self._next_tick_s:
            self._next_tick_s = now_s + bolt.tick_interval_s
            bolt.tick(self._collector)
        executed = self._collector.counters.executed
        if now_s >= self._next_settle_s or executed - self._executed_at_settle >= self._outlet.commit_records:
            self._settle_or_rewind()
            self._executed_at_settle = executed
            self._next_settle_s = time.monotonic() + self._outlet.commit_interval_s
            self._follow_topology()
        if now_s >= self._next_report_s:
            self._report()
            self._next_report_s = now_s + STATS_INTERVAL_S

    def _wait_s(self) -> float:
        """Return how long to wait for a record: no longer than to the next flush or commit that is due."""
        due_s = self._next_ack_s if self._collector.has_unsent else self._next_settle_s
        return min(IDLE_WAIT_S, max(0.0, due_s - time.monotonic()))

    def _settle(self) -> None:
        """Get everything out, then commit how far the inputs are done."""
        offsets = self._inputs.frontiers()
        self._collector.flush()
        if self._outlet.settle(self._inputs.consumer, offsets):
            self._inputs.note_committed(offsets)

    def _settle_or_rewind(self) -> None:
        """Settle; where that was undone, drop what is in hand and read it again."""
        try:
            self._settle()
        except TransactionAborted as error:
            log.warning("%s; its inputs are read again", error, extra={"action": "aborted"})
            self._let_go(list(self._inputs.hands))
            self._inputs.rewind()

    def _subscribe(self) -> None:
        table = self._history.latest.bolts.get(self.name)
        if table is None or table.reads == self._reads:
            return
        self._reads = table.reads
        self._inputs.subscribe(self._reads, self._assigned, self._revoked, self._lost)

    def _follow_topology(self) -> None:
        """Take in a version published since: its topics, its readers."""
        if self._registry.refresh():
            self._collector.targets.use_latest()
            self._subscribe()

    def _learn(self, version: int) -> None:
        """Read the registry to its end for a version seen in a header, at most once a second."""
        now_s = time.monotonic()
        if now_s < self._next_learn_s:
            return
        self._history.versions.update(read_history(self._bootstrap, self._history.name, self._user).versions)
        self._next_learn_s = time.monotonic() + LEARN_INTERVAL_S

    def _assigned(self, places: list[Place]) -> None:
        held = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(places)) or "no partition"
        log.info("%s reads %s", self.task, held, extra={"action": "assigned"})
        if not self._told_ready:
            self._told_ready = True
            self._ready(f"ready bolt {self.name} of topology {self._history.name} reads {held}")

    def _revoked(self, places: list[Place]) -> None:
        if not self._broken:
            try:
                self._settle()
            except TransactionAborted as error:
                log.warning("%s; the next owner reads again", error, extra={"action": "aborted"})
            self._let_go(places)

    def _lost(self, places: list[Place]) -> None:
        if not self._broken:
            self._let_go(places)

    def _let_go(self, places: list[Place]) -> None:
        held = self._inputs.in_hand(places)
        self._collector.drop(held)
        if held and isinstance(self._bolt, Bolt):
            self._bolt.drop(held)

    def _name_never_acked(self) -> None:
        """Say which tuples the bolt neither acked nor failed; they will be read again."""
        for tuple in (held := self._inputs.in_hand()):
            log.warning("%r was never acked", tuple, extra={"action": "never_acked"})
        self._collector.counters.never_acked += len(held)

    def _report(self) -> None:
        executed = self._collector.counters.executed
        recent = executed - self._executed_at_report
        latency_us = round(self._busy_s / recent * 1e6, 1) if recent else 0.0
        values = {
            **self.counters,
            "in_hand": len(self._inputs.in_hand()),
            "lag": self._inputs.lag(),
            "execute_latency_us": latency_us,
        }
        report = Report("bolt", self.name, self.task, int(time.time() * 1000), values)
        topic = self._history.latest.stats_topic
        self._outlet.produce(topic, report.encode(), report.key(), None)
        self._busy_s, self._executed_at_report = 0.0, executed
