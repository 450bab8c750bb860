"""Commits the state of one task of a spout in Python: its run, message numbers and result position.

Invariant: only the process that started last can commit, and run and message numbers are committed before
they are used, so no root id is ever reused. While the broker is away a commit continues beside the loop. The
offset in the spout's group is a view for Kafka's tools, committed after the state.
"""

import logging
import math
from contextlib import suppress
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import (
    BROKER_TIMEOUT_S,
    FIRST_CHECK_S,
    READY_TIMEOUT_S,
    make_admin,
    make_consumer,
    retry_until_ready,
    why_unanswered,
)
from acktree.core.kafka.errors import as_clear_error, clear_errors, was_transient
from acktree.core.kafka.outages import log_retry
from acktree.core.kafka.settings import Settings, consumer_settings
from acktree.core.reports.liveness import Liveness
from acktree.core.topology.registry import Published
from acktree.producers.collecting.spout_emitter import Sequences
from acktree.producers.kafka.deadline_call import (
    CLOSE_S,
    BackgroundCall,
    CallTimedOut,
    close_consumer,
)
from acktree.producers.kafka.fencing import DELIVERY_SETTINGS
from acktree.producers.spouts.outside_commit import commit_offsets
from acktree.producers.spouts.state_topic import COMMIT_TIMEOUT_S, TRANSACTION_TIMEOUT_MS, StateTopic
from acktree.wire.errors import AcktreeError
from acktree.wire.ids import MAX_OFFSET, next_run
from acktree.wire.state_records import (
    SPOUT_KEY,
    START_KEY,
    TaskState,
    decode_slot_key,
    decode_task_record,
    encode_task_state,
    task_in,
    task_key,
    task_start_key,
)

COMMIT_INTERVAL_S = 10.0
"""How often a task commits: a process that another one has replaced finds that out within this time."""
SEQUENCES = 1 << 22
"""How many message numbers each commit reserves; when they run out, the next commit is made immediately."""
FIRST_SEQUENCE_BITS = 38
"""Where there is no state, numbers begin at random: what was emitted before a state was lost has others."""

log = logging.getLogger("acktree.spout")


