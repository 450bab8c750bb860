"""The way out of a worker whose children, acks and input offsets stand or fall together: one transaction.

Invariant: a commit holds everything produced since the last one and the offsets of exactly those inputs; a
stale group generation aborts it, so a zombie commits nothing. What is done above a committed offset stands in
its metadata, so tuples may be acked in any order (``done_above.py``, ``worker/transactional.py``).
"""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.producers.errors import DeliveryFailed, TransactionAborted
from acktree.producers.kafka.deadline_call import CallTimedOut, call_with_deadline
from acktree.producers.kafka.fencing import TRANSACTION_TIMEOUT_MS, end_transactions, transactional_id_of
from acktree.producers.kafka.output import STOP_TIMEOUT_S, BufferedProducer, log
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits
from acktree.schemas.clients import (
    BROKER_TIMEOUT_S,
    Settings,
    clear_errors,
    is_forbidden,
    producer_settings,
    retry_until_ready,
)

_LOST = frozenset(
    (
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._STATE,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
    )
)
"""Said of a producer that the broker gave up, or that cannot tell whether its commit was done."""
STEP_TIMEOUT_S = 5.0
"""How long a step waits for the broker before it is begun again."""
HUNG_S = 10.0
"""A step that has not ended after so long, time-out and all, may never end."""


class ProducerLost(Exception):
    """The producer is of no more use: the broker gave it up, or it does not answer."""


class ExactlyOnce(BufferedProducer):
    """Commits a transaction every 100 ms or 10,000 records."""

    ack_interval_s = 0.1
    sends_acks_early = False
    commit_interval_s = 0.1
    commit_records = 10_000

    def __init__(self, bootstrap: str, user: Settings, group: str, limits: Limits = NO_LIMITS) -> None:
        """Begin; the transactional id is of this process alone, the group's generation fences zombies."""
        owner = uuid.uuid4()
        self.owner, self._group = owner.bytes, group
        settings = producer_settings(
            bootstrap,
            {**limits.settings, **user},
            transactional_id=transactional_id_of(group, owner.bytes),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        self.is_spoilt = False
        self._bootstrap, self._user = bootstrap, user
        self._beside: BufferedProducer | None = None
        super().__init__(settings, limits)
        with clear_errors(bootstrap):
            retry_until_ready(partial(self.producer.init_transactions, BROKER_TIMEOUT_S), wait_if_away=True)
            self.producer.begin_transaction()

    def _renew(self) -> None:
        """Begin with a new producer of the same transactional id, as soon as there is a broker.

        The broker settles what the producer before it left: it finishes a commit that it knows of, aborts any
        other transaction at once, and refuses whatever that producer still tries.
        """
        while True:
            self._connect()
            self.is_spoilt = False
            try:
                self.insist(partial(self.producer.init_transactions, STEP_TIMEOUT_S))
                self.insist(partial(self.producer.begin_transaction))
                return
            except (ProducerLost, TransactionAborted) as error:
                log.warning("no new producer yet: %s", error, extra={"action": "producer_lost"})

    def _poll(self, timeout_s: float) -> None:
        """Take reports in, also that a producer of our id that was given up came late and fenced this one."""
        try:
            super()._poll(timeout_s)
        except KafkaException as error:
            if not self._is_lost(error):
                raise
            self._note_lost(error)

    def _note_lost(self, error: KafkaException) -> None:
        self.is_spoilt = True
        log.warning("transaction lost: %s", error.args[0].str(), extra={"action": "transaction_lost"})

    def _check(self) -> None:
        """A record that ran out of time spoils its transaction, not the worker: its inputs are read again."""
        refused = self.refusal.error
        if refused is not None and refused.code() == KafkaError._MSG_TIMED_OUT:
            self.refusal.forget()
            self.is_spoilt = True
        super()._check()

    def _is_lost(self, error: KafkaException) -> bool:
        """Tell whether the transaction is lost: a child is dropped then, its tuple is not to blame."""
        if error.args[0].code() in _LOST:
            self.is_spoilt = True
        return self.is_spoilt

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record; in a transaction that is lost already, drop it."""
        try:
            super().send(topic, partition, value)
        except KafkaException as error:
            self._note_lost(error)

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Send a control record outside of the transaction, by a producer made for the first one."""
        if self._beside is None:
            user = {name: value for name, value in self._user.items() if not name.startswith("transaction")}
            self._beside = BufferedProducer(producer_settings(self._bootstrap, user, message_timeout_ms=0))
            if self._deadline_s < math.inf:
                self._beside.hurry()
        self._beside.send(topic, partition, value)

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        super().hurry()
        if self._beside is not None:
            self._beside.hurry()

    def serve(self) -> None:
        """Take delivery reports in. Raises DeliveryFailed."""
        super().serve()
        if self._beside is not None:
            self._beside.serve()

    def take_over(self, places: Sequence[tuple[str, int]], /) -> None:
        """End the open transactions of those who owned these partitions and did not leave them."""
        may_wait = partial(self._may_wait, math.inf)
        end_transactions(self._bootstrap, self._user, self._group, places, may_wait, self.owner)

    def settle(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Commit outputs and offsets in one.

        Raises:
            TransactionAborted: nothing was committed; the inputs must be read again from what is.
            DeliveryFailed: a record was refused for good. KafkaException: a fatal error.
        """
        try:
            self.commit(consumer, offsets)
        except ProducerLost as error:
            self._renew()
            raise TransactionAborted(f"the transaction's producer was lost: {error}") from error
        return True

    def commit(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> None:
        self._check()
        try:
            if self.is_spoilt:
                raise TransactionAborted("a record could not be added to the transaction or ran out of time")
            if offsets:
                group = consumer.consumer_group_metadata()
                send_offsets = self.producer.send_offsets_to_transaction
                self.insist(partial(send_offsets, list(offsets), group, STEP_TIMEOUT_S))
            self.insist(partial(self.producer.commit_transaction, STEP_TIMEOUT_S))
        except TransactionAborted:
            self.insist(partial(self.producer.abort_transaction, STEP_TIMEOUT_S))
            self._check()
            self.is_spoilt = False
            self.insist(partial(self.producer.begin_transaction))
            raise
        self.insist(partial(self.producer.begin_transaction))

    def insist(self, step: Callable[[], object]) -> None:
        """Do a step of a transaction, again as long as the broker asks for it.

        Raises:
            TransactionAborted: the transaction is lost, the producer is not. ProducerLost: both are.
            DeliveryFailed: the time after a stop is up. KafkaException: no further try can help.
        """
        while True:
            until_s = time.monotonic() + HUNG_S
            try:
                call_with_deadline(step, partial(self._may_wait, until_s))
                return
            except CallTimedOut as error:
                raise ProducerLost(f"it has not answered for {HUNG_S:g} s") from error
            except KafkaException as error:
                told: KafkaError = error.args[0]
                if is_forbidden(told):
                    raise
                if told.txn_requires_abort():
                    raise TransactionAborted(f"the transaction was lost: {told.str()}") from error
                if told.code() in _LOST:
                    raise ProducerLost(told.str()) from error
                if not told.retriable():
                    raise
                log.warning("transaction goes on: %s", told.str(), extra={"action": "transaction_retry"})
            self._may_wait(math.inf)

    def _may_wait(self, until_s: float) -> bool:
        """Tell whether a step has time left. Raises DeliveryFailed when a stop has waited long enough."""
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            raise DeliveryFailed(
                f"the broker has not settled the last transaction within {STOP_TIMEOUT_S:g} s of the stop; "
                "the inputs behind it will be read again, unless they are committed"
            )
        return now_s < until_s
