"""The way out of a worker whose children, acks and input offsets stand or fall together: one transaction.

Invariant: a commit holds everything produced since the last one and the offsets of exactly those inputs; a
stale group generation aborts it, so a zombie commits nothing. Holds for tuples acked in the order they came:
one acked while an earlier one is in hand lies above the committed offset, and a crash reads it again.
"""

import uuid
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.errors import TransactionAborted
from acktree.producers.outlet import Sending, log
from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, clear_errors, producer_settings

TRANSACTION_TIMEOUT_MS = 10_000
"""A dead worker's open transaction holds readers back for so long at most."""


class ExactlyOnce(Sending):
    """Commits a transaction every 100 ms or 10,000 records."""

    ack_interval_s = 0.1
    commit_interval_s = 0.1
    commit_records = 10_000

    def __init__(self, bootstrap: str, user: Settings, group: str) -> None:
        """Begin; the transactional id is of this process alone, the group's generation fences zombies."""
        settings = producer_settings(
            bootstrap,
            user,
            transactional_id=f"{group}-{uuid.uuid4().hex}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        self._spoilt = False
        super().__init__(settings)
        with clear_errors(bootstrap):
            self._producer.init_transactions(BROKER_TIMEOUT_S)
            self._producer.begin_transaction()

    def _check(self) -> None:
        """A record that ran out of time spoils its transaction, not the worker: its inputs are read again."""
        if self._failure is not None and self._failure.code() == KafkaError._MSG_TIMED_OUT:
            self._failure = None
            self._spoilt = True
        super()._check()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; in a transaction that is lost already, drop it."""
        try:
            super().send(topic, partition, value)
        except KafkaException as error:
            self._spoilt = True
            log.warning("transaction lost: %s", error.args[0].str(), extra={"action": "transaction_lost"})

    def settle(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
        """Commit outputs and offsets in one.

        Raises:
            TransactionAborted: nothing was committed; the inputs must be read again from what is.
            DeliveryFailed: a record was refused for good. KafkaException: fenced, or another fatal error.
        """
        self._check()
        try:
            if self._spoilt:
                raise TransactionAborted("a record could not be added to the transaction or ran out of time")
            if offsets:
                group = consumer.consumer_group_metadata()
                _insist(lambda: self._producer.send_offsets_to_transaction(list(offsets), group))
            _insist(self._producer.commit_transaction)
        except TransactionAborted:
            _insist(self._producer.abort_transaction)
            self._check()
            self._spoilt = False
            self._producer.begin_transaction()
            raise
        self._producer.begin_transaction()
        return True


def _insist(step: Callable[[], object]) -> None:
    """Do a step of a transaction, again as long as the broker asks for it.

    Raises:
        TransactionAborted: the transaction is lost, the producer is not. KafkaException: both are.
    """
    while True:
        try:
            step()
            return
        except KafkaException as error:
            told: KafkaError = error.args[0]
            if told.txn_requires_abort():
                raise TransactionAborted(f"the transaction was lost: {told.str()}") from error
            if not told.retriable():
                raise
            log.warning("transaction goes on: %s", told.str(), extra={"action": "transaction_retry"})
