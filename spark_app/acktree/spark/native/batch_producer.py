"""A transactional producer of encoded batches: aiokafka on an event loop, called from a Spark task's thread.

Invariant: batches leave in the order they are given, one call's at a time: while these are sent the caller
prepares the next ones, and no more memory is taken. It does not see records, and retries no transaction.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError
from aiokafka.errors import KafkaError as BatchClientError
from confluent_kafka import TopicPartition as CommitRecord

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.producers.errors import DeliveryFailed
from acktree.producers.kafka.output import POLL_INTERVAL_S, refused
from acktree.producers.worker.executing.loop_thread import LoopThread
from acktree.spark.native.aiokafka_client import as_kafka_error, as_kafka_exceptions
from acktree.spark.native.record_batches import EncodedBatch
from acktree.spark.shared.per_process import PerProcess

END_OF_METADATA = "\0"
"""librdkafka ends a commit's metadata with it, and without it reads past the end."""

log = logging.getLogger("acktree.spark")

Addressed = list[tuple[str, int, EncodedBatch]]
"""Batches with their topics and partitions."""


class BatchProducer:
    """One connection with a transactional id; after any error it must be closed."""

    def __init__(self, settings: dict[str, Any], flush_timeout_s: float) -> None:
        """Fence the id's previous user, and abort its transaction. Raises KafkaException."""
        self._flush_timeout_s = flush_timeout_s
        self._sent: list[tuple[str, asyncio.Future[Any]]] = []
        self._sending: Any = None
        self._loop = _loop_thread()
        with as_kafka_exceptions():
            self._producer = self._loop.wait(_connect(settings))

    def begin(self, commit_record: CommitRecord, group: str) -> None:
        """Begin a transaction that commits a record of a group's. Raises KafkaException."""
        with as_kafka_exceptions():
            self._loop.wait(self._begin(commit_record, group))

    async def _begin(self, commit_record: CommitRecord, group: str) -> None:
        async with asyncio.timeout(BROKER_TIMEOUT_S):
            await self._producer.begin_transaction()
            place = TopicPartition(commit_record.topic, commit_record.partition)
            metadata = f"{commit_record.metadata}{END_OF_METADATA}"
            await self._producer.send_offsets_to_transaction({place: (commit_record.offset, metadata)}, group)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the client knows of a topic. Raises DeliveryFailed."""
        try:
            return len(self._loop.wait(self._producer.partitions_for(topic)))
        except BatchClientError as error:
            raise refused(as_kafka_error(error), topic) from error

    def refresh_metadata(self) -> None:
        """Read the partitions of the topics again, and wait for a moment."""
        self._loop.wait(self._refresh_metadata())

    async def _refresh_metadata(self) -> None:
        await self._producer.client.force_metadata_update()
        await asyncio.sleep(POLL_INTERVAL_S)

    def send(self, batches: Addressed) -> None:
        """Start to send batches once those of the call before have left. Raises DeliveryFailed: of these."""
        self._wait_until_sent()
        self._sending = self._loop.begin(self._send(batches))

    def _wait_until_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            self._loop.result(sending)

    async def _send(self, batches: Addressed) -> None:
        for topic, partition, batch in batches:
            answer = await self._queue(topic, partition, batch)
            answer.add_done_callback(_retrieve_exception)
            self._sent.append((topic, answer))
        answered = [(topic, answer) for topic, answer in self._sent if answer.done()]
        self._sent = [(topic, answer) for topic, answer in self._sent if not answer.done()]
        await _await_answers(answered)

    async def _queue(self, topic: str, partition: int, batch: EncodedBatch) -> asyncio.Future[Any]:
        """Queue a batch, behind one at most of the same partition; return the future of its answer."""
        deadline_s = world.monotonic_s() + self._flush_timeout_s
        while True:
            try:
                answer: asyncio.Future[Any]
                answer = await self._producer.send_batch(batch, topic, partition=partition)
                return answer
            except KafkaTimeoutError as error:
                if world.monotonic_s() > deadline_s:
                    raise refused(as_kafka_error(error), topic) from error
            except IllegalOperation as error:  # a batch before was refused, which ends the transaction
                await _await_answers(self._sent)
                raise DeliveryFailed(f"a batch for {topic} came after its transaction: {error}") from error
            except BatchClientError as error:
                raise refused(as_kafka_error(error), topic) from error

    def flush(self) -> None:
        """Wait until the broker has taken every batch. Raises DeliveryFailed."""
        self._wait_until_sent()
        self._loop.wait(self._await_all())

    async def _await_all(self) -> None:
        sent, self._sent = self._sent, []
        try:
            async with asyncio.timeout(self._flush_timeout_s):
                await _await_answers(sent)
        except TimeoutError as error:
            raise DeliveryFailed(
                f"{len(sent)} batches were not accepted within {self._flush_timeout_s:g} s and were dropped"
            ) from error

    def commit(self) -> None:
        """Commit the transaction. Raises KafkaException."""
        with as_kafka_exceptions():
            self._loop.wait(self._commit())

    async def _commit(self) -> None:
        async with asyncio.timeout(self._flush_timeout_s):
            await self._producer.commit_transaction()

    def abort(self) -> None:
        """Abort the transaction, if the broker still allows it, and close."""
        if self._sending is not None:
            self._sending.cancel()
        try:
            self._loop.wait(self._abort())
        except (BatchClientError, TimeoutError, AssertionError) as error:  # the last: not in a transaction
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
            if await _returns(producer.stop()):
                return
    except (BatchClientError, TimeoutError):
        pass
    await _returns(producer.client.close())


async def _returns(work: Coroutine[Any, Any, None]) -> bool:
    """Return whether it came to its end; False if aiokafka raises the cancellation of one of its tasks."""
    try:
        await work
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        return False
    return True


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
    thread = LoopThread("acktree-writer")
    thread.start()
    thread.wait(_log_loop_errors())
    return thread


async def _log_loop_errors() -> None:
    """Log exceptions that asyncio calls unretrieved: aiokafka has reported them in another way already."""
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)


def _log_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    details = context["message"], context.get("exception")
    log.info("aiokafka: %s (%s)", *details, extra={"action": "batch_client"})
