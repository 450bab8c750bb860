"""The transaction of a Spark task, written in whole record batches.

Invariant: a commit is asked for only after the broker has taken every batch. A producer is not used again
after any error. Batches leave in the order they were laid out, one call's at a time: while they
are sent the next ones are laid out, and no more memory is taken.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError
from aiokafka.errors import KafkaError as BatchClientError
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as CommitRecord
from numpy.typing import NDArray

from acktree.producers.collector import UserHeaders
from acktree.producers.errors import DeliveryFailed, TooLarge
from acktree.producers.kafka.output import POLL_INTERVAL_S, missing_partition, refused
from acktree.producers.native.columns import Pairs, Payload, Rows, Unwritten, produce_each
from acktree.producers.native.columns_out import Cells, find_cells
from acktree.producers.worker.loop_thread import LoopThread
from acktree.schemas import world
from acktree.schemas.client_settings import Settings, admin_settings, producer_settings
from acktree.schemas.clients import BROKER_TIMEOUT_S
from acktree.schemas.ids import EdgeSource
from acktree.schemas.kafka_errors import clear_errors
from acktree.spark.driver.batch_commits import BatchCommits, BatchName, ReadTaskName, commit_of_task
from acktree.spark.tasks.per_process import PerProcess
from acktree.spark.tasks.writing.aiokafka_client import (
    as_kafka_error,
    as_kafka_exceptions,
    batch_client_settings,
    missing_parts,
)
from acktree.spark.tasks.writing.producers import FLUSH_TIMEOUT_S
from acktree.spark.tasks.writing.record_batches import (
    BATCH_BYTES,
    RECORD_BYTES,
    EncodedBatch,
    encode,
    no_headers,
    other_headers,
    record_bytes,
)
from acktree.spark.tasks.writing.record_transaction import TRANSACTION_TIMEOUT_MS, lost

SINGLE_ROWS = 2_000
"""Records produced one by one that wait to be laid out together."""
END_OF_METADATA = "\0"
"""What librdkafka writes behind a commit's metadata; without, it does not know the end when it reads it."""
MAX_RECORDS = 2**30
"""Of one producer: aiokafka's sequence numbers go astray at 2**31 in a partition."""

if missing := missing_parts():
    raise ImportError(f"this aiokafka lacks {missing}, which whole batches need")

log = logging.getLogger("acktree.spark")

Single = tuple[Payload, Payload, Pairs]
Addressed = list[tuple[TopicPartition, EncodedBatch]]


