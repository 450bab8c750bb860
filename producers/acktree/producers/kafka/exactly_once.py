"""The output of an exactly-once worker: children, acks and input offsets in one transaction.

Invariant: a transaction has everything produced since the last one and the offsets of exactly those inputs; a
stale group generation aborts it, so a zombie commits nothing. The broker's limit of TRANSACTION_TIMEOUT_MS
counts from its first record, so records that are not part of it are sent outside. The metadata of a committed
offset lists the offsets done above it, so tuples may be acked in any order (``done_above.py``,
``collecting/transactional.py``).
"""

import math
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, retry_until_ready
from acktree.core.kafka.errors import clear_errors, is_forbidden, is_producer_lost
from acktree.core.kafka.outages import log_retry
from acktree.core.kafka.settings import Settings, producer_settings
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.arithmetic.transaction_limit import CHECKED_BYTES, TransactionLimit
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.collecting.held_output import size_of
from acktree.producers.columns import NO_TIMESTAMP
from acktree.producers.errors import DeliveryFailed, TransactionAborted
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline
from acktree.producers.kafka.fencing import TRANSACTION_TIMEOUT_MS, end_transactions, transactional_id_of
from acktree.producers.kafka.output import (
    STOP_TIMEOUT_S,
    BufferedProducer,
    log,
    wait_until_passed,
)
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits

