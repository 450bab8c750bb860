"""The acker: the only loop that reads the control topics, folds them, tells verdicts and commits the cut.

One round: poll a batch, fold it, hand the verdicts to the producer; a few times a second look at the time,
once a second flush and commit.
Invariant: a verdict is with the broker before the cut that no longer needs its root.
"""

import logging
import os
import random
import socket
import time
from collections.abc import Callable

import numpy as np
from confluent_kafka import Consumer

from acktree.acker.clock import TopicClock
from acktree.acker.expiry import Limits
from acktree.acker.figures import Figures
from acktree.acker.intake import Intake
from acktree.acker.log_ends import LogEnds
from acktree.acker.membership import Member, group_settings, read_committed, shorten_session
from acktree.acker.outbox import Outbox
from acktree.acker.ownership import Ownership
from acktree.acker.partition import Partition
from acktree.acker.rejected import Rejected
from acktree.acker.results import Told, tell, tell_timed_out
from acktree.acker.slices import Batch, Slice, slice_messages
from acktree.acker.warm_up import warm_up
from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    Settings,
    clear_errors,
    make_admin,
    make_producer,
    producer_settings,
    refuse_missing,
)
from acktree.schemas.registry import Published, Registry
from acktree.schemas.stats import STATS_INTERVAL_S, Report, Value

BATCH = 2000
IDLE_WAIT_S = 0.1
COMMIT_INTERVAL_S = 1.0
LEARN_INTERVAL_S = 1.0
JOIN_GRACE_S = 5.0

Ready = Callable[[str], None]

log = logging.getLogger("acktree.acker")


