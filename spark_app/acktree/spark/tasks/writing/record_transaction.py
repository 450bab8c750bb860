"""The transaction of a Spark task by librdkafka, record by record: for all settings that this has."""

import logging
import time
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline
from acktree.producers.kafka.output import RELIEF_S
from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, clear_errors
from acktree.schemas.errors import AcktreeError
from acktree.spark.driver.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.tasks.writing.producers import FLUSH_TIMEOUT_S, Box, Outbox

TRANSACTION_TIMEOUT_MS = 300_000
"""The longest task. A transaction whose driver is dead and not started again holds readers so long."""
MARK_TIMEOUT_S = 2 * BROKER_TIMEOUT_S
"""How long librdkafka may take to put a mark into a transaction before it is taken for stuck."""

log = logging.getLogger("acktree.spark")


class TransactionLost(AcktreeError):
    """The transaction of a task was aborted: another attempt took over, or it took too long."""


def lost(error: KafkaError) -> TransactionLost:
    """Return what to raise when a commit is refused."""
    return TransactionLost(
        f"the task's transaction was aborted: {error.str()}; another attempt took over, or "
        "the task took longer than kafka.transaction.timeout.ms (give a larger one, or smaller "
        "batches with maxOffsetsPerTrigger)"
    )


class Transaction(Box, Protocol):
    """A box whose ``settle`` commits all or nothing; kept over the tasks of one share's place."""

    is_spent: bool
    """It must not be used again."""

    def begin(self, batch: BatchName, share: ReadTaskName, held: BatchCommits) -> bool:
        """Begin the transaction of a share; return False if the share is written already.

        Its mark is committed again then: its batch may be run again later still, and Kafka forgets old ones.

        Raises:
            KafkaException: fenced, or the broker does not answer.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class RecordTransaction(Outbox):
    """See Transaction."""

    def __init__(self, bootstrap: str, user: Settings, transactional_id: str) -> None:
        """Fence and abort whoever used the id before.

        Raises:
            BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        """
        user = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **user}
        super().__init__(bootstrap, user, transactional_id=transactional_id)
        self.is_spent = False
        with clear_errors(bootstrap):
            self.producer.init_transactions(BROKER_TIMEOUT_S)

    def begin(self, batch: BatchName, share: ReadTaskName, held: BatchCommits) -> bool:
        """Begin the transaction of a share; see there."""
        mark = commit_of_task(batch, share)
        is_written = held.is_set(mark)
        self.producer.begin_transaction()
        self._send_mark(mark, held)
        if is_written:
            _insist(lambda: self.producer.commit_transaction(BROKER_TIMEOUT_S))
        return not is_written

    def _send_mark(self, mark: TopicPartition, held: BatchCommits) -> None:
        """Put the mark into the transaction; a call that ignores its time-out is left behind."""
        group = held.consumer.consumer_group_metadata()
        until_s = time.monotonic() + MARK_TIMEOUT_S
        send = partial(self.producer.send_offsets_to_transaction, [mark], group, BROKER_TIMEOUT_S)
        try:
            call_with_deadline(send, lambda: time.monotonic() < until_s)
        except CallTimedOut as error:
            self.is_spent = True
            text = f"no answer for {MARK_TIMEOUT_S:g} s; the producer is given up"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text)) from error

    def flush_tuples(self) -> None:
        """Nothing to wait for: all becomes visible at once."""

    def settle(self) -> None:
        """Commit. Raises DeliveryFailed, TransactionLost."""
        self._check()
        try:
            _insist(lambda: self.producer.commit_transaction(FLUSH_TIMEOUT_S))
        except KafkaException as error:
            self._check()
            raise lost(error.args[0]) from error

    def give_up(self) -> None:
        """Abort what the task sent; who comes next begins with a producer of its own."""
        self.is_spent = True
        try:
            self.producer.purge()
            self.producer.abort_transaction(BROKER_TIMEOUT_S)
        except KafkaException as error:
            log.info("not aborted: %s", error.args[0].str(), extra={"action": "transaction_not_aborted"})

    def close(self) -> None:
        """Let go of it."""
        with suppress(DeliveryFailed, KafkaException):
            self.flush(RELIEF_S)


def _insist(step: Any) -> None:
    while True:
        try:
            step()
            return
        except KafkaException as error:
            told: KafkaError = error.args[0]
            if told.txn_requires_abort() or not told.retriable():
                raise