class BatchTransaction:
    """What one task after another writes to; see ``Transaction``."""

    growth_timeout_s = 30.0
    """How long a partition that the topology promises is looked for."""

    def __init__(self, bootstrap: str, user: Settings, transactional_id: str) -> None:
        """Fence and abort whoever used the id before.

        Raises:
            NoBatches: it takes librdkafka to do what the properties say.
            RefusedSetting, BrokerUnreachable, BrokerRefused: see there.
        """
        producer_settings(bootstrap, user)
        ours = {"transactional.id": transactional_id, "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        settings, self._sizes = batch_client_settings({**ours, **admin_settings(bootstrap, user)})
        self.edges = EdgeSource()
        self.is_spent = False
        self._singles: dict[str, list[Single]] = {}
        self._turns: Counter[str] = Counter()
        self._counts: dict[str, int] = {}
        self._records = 0
        self._sent: list[tuple[str, asyncio.Future[Any]]] = []
        self._sending: Any = None
        self._loop = _loop_thread()
        with clear_errors(bootstrap), as_kafka_exceptions():
            self._producer = self._loop.wait(_connect(settings))

    def begin(self, batch: BatchName, task: ReadTaskName, commits: BatchCommits) -> bool:
        """Begin the transaction of a task; see ``Transaction``. Raises KafkaException."""
        commit_record = commit_of_task(batch, task)
        is_written = commits.is_set(commit_record)
        with as_kafka_exceptions():
            self._loop.wait(self._begin(commit_record, commits.group))
            if is_written:
                self._loop.wait(self._commit())
        self._counts.clear()
        return not is_written

    async def _begin(self, commit_record: CommitRecord, group: str) -> None:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            await self._producer.begin_transaction()
            place = TopicPartition(commit_record.topic, commit_record.partition)
            await self._producer.send_offsets_to_transaction(
                {place: (commit_record.offset, f"{commit_record.metadata}\0")}, group
            )

    def produce(
        self, topic: str, value: Payload, key: Payload = None, headers: UserHeaders | None = None
    ) -> None:
        """Take a record. Raises DeliveryFailed, TooLarge: this one, or one before."""
        self._singles.setdefault(topic, []).append((value, key, list(headers or ())))
        if len(self._singles[topic]) >= SINGLE_ROWS:
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
            turn = self._turns[topic] if topic in self._turns else world.random_bits(16)
            max_bytes = min(BATCH_BYTES, self._sizes.batch_bytes)
            batches = list(encode(columns, others, counts, self._partitions(topic), turn, max_bytes))
            self._turns[topic] = turn + len(batches)
            self._start_sending([(TopicPartition(topic, partition), batch) for partition, batch in batches])
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
            self._loop.wait(self._refresh_metadata())
            self._counts.clear()
        columns = [cells for column in ([value], None, None) if (cells := find_cells(column, 1))]
        batches = encode(columns, *no_headers(1), partitions=1, turn=0)
        self._start_sending([(TopicPartition(topic, partition), batch) for _, batch in batches])

    async def _refresh_metadata(self) -> None:
        await self._producer.client.force_metadata_update()
        await asyncio.sleep(POLL_INTERVAL_S)

    def _partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, as of the transaction's first record for it."""
        if topic not in self._counts:
            try:
                self._counts[topic] = len(self._loop.wait(self._producer.partitions_for(topic)))
            except BatchClientError as error:
                raise refused(as_kafka_error(error), topic) from error
        return self._counts[topic]

    def _start_sending(self, batches: Addressed) -> None:
        """Send batches once those before have left."""
        self._wait_until_sent()
        self._records += sum(batch.record_count() for _, batch in batches)
        self._sending = self._loop.begin(self._send(batches))

    def _wait_until_sent(self) -> None:
        feeding, self._sending = self._sending, None
        if feeding is not None:
            self._loop.result(feeding)

    async def _send(self, batches: Addressed) -> None:
        for place, batch in batches:
            answer = await self._queue(place, batch)
            answer.add_done_callback(_retrieve_exception)
            self._sent.append((place.topic, answer))
        answered = [(topic, answer) for topic, answer in self._sent if answer.done()]
        self._sent = [(topic, answer) for topic, answer in self._sent if not answer.done()]
        await _await_answers(answered)

    async def _queue(self, place: TopicPartition, batch: EncodedBatch) -> asyncio.Future[Any]:
        """Queue a batch, behind one at most of the same partition; return what will be its answer."""
        deadline_s = world.monotonic_s() + FLUSH_TIMEOUT_S
        while True:
            try:
                answer: asyncio.Future[Any] = await self._producer.send_batch(
                    batch, place.topic, partition=place.partition
                )
                return answer
            except KafkaTimeoutError as error:
                if world.monotonic_s() > deadline_s:
                    raise refused(as_kafka_error(error), place.topic) from error
            except BatchClientError as error:
                raise refused(as_kafka_error(error), place.topic) from error

    def serve(self) -> None:
        """Lay out what waits. Raises DeliveryFailed, TooLarge."""
        for topic in list(self._singles):
            self._lay_out_singles(topic)

    def flush_tuples(self) -> None:
        """Nothing to wait for: all becomes visible at once."""

    def flush_and_commit(self) -> None:
        """Commit. Raises DeliveryFailed, TransactionLost."""
        # Life of a record, step 9.
        self.serve()
        self._wait_until_sent()
        self._loop.wait(self._await_all())
        try:
            with as_kafka_exceptions():
                self._loop.wait(self._commit())
        except KafkaException as error:
            raise lost(error.args[0]) from error
        self.is_spent = self._records > MAX_RECORDS

    async def _await_all(self) -> None:
        sent, self._sent = self._sent, []
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await _await_answers(sent)
        except TimeoutError as error:
            raise DeliveryFailed(
                f"{len(sent)} batches were not taken within {FLUSH_TIMEOUT_S:g} s and were dropped"
            ) from error

    async def _commit(self) -> None:
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            await self._producer.commit_transaction()

    def abort(self) -> None:
        """Abort what the task sent; who comes next begins with a producer of its own."""
        self.is_spent = True
        if self._sending is not None:
            self._sending.cancel()
        try:
            self._loop.wait(self._abort())
        except (BatchClientError, TimeoutError, AssertionError) as error:  # the last: it cannot any more
            log.info("not aborted: %r", error, extra={"action": "transaction_not_aborted"})
        self.close()

    async def _abort(self) -> None:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            await self._producer.abort_transaction()

    def close(self) -> None:
        """Close the connections."""
        self._loop.wait(_stop(self._producer))


class _PatientProducer(AIOKafkaProducer):  # type: ignore[misc]
    """Looks up the coordinator again if the connection breaks meanwhile; aiokafka itself gives up."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._lookup = self.client.coordinator_lookup
        self.client.coordinator_lookup = self._retry_lookup

    async def _retry_lookup(self, *about: Any) -> Any:
        try:
            return await self._lookup(*about)
        except KafkaConnectionError as error:
            raise NodeNotReadyError(str(error)) from error  # which it does retry


async def _connect(settings: dict[str, Any]) -> AIOKafkaProducer:
    producer = _PatientProducer(**settings)
    try:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            await producer.start()
    except BaseException:
        await _stop(producer)
        raise
    return producer


async def _stop(producer: AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(POLL_INTERVAL_S):
            await producer.stop()
    except (BatchClientError, TimeoutError):
        await producer.client.close()
    except asyncio.CancelledError:  # aiokafka awaits a task that it has cancelled; or this one is cancelled
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        await producer.client.close()


async def _await_answers(answers: list[tuple[str, asyncio.Future[Any]]]) -> None:
    for topic, answer in answers:
        try:
            await answer
        except BatchClientError as error:
            raise refused(as_kafka_error(error), topic) from error


def _retrieve_exception(answer: asyncio.Future[Any]) -> None:
    """Retrieve an exception that nobody may await any more."""
    if not answer.cancelled():
        answer.exception()


_loops: PerProcess[LoopThread] = PerProcess()


def _loop_thread() -> LoopThread:
    """Return this process's loop: a fork does not take threads along."""
    return _loops.get(_start_loop)


def _start_loop() -> LoopThread:
    thread = LoopThread()
    thread.start()
    thread.wait(_log_loop_errors())
    return thread


async def _log_loop_errors() -> None:
    """Log exceptions that asyncio calls unretrieved: aiokafka has reported them in another way already."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    details = context["message"], context.get("exception")
    log.info("aiokafka: %s (%s)", *details, extra={"action": "batch_client"})