class TaskStates:
    """The records that the start of a task reads: its own; those of others are ignored."""

    def __init__(self, task: int) -> None:
        self._key = task_key(task)
        self.state: TaskState | None = None

    def add(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        """Add the newest record of a key. Raises MalformedRecord."""
        if key == self._key:
            state = decode_task_record(value or b"")
            self.state = state if isinstance(state, TaskState) else None
        elif key not in (START_KEY, SPOUT_KEY) and task_in(key) is None:
            decode_slot_key(key)  # a spout that reads topics had this name


class TaskCommits:
    """Begins the next run of a task when created; ``sequences`` are the numbers that its emitter takes."""

    def __init__(
        self, bootstrap: str, user: Settings, published: Published, spout: str, task: int, progress: Liveness
    ) -> None:
        """Fence the process before, and begin a run; ``task`` is the number of the result topic.

        Raises:
            GroupInUse: the spout's group has members. Otherwise what ``StateTopic.take_over`` raises.
        """
        self._bootstrap, self._progress = bootstrap, progress
        self._group, self._result_topic = published.group_of(spout), published.result_topic(task)
        self._key = task_key(task)
        kept = {name: value for name, value in user.items() if name not in DELIVERY_SETTINGS}
        self._topic = StateTopic(
            make_admin(bootstrap, user),
            bootstrap,
            kept,
            self._group,
            published.state_topic(spout),
            f"{self._group}.{task}",
            start_key=task_start_key(task),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        before = self._topic.take_over(TaskStates(task)).state
        self.state = _successor(before, f"{world.current().host_name()}/{world.process_id()}")
        self.next_offset = self.state.next_offset
        """How far the result topic is read."""
        self._consumer = make_consumer(consumer_settings(bootstrap, self._group, user))
        retry_until_ready(partial(_wait_for_group, self._consumer, self._result_topic, bootstrap))
        retry_until_ready(partial(self._show, self.next_offset))
        self.sequences = Sequences(self.state.sequence, self._reserve)
        self.sequences.extend(self._commit(COMMIT_TIMEOUT_S, self.next_offset))
        self._running: BackgroundCall[int] | None = None
        self._next_s = world.monotonic_s() + COMMIT_INTERVAL_S

    def follow(self, now_s: float) -> None:
        """Commit every COMMIT_INTERVAL_S, without waiting for it.

        Raises, from the commit before: ZombieDriver, GroupInUse, BrokerRefused, NotAuthorized.
        """
        if self._running is not None and self._running.is_over:
            ended, self._running = self._running, None
            self.sequences.extend(ended.wait(lambda: False))
        if self._running is None and now_s >= self._next_s:
            self._running = BackgroundCall(self._renew)
            self._next_s = now_s + COMMIT_INTERVAL_S

    def _reserve(self) -> int:
        """Reserve message numbers within a call of ``next_tuple``.

        Raises BrokerUnreachable: no answer within READY_TIMEOUT_S. Otherwise as ``follow``.
        """
        until_s = world.monotonic_s() + READY_TIMEOUT_S

        def may_wait() -> bool:
            return world.monotonic_s() < until_s

        before, self._running = self._running, None
        try:
            with self._progress.waiting():
                if before is not None:
                    before.wait(may_wait)
                return BackgroundCall(self._renew).wait(may_wait)
        except CallTimedOut as error:
            raise BrokerUnreachable(
                f"no broker answers at {self._bootstrap}, so no message numbers can be reserved"
            ) from error

    def _renew(self) -> int:
        """Commit, then show the position in the group; return below what message numbers are reserved.

        Changes nothing here: it runs beside the loop.
        """
        next_offset = self.next_offset  # the loop continues meanwhile, and what is shown must be durable
        end = self._commit(math.inf, next_offset)
        try:
            self._show(next_offset)
        except AcktreeError as error:
            if not was_transient(error):
                raise
            log_retry(log, "position not shown in the group: %s", error, action="position_not_shown")
        return end

    def _commit(self, timeout_s: float, next_offset: int) -> int:
        end = min(self.sequences.next + SEQUENCES, MAX_OFFSET + 1)
        state = self.state._replace(sequence=end, next_offset=next_offset)
        self._topic.commit({self._key: encode_task_state(state)}, timeout_s=timeout_s)
        return end

    def _show(self, next_offset: int) -> None:
        place = TopicPartition(self._result_topic, 0, next_offset)
        commit_offsets(self._consumer, [place], self._group, self._bootstrap)

    def close(self) -> None:
        """Close the connection; a commit that is under way has CLOSE_S, so that it holds nobody up."""
        until_s = world.monotonic_s() + CLOSE_S
        if self._running is not None:
            with suppress(CallTimedOut, AcktreeError):
                self._running.wait(lambda: world.monotonic_s() < until_s)
        close_consumer(self._consumer)


def _successor(before: TaskState | None, driver: str) -> TaskState:
    """Return the state with which a process begins behind another one, None for the first."""
    if before is None:
        return TaskState(1, driver, 1, world.random_bits(FIRST_SEQUENCE_BITS))
    return before._replace(term=before.term + 1, driver=driver, run=next_run(before.run))


def _wait_for_group(consumer: Consumer, topic: str, bootstrap: str) -> None:
    """Ask with a consumer that has not connected yet; a commit would never return if it is forbidden.

    Raises:
        BrokerUnreachable, BrokerRefused, NotAuthorized: see their docstrings.
    """
    wait_s = FIRST_CHECK_S
    while True:
        try:
            with clear_errors(bootstrap):
                (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=wait_s)
                if committed.error is not None:
                    raise KafkaException(committed.error)
            return
        except BrokerUnreachable:
            if (why := why_unanswered(consumer)) is not None:
                raise as_clear_error(why, bootstrap) from None
            if wait_s >= BROKER_TIMEOUT_S:
                raise
            wait_s = min(3 * wait_s, BROKER_TIMEOUT_S)
