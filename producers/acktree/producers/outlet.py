"""The way out of a worker: its producer, and the step that makes outputs and input offsets durable.

Invariant: input offsets are committed only after every record produced before is acknowledged by the broker.
A record that the broker refuses for good stops the worker; its inputs stay uncommitted and are read again.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree.producers.collector import UserHeaders
from acktree.producers.errors import DeliveryFailed
from acktree.schemas.clients import Settings, make_producer, producer_settings

RELIEF_S = 0.1
"""How long a full producer queue is served before the next try."""

log = logging.getLogger("acktree.bolt")

_TRY_LATER = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._STATE,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
    )
)
_PURGED = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))


class Outlet(Protocol):
    """What a worker needs to get its outputs and offsets out."""

    ack_interval_s: float
    commit_interval_s: float
    commit_records: int

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
    ) -> None: ...

    def send(self, topic: str, partition: int, value: bytes) -> None: ...

    def serve(self) -> None: ...

    def settle(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
        """Make durable what was produced, then the offsets; return False to try the offsets later."""
        ...


class Sending:
    """A producer that waits for room instead of losing a record, and remembers the first refused one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._failure: KafkaError | None = None
        self._producer: Producer = make_producer({**settings, "on_delivery": self._note_failure})

    def _note_failure(self, error: KafkaError | None, _record: object) -> None:
        if error is not None and self._failure is None and error.code() not in _PURGED:
            self._failure = error

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
    ) -> None:
        """Queue a record; while the queue is full, wait for room."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                self._producer.poll(RELIEF_S)
                self._check()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record."""
        while True:
            try:
                self._producer.produce(topic, value, partition=partition)
                return
            except BufferError:
                self._producer.poll(RELIEF_S)
                self._check()

    def serve(self) -> None:
        """Take delivery reports in. Raises DeliveryFailed."""
        self._producer.poll(0)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise DeliveryFailed(
                f"the broker did not take a record: {self._failure.str()}; "
                "the inputs behind it were not committed and will be read again"
            )


class AtLeastOnce(Sending):
    """Flush, then commit: a crash in between repeats inputs, never loses one."""

    ack_interval_s = 0.005
    commit_interval_s = 1.0
    commit_records = 100_000

    def __init__(self, bootstrap: str, user: Settings) -> None:
        super().__init__(producer_settings(bootstrap, user))

    def settle(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
        """Flush, then commit. Raises DeliveryFailed, KafkaException."""
        while self._producer.flush(RELIEF_S):
            self._check()
        self._check()
        return not offsets or commit_offsets(consumer, offsets)


def commit_offsets(consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
    """Commit; return False where a rebalance or an absent broker calls for another try later."""
    try:
        for answer in consumer.commit(offsets=list(offsets), asynchronous=False) or ():
            if answer.error is not None:
                raise KafkaException(answer.error)
    except KafkaException as error:
        if error.args[0].code() not in _TRY_LATER:
            raise
        log.warning("commit put off: %s", error.args[0].str(), extra={"action": "commit_put_off"})
        return False
    return True