NAMES = uuid.UUID("6f0c3f1e-6a43-4d0c-9d0b-5d1f6f1c2a77")
"""The namespace of owners that have a ``group.instance.id``."""
REQUEST_TIMEOUT_S = 5.0
"""How long a call waits for the broker before it is retried."""
CALL_DEADLINE_S = 10.0
"""A call that has not returned after this long, despite its own timeout, may never return."""
PASS_TIMEOUT_S = 7.0
"""How long much output may take to pass, of TRANSACTION_TIMEOUT_MS."""
SLOW_S = 60.0
"""For how long a tuple fails whose output would not pass at the rate that was measured."""
_LOST_WITH_TRANSACTION = frozenset(
    (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
)
"""Delivery errors of records that come again with their inputs: too late, or dropped by an abort."""


class ProducerLost(Exception):
    """The producer can no longer be used: it was fenced, or a call to it does not return."""


class ExactlyOnce(BufferedProducer):
    """Commits a transaction every 100 ms, 10,000 records or 16 MB; on a slow link with less."""

    ack_interval_s = 0.1
    sends_acks_early = False
    commit_interval_s = 0.1
    commit_records = 10_000

    def __init__(
        self,
        bootstrap: str,
        user: Settings,
        group: str,
        limits: Limits = NO_LIMITS,
        progress: Liveness | None = None,
        on_full: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin a transaction; the group generation fences zombies. ``on_full``: called when it is full.

        The transactional id is this process's alone. With ``group.instance.id`` it is that name's: what a
        process of that name left open when it died ends here, before this one is a member of the group.
        """
        name = user.get("group.instance.id")
        owner = uuid.uuid5(NAMES, f"{group}/{name}") if name else uuid.UUID(int=world.random_bits(128))
        self.owner, self._group = owner.bytes, group
        settings = producer_settings(
            bootstrap,
            {**limits.settings, **user},
            transactional_id=transactional_id_of(group, owner.bytes),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        self.must_abort = False
        self._limit = self.limit = TransactionLimit(PASS_TIMEOUT_S)
        self._bytes = self._count = 0
        """What was produced since the last commit."""
        self._began_s = self._slow_until_s = 0.0
        self._on_full = on_full
        self._bootstrap, self._user = bootstrap, user
        self._nontransactional: BufferedProducer | None = None
        super().__init__(settings, limits, progress)
        with clear_errors(bootstrap):
            retry_until_ready(partial(self.producer.init_transactions, BROKER_TIMEOUT_S), wait_if_away=True)
            self.producer.begin_transaction()

    @property
    def is_full(self) -> bool:  # type: ignore[override]
        """Whether the transaction has as much output as is likely to pass in time."""
        return self._bytes >= self._limit.bytes

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int = NO_TIMESTAMP,
        on_delivery: Callable[[KafkaError | None, Any], None] | None = None,
    ) -> None:
        """Queue a record of the transaction; see ``BufferedProducer.produce``."""
        if not self._count:
            self._began_s = world.monotonic_s()
        super().produce(topic, value, key, headers, timestamp_ms, on_delivery)
        self._count += 1
        self._bytes += size_of(value, key)
        if self._bytes >= self._limit.bytes:
            self._on_full()

    def _replace_producer(self) -> None:
        """Create a new producer with the same transactional id, as soon as the broker answers.

        The broker then resolves the previous producer's transaction: it completes a commit that has begun,
        aborts any other transaction, and fences that producer.
        """
        while True:
            self._connect()
            self.must_abort = False
            self._clear()
            try:
                self.call_with_retries(partial(self.producer.init_transactions, REQUEST_TIMEOUT_S))
                self.call_with_retries(partial(self.producer.begin_transaction))
                return
            except (ProducerLost, TransactionAborted) as error:
                log_retry(log, "creating a new producer failed, retrying: %s", error, action="producer_lost")

    def _poll(self, timeout_s: float) -> None:
        """Serve reports; one may say that a late call of a previous producer has fenced this one."""
        try:
            super()._poll(timeout_s)
        except KafkaException as error:
            self._raise_or_drop(error)
            self._mark_transaction_lost(error)

    def _mark_transaction_lost(self, error: KafkaException) -> None:
        self.must_abort = True
        log_retry(log, "transaction lost: %s", error.args[0].str(), action="transaction_lost")

    def _check(self) -> None:
        """Raise DeliveryFailed; a record that is lost with its transaction only aborts it."""
        error = self.delivery_error.error
        if error is not None and (error.code() in _LOST_WITH_TRANSACTION or is_producer_lost(error)):
            self.delivery_error.clear()
            self.must_abort = True
        super()._check()

    def _raise_or_drop(self, error: KafkaException) -> None:
        """Drop a record of a lost transaction: no tuple fails for it, all inputs are read again."""
        if is_producer_lost(error.args[0]):
            self.must_abort = True
        if not self.must_abort:
            raise error

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; drop it if the transaction is already lost."""
        try:
            super().send(topic, partition, value)
        except KafkaException as error:
            self._mark_transaction_lost(error)

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Send a control record outside the transaction, by a producer created for the first one."""
        if self._nontransactional is None:
            user = {name: value for name, value in self._user.items() if not name.startswith("transaction")}
            self._nontransactional = BufferedProducer(
                producer_settings(self._bootstrap, user, message_timeout_ms=0), progress=self._progress
            )
            if self._deadline_s < math.inf:
                self._nontransactional.begin_stop()
        self._nontransactional.send(topic, partition, value)

    def begin_stop(self) -> None:
        """From now on, wait no longer than STOP_TIMEOUT_S; may be called from a signal handler."""
        super().begin_stop()
        if self._nontransactional is not None:
            self._nontransactional.begin_stop()

    def renew_stop(self) -> None:
        """Count STOP_TIMEOUT_S from now on, if a stop has begun."""
        super().renew_stop()
        if self._nontransactional is not None:
            self._nontransactional.renew_stop()

    def serve(self) -> None:
        """Serve delivery reports. Raises DeliveryFailed."""
        super().serve()
        if self._nontransactional is not None:
            self._nontransactional.serve()

    def fence_previous_owners(self, places: Sequence[tuple[str, int]], /) -> None:
        """End the open transactions of workers that owned these partitions and did not leave cleanly."""
        may_wait = partial(self._may_wait, math.inf)
        end_transactions(self._bootstrap, self._user, self._group, places, may_wait, self.owner)

    def flush_and_commit(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Commit outputs and offsets in one transaction.

        Raises:
            TransactionAborted: nothing was committed; read again from the committed offsets.
            DeliveryFailed: a record was rejected for good.
            KafkaException: a fatal error.
        """
        try:
            self.commit(consumer, offsets)
        except ProducerLost as error:
            self._replace_producer()
            raise TransactionAborted(f"the transaction's producer was lost: {error}") from error
        return True

    def commit(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> None:
        # Life of an ack, step 7.
        self._check()
        if world.monotonic_s() > self._slow_until_s:
            self._limit.tuple_bytes = math.inf
        if not offsets and not self.has_written and not self.must_abort:
            return  # the broker knows of no transaction: this one continues
        try:
            if self._bytes >= CHECKED_BYTES and not self.must_abort:
                self._wait_until_passed()
            if self.must_abort:
                raise TransactionAborted("a record could not be added to the transaction or timed out")
            if offsets:
                group = consumer.consumer_group_metadata()
                send_offsets = self.producer.send_offsets_to_transaction
                self.call_with_retries(partial(send_offsets, list(offsets), group, REQUEST_TIMEOUT_S))
            self.call_with_retries(partial(self.producer.commit_transaction, REQUEST_TIMEOUT_S))
        except TransactionAborted:
            self.call_with_retries(partial(self.producer.abort_transaction, REQUEST_TIMEOUT_S))
            self._check()
            self.must_abort = False
            self._clear()
            self.call_with_retries(partial(self.producer.begin_transaction))
            raise
        if self._bytes < CHECKED_BYTES:
            self._limit.allow_more_tuples()
        self._clear()
        self.call_with_retries(partial(self.producer.begin_transaction))

    def _clear(self) -> None:
        self.has_written, self._bytes, self._count = False, 0, 0

    def _wait_until_passed(self) -> None:
        """Wait until much output has passed. Raises TransactionAborted: it does not in time."""
        try:
            passage = wait_until_passed(self.producer, self._count, self._began_s, PASS_TIMEOUT_S)
        except KafkaException as error:
            if is_producer_lost(error.args[0]):
                raise ProducerLost(error.args[0].str()) from error
            raise
        self._check()
        if passage is None or self.must_abort:
            return  # like any transaction while the broker is away
        self._limit.update(self._bytes, passage, self.executed)
        if not passage.is_whole:
            self._slow_until_s = world.monotonic_s() + SLOW_S
            raise TransactionAborted(
                f"{self._bytes / 1e6:.1f} MB of output did not pass within {PASS_TIMEOUT_S:g} s "
                f"({passage.rate(self._bytes) / 1e6:.1f} MB/s)"
            )

    def call_with_retries(self, call: Callable[[], object]) -> None:
        """Make a transactional call, and retry it while its error is retriable.

        Raises:
            TransactionAborted: the transaction is lost, but not the producer.
            ProducerLost: both are.
            DeliveryFailed: a stop has waited long enough.
            KafkaException: a retry cannot help.
        """
        while True:
            until_s = world.monotonic_s() + CALL_DEADLINE_S
            try:
                call_with_deadline(call, partial(self._may_wait, until_s))
                return
            except CallTimedOut as error:
                raise ProducerLost(f"a call has not returned for {CALL_DEADLINE_S:g} s") from error
            except KafkaException as error:
                kafka_error: KafkaError = error.args[0]
                if is_forbidden(kafka_error):
                    raise
                if kafka_error.txn_requires_abort():
                    raise TransactionAborted(f"the transaction was lost: {kafka_error.str()}") from error
                if is_producer_lost(kafka_error):
                    raise ProducerLost(kafka_error.str()) from error
                if not kafka_error.retriable():
                    raise
                text, action = "retrying the transactional call: %s", "transaction_retry"
                log_retry(log, text, kafka_error.str(), action=action)
            self._may_wait(math.inf)

    def _may_wait(self, until_s: float) -> bool:
        """Return whether a call may take longer. Raises DeliveryFailed when a stop has waited long enough."""
        now_s = world.monotonic_s()
        if now_s > self._deadline_s:
            raise DeliveryFailed(
                f"the broker did not end the last transaction within {STOP_TIMEOUT_S:g} s of the stop; "
                "its inputs will be read again unless they were committed"
            )
        return now_s < until_s
