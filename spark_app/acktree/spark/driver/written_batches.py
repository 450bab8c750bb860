"""Proves that a batch which Spark has ended was written, if its plan is declared narrow.

A stage's driver sees which tasks have written; ``writeStream.format("acktree")`` has no such driver, and
Spark ends a batch even if its optimizer has found that nothing needs to be read, or if a plan reads only some
of the tasks.
Invariant: no batch counts as written without the batch commit record of every task that had something to
read, all of one batch; a missing record proves nothing, and stops the query.
"""

from collections.abc import Callable, Sequence

from confluent_kafka import TopicPartition

from acktree.core.kafka.errors import clear_errors
from acktree.producers.ledger.logged_batch import PlannedBatch
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName, batch_of_commit
from acktree.spark.shared.options import SourceOptions
from acktree.wire.errors import AcktreeError


class NotWritten(AcktreeError):
    """Spark has ended a batch without proof in Kafka that all of its input was written."""


class WrittenBatches:
    """Checks the batches of one query, one after another."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._commits = BatchCommits(options.bootstrap, options.kafka, options.group)
        self._checked: PlannedBatch | None = None
        self._name: BatchName | None = None

    def check(self, batch: PlannedBatch, tasks_of: Callable[[], Sequence[ReadTaskName]]) -> None:
        """Return once every task of a batch that Spark has ended is known to have committed what it wrote.

        Called again for the same batch it does nothing. Raises:
            NotWritten: one has not, or its record is gone.
            BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        # Life of a record, step 9.
        if batch == self._checked:
            return
        if tasks := tasks_of():
            places = [TopicPartition(task.topic, task.partition) for task in tasks]
            with clear_errors(self._options.bootstrap):
                found = self._commits.newest(places)
            names = list(map(batch_of_commit, found, tasks))
            if None in names or len({*names}) > 1 or names[0] == self._name:
                raise self._not_written(tasks, names)
            self._name = names[0]
        self._checked = batch

    def _not_written(self, tasks: Sequence[ReadTaskName], names: Sequence[BatchName | None]) -> NotWritten:
        missing = [task for task, name in zip(tasks, names, strict=True) if name is None] or tasks
        first = missing[0]
        return NotWritten(
            f"Spark has ended a batch, but group {self._commits.group} has no proof that {len(missing)} of "
            f"its {len(tasks)} tasks wrote their records (those of the first end at offset "
            f"{first.next_offset} of {first.topic}/{first.partition}): the plan skips them, as limit(0) "
            "does, or they were not written by writeStream.format('acktree'), or the query was stopped for "
            "longer than offsets.retention.minutes. None of them is committed: with a new checkpoint they "
            f"are read again. If the plan has to skip records, leave plan={self._options.plan} out and write "
            "with foreachBatch and a stage"
        )

    def close(self) -> None:
        self._commits.consumer.close()
