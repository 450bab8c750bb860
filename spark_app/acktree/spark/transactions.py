"""One transaction per Spark task: its tuples, its inits or acks, and the mark that says so.

Invariant: a share of a batch is written once for read_committed readers, however often its task runs. The
transactional id belongs to the share's first partition, so who begins later fences who began before; only
then the mark is looked at, so no attempt can commit behind the look.
"""

import logging
import os
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from acktree.producers.outlet import RELIEF_S
from acktree.schemas.clients import BROKER_TIMEOUT_S, Settings, clear_errors
from acktree.schemas.errors import AcktreeError
from acktree.spark.marks import BatchName, Marks, ShareName, mark_of_share, marks
from acktree.spark.outbox import FLUSH_TIMEOUT_S, Outbox

TRANSACTION_TIMEOUT_MS = 300_000
"""The longest task. A transaction whose driver is dead and not started again holds readers so long."""
MAX_OPEN = 16

log = logging.getLogger("acktree.spark")


class TransactionLost(AcktreeError):
    """The transaction of a task was aborted: another attempt took over, or it took too long."""


class Transaction(Outbox):
    """An outbox whose ``settle`` commits all or nothing; kept over the tasks of one share's place."""

    def __init__(self, bootstrap: str, user: Settings, transactional_id: str) -> None:
        """Fence and abort whoever used the id before.

        Raises:
            BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
        """
        user = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **user}
        super().__init__(bootstrap, user, transactional_id=transactional_id)
        self.is_spent = False
        with clear_errors(bootstrap):
            self._producer.init_transactions(BROKER_TIMEOUT_S)

    def begin(self, batch: BatchName, share: ShareName, held: Marks) -> bool:
        """Begin the transaction of a share; return False if the share is written already.

        Raises:
            KafkaException: fenced, or the broker does not answer.
        """
        mark = mark_of_share(batch, share)
        if held.is_set(mark):
            return False
        self._producer.begin_transaction()
        group = held.consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([mark], group, BROKER_TIMEOUT_S)
        return True

    def settle_tuples(self) -> None:
        """Nothing to wait for: all becomes visible at once."""

    def settle(self) -> None:
        """Commit. Raises DeliveryFailed, TransactionLost."""
        self._check()
        try:
            _insist(lambda: self._producer.commit_transaction(FLUSH_TIMEOUT_S))
        except KafkaException as error:
            self._check()
            raise TransactionLost(
                f"the task's transaction was aborted: {error.args[0].str()}; another attempt took over, or "
                "the task took longer than kafka.transaction.timeout.ms (give a larger one, or smaller "
                "batches with maxOffsetsPerTrigger)"
            ) from error

    def give_up(self) -> None:
        """Abort what the task sent; who comes next begins with a producer of its own."""
        self.is_spent = True
        try:
            self._producer.purge()
            self._producer.abort_transaction(BROKER_TIMEOUT_S)
        except KafkaException as error:
            log.info("not aborted: %s", error.args[0].str(), extra={"action": "transaction_not_aborted"})


def _insist(step: Any) -> None:
    while True:
        try:
            step()
            return
        except KafkaException as error:
            told: KafkaError = error.args[0]
            if told.txn_requires_abort() or not told.retriable():
                raise


_open: dict[tuple[Any, ...], Transaction] = {}


def begin_transaction(
    bootstrap: str, user: Settings, group: str, batch: BatchName, share: ShareName
) -> Transaction | None:
    """Return a transaction for a share of a batch, None if the share is written already.

    A producer kept from an earlier batch is used again unless another process has fenced it meanwhile.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    place = (os.getpid(), bootstrap, group, share.topic, share.partition, tuple(sorted(user.items())))
    held = marks(bootstrap, user, group)
    kept = _open.pop(place, None)
    if kept is not None and not kept.is_spent:
        try:
            begun = kept.begin(batch, share, held)
            _open[place] = kept
            return kept if begun else None
        except KafkaException as error:
            log.info("fenced: %s", error.args[0].str(), extra={"action": "transaction_fenced"})
    while len(_open) >= MAX_OPEN:
        _open.pop(next(iter(_open))).flush(RELIEF_S)
    fresh = Transaction(bootstrap, user, f"{held.group}-{share.topic}-{share.partition}")
    with clear_errors(bootstrap):
        begun = fresh.begin(batch, share, held)
    _open[place] = fresh
    return fresh if begun else None
