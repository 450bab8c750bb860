"""Writes the transaction of a Spark task by librdkafka, record by record: it supports every setting."""

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, retry_until_ready, wait_until_delivered
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.columns import NO_TIMESTAMP
from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline
from acktree.producers.kafka.output import POLL_INTERVAL_S
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.tasks.producers import FLUSH_TIMEOUT_S, TaskOutput, TaskProducer
from acktree.wire.errors import AcktreeError

TRANSACTION_TIMEOUT_MS = 300_000
"""The longest task. The transaction of a dead driver that is not restarted blocks readers this long."""
COMMIT_RECORD_TIMEOUT_S = 2 * BROKER_TIMEOUT_S
"""How long librdkafka may take to add the batch commit record before it counts as stuck."""

log = logging.getLogger("acktree.spark")


class TransactionLost(AcktreeError):
    """The transaction of a task was aborted: another attempt took over, or it took too long."""


class OpenTransaction:
    """How much a task has written in its transaction, and since when it is open."""

    def __init__(self) -> None:
        self._began_s, self.size = world.monotonic_s(), 0

    def about(self) -> str:
        """Return both, and what to do where that is too much."""
        return (
            f"the task's transaction of {self.size / 1e6:.1f} MB was open for "
            f"{world.monotonic_s() - self._began_s:.0f} s; one that takes longer than "
            "kafka.transaction.timeout.ms is aborted (give a larger one, or smaller batches with "
            "maxOffsetsPerTrigger)"
        )

    def lost(self, error: KafkaError) -> TransactionLost:
        """Return what to raise when a commit is refused."""
        return TransactionLost(
            f"the task's transaction was aborted: {error.str()}; another attempt took over, or {self.about()}"
        )

    def not_accepted(self, error: DeliveryFailed) -> DeliveryFailed:
        """Return what to raise when records were not accepted."""
        return DeliveryFailed(f"{error}; {self.about()}")


class Transaction(TaskOutput, Protocol):
    """An output whose ``flush_and_commit`` commits all or nothing; kept for later tasks of its partition."""

    is_spent: bool
    """It must not be used again."""

    def begin(self, batch: BatchName, task: ReadTaskName, commits: BatchCommits) -> bool:
        """Begin the transaction of a task; return False if its output is committed already.

        Its batch commit record is then committed again: the batch may be run yet again, and Kafka expires
        old offsets.

        Raises:
            KafkaException: fenced, or the broker does not answer.
        """
        ...

    def close(self) -> None:
        """Close it."""
        ...


class RecordTransaction(TaskProducer):
    """A transaction that librdkafka writes; see Transaction."""

    def __init__(self, bootstrap: str, user: Settings, transactional_id: str) -> None:
        """Fence the previous user of the id, and abort its transaction.

        Raises:
            BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        """
        user = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **user}
        super().__init__(bootstrap, user, transactional_id=transactional_id)
        self.is_spent = False
        self._open = OpenTransaction()
        with clear_errors(bootstrap):
            retry_until_ready(partial(self.producer.init_transactions, BROKER_TIMEOUT_S))

    def begin(self, batch: BatchName, task: ReadTaskName, commits: BatchCommits) -> bool:
        """Begin the transaction of a task; see ``Transaction``."""
        commit_record = commit_of_task(batch, task)
        is_written = commits.is_set(commit_record)
        self._open = OpenTransaction()
        self.producer.begin_transaction()
        self._add_commit_record(commit_record, commits)
        if is_written:
            _retry_while_retriable(lambda: self.producer.commit_transaction(BROKER_TIMEOUT_S))
        return not is_written

    def _add_commit_record(self, commit_record: TopicPartition, commits: BatchCommits) -> None:
        """Add the batch commit record to the transaction; a call that ignores its timeout is abandoned."""
        group = commits.consumer.consumer_group_metadata()
        until_s = world.monotonic_s() + COMMIT_RECORD_TIMEOUT_S
        send = partial(self.producer.send_offsets_to_transaction, [commit_record], group, BROKER_TIMEOUT_S)
        try:
            call_with_deadline(send, lambda: world.monotonic_s() < until_s)
        except CallTimedOut as error:
            self.is_spent = True
            text = f"no answer for {COMMIT_RECORD_TIMEOUT_S:g} s; the producer is abandoned"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text)) from error

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
        self._open.size += len(value or b"") + len(key or b"")
        super().produce(topic, value, key, headers, timestamp_ms, on_delivery)

    def _check(self) -> None:
        """Raise DeliveryFailed, which says how large the transaction was if a record took too long."""
        late = self.delivery_error.error
        try:
            super()._check()
        except DeliveryFailed as error:
            if late is None or late.code() != KafkaError._MSG_TIMED_OUT:
                raise
            raise self._open.not_accepted(error) from error

    def flush_tuples(self) -> None:
        """Nothing to wait for: everything becomes visible together."""

    def flush_and_commit(self) -> None:
        """Commit. Raises DeliveryFailed, TransactionLost."""
        self._check()
        try:
            _retry_while_retriable(lambda: self.producer.commit_transaction(FLUSH_TIMEOUT_S))
        except KafkaException as error:
            self._check()
            raise self._open.lost(error.args[0]) from error

    def abort(self) -> None:
        """Abort what the task sent; the next user of the id begins with a new producer."""
        self.is_spent = True
        try:
            self.producer.purge()
            self.producer.abort_transaction(BROKER_TIMEOUT_S)
        except KafkaException as error:
            log.info("not aborted: %s", error.args[0].str(), extra={"action": "transaction_not_aborted"})

    def close(self) -> None:
        """Close it."""
        with suppress(KafkaException):  # what is left belongs to no transaction that will commit
            wait_until_delivered(self.producer, POLL_INTERVAL_S)


def _retry_while_retriable(call: Any) -> None:
    while True:
        try:
            call()
            return
        except KafkaException as error:
            kafka_error: KafkaError = error.args[0]
            if kafka_error.txn_requires_abort() or not kafka_error.retriable():
                raise
