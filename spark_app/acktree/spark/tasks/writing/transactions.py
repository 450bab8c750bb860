"""Writes one transaction per Spark task: its tuples, its inits or acks, and its batch commit record.

Invariant: a read task's output is written once for read_committed readers, however often the task runs. The
transactional id belongs to the first partition it reads, so a later attempt fences the earlier one; only then
is the batch commit record read, so no attempt can commit after that check.
"""

import logging
from collections.abc import Callable

from confluent_kafka import KafkaException

from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings
from acktree.producers.spouts.driver.task_fencing import transactional_id
from acktree.spark.native.switch import NativeOff, native_part
from acktree.spark.shared.batch_commits import BatchName, ReadTaskName, batch_commits
from acktree.spark.shared.per_process import PerProcess
from acktree.spark.tasks.writing.record_transaction import RecordTransaction, Transaction

MAX_OPEN = 64
"""Partitions whose producers a process keeps: a new one costs up to 0.3 s and several connections."""
BATCHES = "acktree.spark.tasks.writing.batch_transaction"
"""Imported only where whole batches can be written: aiokafka is a separate extra."""

log = logging.getLogger("acktree.spark")

open_transactions: PerProcess[Transaction] = PerProcess()
"""Transactions kept for later tasks."""


def begin_transaction(
    bootstrap: str,
    user: Settings,
    group: str,
    batch: BatchName,
    task: ReadTaskName,
    limits: Settings | None = None,
) -> Transaction | None:
    """Return a transaction for a read task of a batch, None if its output is committed already.

    ``limits`` are the producer's settings that the topics ask for; the user's win. A producer kept from an
    earlier batch is used again unless another process has fenced it meanwhile.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    producer = {**(limits or {}), **user}
    purpose = (bootstrap, group, task.topic, task.partition, producer)
    commits = batch_commits(bootstrap, user, group)
    kept = open_transactions.pop(*purpose)
    if kept is not None and not kept.is_spent:
        try:
            begun = kept.begin(batch, task, commits)
            open_transactions.put(kept, *purpose)
            return kept if begun else None
        except KafkaException as error:
            log.info("fenced: %s", error.args[0].str(), extra={"action": "transaction_fenced"})
    if kept is not None:
        kept.close()
    for oldest in open_transactions.pop_oldest(MAX_OPEN):
        oldest.close()
    fresh = _connect(bootstrap, producer, transactional_id(group, task.topic, task.partition))
    with clear_errors(bootstrap):
        begun = fresh.begin(batch, task, commits)
    open_transactions.put(fresh, *purpose)
    return fresh if begun else None


def _connect(bootstrap: str, user: Settings, transactional_id: str) -> Transaction:
    try:
        return batch_transaction()(bootstrap, user, transactional_id)
    except NativeOff as reason:
        log.info("a task writes record by record: %s", reason, extra={"action": "no_batches"})
        return RecordTransaction(bootstrap, user, transactional_id)


def batch_transaction() -> Callable[[str, Settings, str], Transaction]:
    """Return the transaction of whole batches. Raises NativeOff."""
    transaction: Callable[[str, Settings, str], Transaction] = native_part(BATCHES).BatchTransaction
    return transaction
