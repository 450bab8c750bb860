"""Writes the transaction of a Spark task in whole record batches.

Invariant: a commit is requested only after the broker has taken every batch, and a transaction is not used
again after any error. The producer decides how batches are sent.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from confluent_kafka import KafkaException
from numpy.typing import NDArray

from acktree.core import world
from acktree.core.edges import EdgeSource
from acktree.core.kafka.errors import clear_errors
from acktree.core.kafka.settings import Settings, admin_settings, producer_settings
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.columns import Pairs, Payload, Rows, Unwritten, produce_each
from acktree.producers.errors import DeliveryFailed, TooLarge
from acktree.producers.kafka.output import missing_partition
from acktree.spark.native.aiokafka_client import batch_client_settings
from acktree.spark.native.batch_producer import Addressed, BatchProducer
from acktree.spark.native.cells import Cells, find_cells
from acktree.spark.native.record_batches import (
    BATCH_BYTES,
    RECORD_BYTES,
    encode,
    no_headers,
    other_headers,
    record_bytes,
)
from acktree.spark.shared.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.tasks.producers import FLUSH_TIMEOUT_S
from acktree.spark.tasks.writing.record_transaction import TRANSACTION_TIMEOUT_MS, OpenTransaction

SINGLE_ROWS, SINGLE_BYTES = 2_000, 16 << 20
"""Records produced one by one that wait to be laid out together."""
MAX_RECORDS = 2**30
"""Of one producer: aiokafka's sequence numbers go astray at 2**31 in a partition."""

Single = tuple[Payload, Payload, Pairs]


class BatchTransaction:
    """The output of one task after another; see ``Transaction``."""

    growth_timeout_s = 30.0
    """How long a partition that the topology promises is looked for."""

    def __init__(self, bootstrap: str, user: Settings, transactional_id: str) -> None:
        """Fence the previous user of the id, and abort its transaction.

        Raises:
            NativeOff: it takes librdkafka to do what the properties say.
            RefusedSetting, BrokerUnreachable, BrokerRefused: see their docstrings.
        """
        producer_settings(bootstrap, user)
        ours = {"transactional.id": transactional_id, "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        settings, self._sizes = batch_client_settings({**ours, **admin_settings(bootstrap, user)})
        self.edges = EdgeSource()
        self.is_spent = False
        self._singles: dict[str, list[Single]] = {}
        self._single_bytes = 0
        self._turns: Counter[str] = Counter()
        self._counts: dict[str, int] = {}
        self._records = 0
        self._open = OpenTransaction()
        with clear_errors(bootstrap):
            self._producer = BatchProducer(settings, FLUSH_TIMEOUT_S)

    def begin(self, batch: BatchName, task: ReadTaskName, commits: BatchCommits) -> bool:
        """Begin the transaction of a task; see ``Transaction``. Raises KafkaException."""
        commit_record = commit_of_task(batch, task)
        is_written = commits.is_set(commit_record)
        self._open = OpenTransaction()
        self._producer.begin(commit_record, commits.group)
        if is_written:
            self._producer.commit()
        self._counts.clear()
        return not is_written

    def produce(
        self, topic: str, value: Payload, key: Payload = None, headers: UserHeaders | None = None
    ) -> None:
        """Take a record. Raises DeliveryFailed, TooLarge: this one, or one before."""
        self._singles.setdefault(topic, []).append((value, key, list(headers or ())))
        self._single_bytes += len(value or b"") + len(key or b"")
        if self._single_bytes >= SINGLE_BYTES:
            self.serve()
        elif len(self._singles[topic]) >= SINGLE_ROWS:
            self._lay_out_singles(topic)

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten:
        """Take records; if one can never be written, return it, and none is. Raises DeliveryFailed."""
        # Life of a record, step 6.
        columns = [found for column in rows.columns if (found := find_cells(column, len(rows))) is not None]
        if len(columns) < len(rows.columns):
            return produce_each(self.produce, topic, rows)
        self._lay_out_singles(topic)
        others = other_headers([rows.headers] * len(rows)) if rows.headers else no_headers(len(rows))
        return self._lay_out(topic, columns, *others)

    def _lay_out_singles(self, topic: str) -> None:
        if not (singles := self._singles.pop(topic, [])):
            return
        values, keys, headers = zip(*singles, strict=True)
        columns = [cells for column in (values, keys, None) if (cells := find_cells(column, len(singles)))]
        for _, error in self._lay_out(topic, columns, *other_headers(headers)):
            raise error

    def _lay_out(
        self, topic: str, columns: Sequence[Cells], others: Cells, counts: NDArray[np.int64]
    ) -> Unwritten:
        sizes = record_bytes(columns, others) - RECORD_BYTES
        if len(too_large := np.flatnonzero(sizes > self._sizes.record_bytes)):
            row = int(too_large[0])
            reason = f"{sizes[row]} bytes, and message.max.bytes is {self._sizes.record_bytes}"
            return [(row, TooLarge(f"a record is too large for topic {topic}: {reason}"))]
        if len(sizes):
            self._open.size += int(sizes.sum())
            turn = self._turns[topic] if topic in self._turns else world.random_bits(16)
            max_bytes = min(BATCH_BYTES, self._sizes.batch_bytes)
            batches = list(encode(columns, others, counts, self._partitions(topic), turn, max_bytes))
            self._turns[topic] = turn + len(batches)
            self._send([(topic, partition, batch) for partition, batch in batches])
        return []

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Take a control record, also for a partition younger than what the client knows of the topic.

        Raises:
            MissingPartition: the broker does not show the partition within ``growth_timeout_s``.
            DeliveryFailed: a record before was refused for good.
        """
        deadline_s = world.monotonic_s() + self.growth_timeout_s
        while partition >= self._partitions(topic):
            if world.monotonic_s() >= deadline_s:
                raise missing_partition(topic, partition)
            self._producer.refresh_metadata()
            self._counts.clear()
        columns = [cells for column in ([value], None, None) if (cells := find_cells(column, 1))]
        batches = encode(columns, *no_headers(1), partitions=1, turn=0)
        self._send([(topic, partition, batch) for _, batch in batches])

    def _partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, as of the transaction's first record for it."""
        if topic not in self._counts:
            self._counts[topic] = self._producer.partition_count(topic)
        return self._counts[topic]

    def _send(self, batches: Addressed) -> None:
        self._records += sum(batch.record_count() for _, _, batch in batches)
        self._producer.send(batches)

    def serve(self) -> None:
        """Lay out what waits. Raises DeliveryFailed, TooLarge."""
        for topic in list(self._singles):
            self._lay_out_singles(topic)
        self._single_bytes = 0

    def flush_tuples(self) -> None:
        """Nothing to wait for: everything becomes visible together."""

    def flush_and_commit(self) -> None:
        """Commit. Raises DeliveryFailed, TransactionLost."""
        # Life of a record, step 9.
        self.serve()
        try:
            self._producer.flush()
            self._producer.commit()
        except DeliveryFailed as error:
            raise self._open.not_accepted(error) from error
        except KafkaException as error:
            raise self._open.lost(error.args[0]) from error
        self.is_spent = self._records > MAX_RECORDS

    def abort(self) -> None:
        """Abort what the task sent; the next user of the id begins with a new producer."""
        self.is_spent = True
        self._producer.abort()

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()
