"""One transaction per Spark task: its tuples, its inits or acks, and the mark that says so.

Invariant: a share of a batch is written once for read_committed readers, however often its task runs. The
transactional id belongs to the share's first partition, so who begins later fences who began before; only
then the mark is looked at, so no attempt can commit behind the look.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from acktree.schemas.clients import Settings, clear_errors
from acktree.spark.driver.batch_commits import BatchName, ReadTaskName, batch_commits
from acktree.spark.tasks.writing.aiokafka_client import NoBatches
from acktree.spark.tasks.writing.record_transaction import RecordTransaction, Transaction

MAX_OPEN = 16

log = logging.getLogger("acktree.spark")

open_transactions: dict[tuple[Any, ...], Transaction] = {}
"""Those kept for the tasks to come, by process and by what they write for."""


def begin_transaction(
    bootstrap: str,
    user: Settings,
    group: str,
    batch: BatchName,
    task: ReadTaskName,
    limits: Settings | None = None,
) -> Transaction | None:
    """Return a transaction for a share of a batch, None if the share is written already.

    ``limits`` are the producer's settings that the topics ask for; the user's win. A producer kept from an
    earlier batch is used again unless another process has fenced it meanwhile.

    Raises:
        BrokerUnreachable, BrokerRefused: the broker does not answer, or forbids it.
    """
    producer = {**(limits or {}), **user}
    place = (os.getpid(), bootstrap, group, task.topic, task.partition, tuple(sorted(producer.items())))
    commits = batch_commits(bootstrap, user, group)
    kept = open_transactions.pop(place, None)
    if kept is not None and not kept.is_spent:
        try:
            begun = kept.begin(batch, task, commits)
            open_transactions[place] = kept
            return kept if begun else None
        except KafkaException as error:
            log.info("fenced: %s", error.args[0].str(), extra={"action": "transaction_fenced"})
    if kept is not None:
        kept.close()
    while len(open_transactions) >= MAX_OPEN:
        open_transactions.pop(next(iter(open_transactions))).close()
    fresh = _connect(bootstrap, producer, f"{commits.group}-{task.topic}-{task.partition}")
    with clear_errors(bootstrap):
        begun = fresh.begin(batch, task, commits)
    open_transactions[place] = fresh
    return fresh if begun else None


def _connect(bootstrap: str, user: Settings, transactional_id: str) -> Transaction:
    try:
        return _batch_transaction()(bootstrap, user, transactional_id)
    except NoBatches as reason:
        log.info("a task writes record by record: %s", reason, extra={"action": "no_batches"})
        return RecordTransaction(bootstrap, user, transactional_id)


def _batch_transaction() -> Callable[[str, Settings, str], Transaction]:
    try:
        from acktree.spark.tasks.writing.batch_transaction import BatchTransaction
    except (ImportError, RuntimeError) as error:  # no folder for what numba compiles
        raise NoBatches(str(error)) from error
    return BatchTransaction
