"""The way out of a worker: its producer, and the step that makes outputs and input offsets durable.

Invariant: input offsets are committed only after every record produced before is acknowledged by the broker.
A record that the broker refuses for good stops the worker; its inputs stay uncommitted and are read again.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree.producers.collector import UserHeaders
from acktree.producers.errors import DeliveryFailed, MissingPartition
from acktree.schemas.clients import Settings, make_producer, producer_settings

RELIEF_S = 0.1
"""How long a full producer queue is served before the next try."""
STOP_TIMEOUT_S = 30.0
"""How long a worker that was told to stop waits for a broker that does not answer."""

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

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        ...

    def settle(self, consumer: Consumer, offsets: Sequence[TopicPartition]) -> bool:
        """Make durable what was produced, then the offsets; return False to try the offsets later."""
        ...


class Sending:
    """A producer that waits for room instead of losing a record, and remembers the first refused one."""

    growth_timeout_s = 30.0
    """How long a partition that the topology promises is looked for."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._failure: KafkaError | None = None
        self._deadline_s = math.inf
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
        """Queue a record; while the queue is full, wait for room. Raises DeliveryFailed."""
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                self._wait_for_room()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record, also on a partition younger than what the client knows of the topic.

        Raises:
            MissingPartition: the broker does not show the partition within ``growth_timeout_s``.
            DeliveryFailed: a record before was refused for good.
        """
        deadline_s = None
        while True:
            try:
                self._producer.produce(topic, value, partition=partition)
                return
            except BufferError:
                self._wait_for_room()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                deadline_s = deadline_s or time.monotonic() + self.growth_timeout_s
                if time.monotonic() >= deadline_s:
                    raise MissingPartition(
                        f"topic {topic} shows no partition {partition}, though the topology has an "
                        "acker for it; apply the topology again: acktree topology apply FILE"
                    ) from error
                self._look_again(topic)

    def _look_again(self, topic: str) -> None:
        """Refresh what the client knows of a topic: it asks by itself only every few minutes."""
        try:
            self._producer.list_topics(topic, RELIEF_S * 10)
        except KafkaException as error:
            log.warning("cannot look at %s: %s", topic, error.args[0].str(), extra={"action": "no_metadata"})
        self._producer.poll(RELIEF_S)
        self._check()

    def _wait_for_room(self) -> None:
        self._producer.poll(RELIEF_S)
        self._check()

    def serve(self) -> None:
        """Take delivery reports in. Raises DeliveryFailed."""
        self._producer.poll(0)
        self._check()

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has everything. After an error the next records begin afresh.

        Raises:
            DeliveryFailed: a record was refused, or the time is up; what is left then is dropped.
        """
        left = self._producer.flush(timeout_s)
        if left:
            self._producer.purge()
            self._producer.flush(RELIEF_S)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise _refused(failure)
        if left:
            raise DeliveryFailed(f"{left} records were not taken within {timeout_s:g} s and were dropped")

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + STOP_TIMEOUT_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise _refused(self._failure)
        if len(self._producer) and time.monotonic() > self._deadline_s:
            raise DeliveryFailed(
                f"the broker has not taken {len(self._producer)} records within {STOP_TIMEOUT_S:g} s of "
                "the stop; the inputs behind them were not committed and will be read again"
            )


def _refused(failure: KafkaError) -> DeliveryFailed:
    return DeliveryFailed(
        f"the broker did not take a record: {failure.str()}; "
        "the inputs behind it were not committed and will be read again"
    )


class AtLeastOnce(Sending):
    """Flush, then commit: a crash in between repeats inputs, never loses one.

    While the broker is away records wait without limit: the queue fills, then the worker waits.
    """

    ack_interval_s = 0.005
    commit_interval_s = 1.0
    commit_records = 100_000

    def __init__(self, bootstrap: str, user: Settings) -> None:
        super().__init__(producer_settings(bootstrap, user, message_timeout_ms=0))

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