def steady_wall() -> Callable[[], int]:
    """Return a wall clock in milliseconds that is read once and then goes on evenly, however it is set."""
    start_ms = 1000 * (time.time() - time.monotonic())
    return lambda: int(start_ms + 1000 * time.monotonic())


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
        now_s: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """Connect and compile; the group is joined by :meth:`run`.

        Raises:
            UnknownTopology, MissingTopic, BrokerUnreachable, RefusedSetting: see there.
        """
        self._bootstrap, self._user, self._ready = bootstrap, user or {}, ready
        self._wall_ms, self._now_s = wall_ms or steady_wall(), now_s
        self._seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self._admin = make_admin(bootstrap, self._user)
        self._registry = Registry(bootstrap, topology, self._user)
        latest = self.latest
        self._topics = (latest.ack_init_topic, latest.ack_topic)
        self._partition_counts()
        self._limits = _limits_of(latest)
        self.set_aside, self._figures = Rejected(), Figures()
        self._intake = Intake(self._registry.history, self._look_up, self.set_aside)
        settings = group_settings(bootstrap, latest.acker_group, self._user)
        is_incremental = settings.get("group.protocol") == "consumer"
        if is_incremental:
            shorten_session(self._admin, latest.acker_group)
        self.ownership = Ownership(
            self._topics,
            is_incremental=is_incremental,
            make=lambda start: Partition(start, self._limits, self._seed),
            forget=self._figures.forget,
            settle=self._settle,
            read_committed=lambda _, places: read_committed(self._admin, latest.acker_group, places),
            now_s=now_s,
        )
        self._member = Member(
            {**settings, "on_commit": self.ownership.on_commit},
            self._topics,
            on_assign=self.ownership.on_assign,
            on_revoke=self.ownership.on_revoke,
            on_lost=self.ownership.on_lost,
        )
        self._outbox = Outbox(make_producer(producer_settings(bootstrap, self._user, linger_ms=1)))
        self._ends = LogEnds(self._admin, self._wall_ms)
        self._end_sums: dict[int, int] = {}
        self.reported: dict[str, Value] = {}
        self._instance = f"{socket.gethostname()}:{os.getpid()}"
        self._due: dict[str, float] = {}
        self._is_ready = self._is_stopping = self._is_crashing = False
        warm_up()

    @property
    def _consumer(self) -> Consumer:
        return self._member.consumer

    @property
    def latest(self) -> Published:
        """The newest version of the topology that this acker knows."""
        return self._registry.history.latest

    def stop(self) -> None:
        """Ask the loop to end; safe in a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Serve until :meth:`stop`, then flush, commit and leave the group.

        Raises:
            AcktreeError: the broker refused something, or the assignment is not co-partitioned.
        """
        with clear_errors(self._bootstrap):
            self._member.join()
            joined_s = self._now_s()
            try:
                while not self._is_stopping:
                    self._round()
                    if not self._member.is_let_in():
                        joined_s = self._now_s()
                    elif not self._is_ready:
                        self._tell_ready(joined_s)
            except BaseException:
                self._is_crashing = True
                raise
            finally:
                self._close()

    def _round(self) -> None:
        messages = self._consumer.consume(1, IDLE_WAIT_S)
        if messages:
            messages += self._consumer.consume(BATCH - 1, 0)
        self._fold(slice_messages(messages))
        self.ownership.seek_pending(self._consumer)
        self.ownership.keep_in_step(self._consumer)
        self._outbox.poll()
        if self._is_due("look", self._limits.pause_ms / 1000):
            self._look()
        if self._is_due("learn", LEARN_INTERVAL_S):
            self._learn()
        if self._is_due("commit", COMMIT_INTERVAL_S):
            self.ownership.commit(self._consumer)
        if self._is_due("report", STATS_INTERVAL_S):
            self._report()

    def _is_due(self, what: str, interval_s: float) -> bool:
        now = self._now_s()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + interval_s
        return True

    # Folding.

    def _fold(self, batch: Batch) -> None:
        for error in batch.errors:
            self._member.judge(error)
        partitions = self.ownership.partitions
        for topic, number in sorted(batch.slices, key=lambda place: place[0] != self._topics[0]):
            if number in partitions:
                self._fold_slice(topic, number, partitions[number], batch.slices[topic, number])
        for (topic, number), end in batch.ends.items():
            if number in partitions:
                self._clock(topic, partitions[number]).reach(end)
                partitions[number].pace.note_end(self._topics.index(topic))

    def _clock(self, topic: str, partition: Partition) -> TopicClock:
        return partition.clock.inits if topic == self._topics[0] else partition.clock.acks

    def _fold_slice(self, topic: str, number: int, partition: Partition, part: Slice) -> None:
        if part.offsets[0] < self._clock(topic, partition).next_offset:
            self.ownership.restart(number)
            return
        partition.pace.note_records(self._topics.index(topic))
        wall_ms, behind = self._wall_ms(), part.offsets[-1] + 1
        append_ms = np.array(part.append_ms, np.int64)
        where = (topic, number, part.values, part.offsets, wall_ms)
        if topic == self._topics[0]:
            verdicts = partition.fold_inits(self._intake.inits(*where), append_ms, behind, wall_ms)
        else:
            verdicts = partition.fold_acks(self._intake.acks(*where), append_ms, behind, wall_ms)
        self._figures.totals["acked"] += len(verdicts.acked)
        self._figures.totals["failed"] += len(verdicts.failed)
        for told in tell(number, verdicts):
            self._tell(told)

    def _look(self) -> None:
        """Learn where the logs end, and time out what is due."""
        partitions = self.ownership.partitions
        ends = self._ends.take()
        for number, partition in partitions.items():
            halves = [ends.get((topic, number)) for topic in self._topics]
            inits, acks = halves
            if inits is not None and acks is not None:
                partition.observe(inits, acks)
                self._end_sums[number] = inits.high + acks.high
            timed_out = partition.expire(self._wall_ms())
            if timed_out is not None:
                self._figures.totals["timed_out"] += len(timed_out.roots)
                for told in tell_timed_out(number, timed_out):
                    self._tell(told)
        self._ends.ask((topic, number) for topic in self._topics for number in partitions)

    def _tell(self, told: Told) -> None:
        self._outbox.tell(self.latest.result_topic(told.spout_task), told.value)

    def _settle(self) -> bool:
        """Return whether a cut may be committed: never after a crash, when verdicts may be half told."""
        return not self._is_crashing and self._outbox.settle()

    # What changes around us.

    def _learn(self) -> None:
        """Take in newer topology versions: the timeouts of the latest one hold for all roots."""
        if self._registry.refresh():
            self._apply_latest()
        self.ownership.refuse_halves(self._partition_counts)

    def _look_up(self) -> None:
        """Read the registry to its end, for a version that this process has not seen."""
        self._registry.catch_up()
        self._apply_latest()

    def _apply_latest(self) -> None:
        self._limits = _limits_of(self.latest)
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

    # Acker updates, leaving.

    def _tell_ready(self, joined_s: float) -> None:
        waited_s = self._now_s() - joined_s
        if not self.ownership.assignments and waited_s < JOIN_GRACE_S:
            return
        if not self.ownership.assignments and not self._consumer.memberid():
            return
        numbers = ", ".join(map(str, sorted(self.ownership.partitions)))
        self._is_ready = True
        self._ready(f"ready acker {self.latest.name}: " + (f"partitions {numbers}" if numbers else "idle"))

    def figures(self) -> dict[str, Value]:
        """Return what the acker reports of itself; docs/acker.md says what each means."""
        own = self.ownership
        return {
            **self._figures.values(own.partitions, self._end_sums),
            "set_aside": self.set_aside.total,
            "refolds": own.refolds,
            "rebalances": own.assignments,
            "failed_commits": own.failed_commits,
        }

    def _report(self) -> None:
        self.reported = {**self.figures(), **self._figures.oldest(self.ownership.partitions)}
        report = Report("acker", "acker", self._instance, self._wall_ms(), self.reported)
        self._outbox.report(self.latest.stats_topic, report)

    def _close(self) -> None:
        """Leave the group; the revocation that brings commits the cuts."""
        self._consumer.close()
        self._outbox.settle()
        self._registry.close()


def _limits_of(latest: Published) -> Limits:
    return Limits.of_seconds(latest.message_timeout_s, latest.orphan_timeout_s, latest.control_retention_s)
