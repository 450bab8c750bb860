"""The way out of a worker: its producer, and the step that makes outputs and input offsets durable.

Invariant: input offsets are committed only after every record produced before is acknowledged by the broker.
A record that the broker refuses for good stops the worker; its inputs stay uncommitted and are read again.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree.producers.collector import UserHeaders
from acktree.producers.errors import DeliveryFailed, MissingPartition, TooLarge
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits, payload_of
from acktree.producers.native.columns import NO_TIMESTAMP, Rows, Unwritten, produce_each
from acktree.producers.native.columns_out import Cells, ColumnsOut, Note, find_cells
from acktree.producers.native.librdkafka import NoColumns
from acktree.schemas.clients import is_forbidden, make_producer
from acktree.schemas.header import HEADER

RELIEF_S = 0.1
"""How long a full producer queue is served before the next try."""
STOP_TIMEOUT_S = 30.0
"""How long a worker that was told to stop waits for a broker that does not answer."""

PARTITION_UA = -1
"""librdkafka's word for: let the partitioner choose."""

log = logging.getLogger("acktree.bolt")

_PURGED = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))


class Output(Protocol):
    """What a worker needs to get its outputs and offsets out."""

    ack_interval_s: float
    sends_acks_early: bool
    """Whether acks leave before the commit of their inputs."""
    commit_interval_s: float
    commit_records: int
    owner: bytes
    """By what commits name this worker to the next owner of its partitions; empty where none need know."""
    while_full: Callable[[], None]
    """May be called while a record waits for room, to send control records that need not wait with it."""

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: UserHeaders | None,
        timestamp_ms: int = NO_TIMESTAMP,
        /,
    ) -> None: ...

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten: ...

    def send(self, topic: str, partition: int, value: bytes) -> None: ...

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Send a control record that waits neither for data nor for a commit."""
        ...

    def serve(self) -> None: ...

    def take_over(self, places: Sequence[tuple[str, int]], /) -> None:
        """End what dead owners of these partitions have left open; called inside the consumer's callback."""
        ...

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        ...

    def settle(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Make durable what was produced, then the offsets; return False to try the offsets later.

        ``in_callback`` says that the consumer waits for the caller: it takes no other thread's call then.
        """
        ...


class FirstRefusal:
    """The first record that a producer's broker refused for good.

    It knows nothing of the producer. Each record that waits for its report holds the callback, where the
    garbage collector does not see it: a producer that could be reached from there would live for ever.
    """

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._topic = ""
        self._of_columns: Note | None = None

    def follow(self, note: Note) -> None:
        """Watch also what is noted of records that went out in columns."""
        self._of_columns = note

    def note(self, error: KafkaError | None, record: Any) -> None:
        """Take in a delivery report."""
        if error is not None and self._error is None and error.code() not in _PURGED:
            self._error, self._topic = error, record.topic()

    @property
    def error(self) -> KafkaError | None:
        """What the broker said of the record."""
        if self._error is None and self._of_columns is not None and self._of_columns[0]:
            self._error = KafkaError(int(self._of_columns[0]))
            self._topic = self._of_columns[1:].tobytes().rstrip(b"\0").decode()
        return self._error

    def forget(self) -> None:
        """Begin afresh."""
        self._error = None
        if self._of_columns is not None:
            self._of_columns[:] = 0

    def check(self) -> None:
        """Raise DeliveryFailed if a record was refused."""
        if (error := self.error) is not None:
            raise refused(error, self._topic)


class BufferedProducer:
    """A producer that waits for room instead of losing a record, and remembers the first refused one."""

    growth_timeout_s = 30.0
    """How long a partition that the topology promises is looked for."""

    def __init__(self, settings: dict[str, Any], limits: Limits = NO_LIMITS) -> None:
        self._limits = limits
        self._has_limits = bool(limits.by_topic or limits.compacted)
        self.while_full: Callable[[], None] = lambda: None
        self.settings = settings
        self._deadline_s = math.inf
        self.may_have_columns = True
        self._connect()

    def _connect(self) -> None:
        """Begin with a new producer; what the one before may still report is no longer heard."""
        self.columns: ColumnsOut | None = None
        self.refusal = FirstRefusal()
        self.producer: Producer = make_producer({**self.settings, "on_delivery": self.refusal.note})

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int = NO_TIMESTAMP,
        on_delivery: Callable[[KafkaError | None, Any], None] | None = None,
    ) -> None:
        """Queue a record; while the queue is full, wait for room. Raises DeliveryFailed, Unwritable.

        ``on_delivery`` takes the record's report in place of the producer's own callback.
        By place, because keywords cost a third of the whole call: partition, on_delivery twice, timestamp.
        """
        if self._has_limits or timestamp_ms:
            self._limits.check(topic, value, key, headers, timestamp_ms)
        written: Any = headers
        while True:
            try:
                self.producer.produce(
                    topic, value, key, PARTITION_UA, on_delivery, None, timestamp_ms, written
                )
                return
            except BufferError:
                self._wait_for_room()
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise refused(error.args[0], topic) from error
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise TooLarge(
                        f"a record is too large for topic {topic}: {error.args[0].str()}"
                    ) from error
                if not self._is_lost(error):
                    raise
                return

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten:
        """Queue records; while the queue is full, wait for room. Return the rows that can never be written.

        Raises DeliveryFailed.
        """
        columns = self.open_columns()
        places = [found for column in rows.columns if (found := find_cells(column, len(rows))) is not None]
        if columns is None or len(places) < len(rows.columns) or not self._fit(topic, places, rows.headers):
            return produce_each(self.produce, topic, rows)
        next_row = 0
        unwritten: Unwritten = []
        while True:
            next_row, code = columns.produce(topic, places, rows.headers, next_row)
            if next_row == len(rows):
                return unwritten
            if code == KafkaError._QUEUE_FULL:
                self._wait_for_room()
                continue
            refused = produce_each(self.produce, topic, rows.one(next_row))
            unwritten += [(next_row, error) for _, error in refused]
            next_row += 1

    def _fit(self, topic: str, places: Sequence[Cells], headers: UserHeaders) -> bool:
        """Tell whether all records are such that their topic takes them."""
        if not self._has_limits:
            return True
        sizes = np.stack([cells.places[1] for cells in places])
        most_bytes = int(sizes.clip(0).sum(0).max(initial=0)) + len(HEADER) + payload_of(headers)
        return self._limits.fit(topic, most_bytes, all_keyed=bool((sizes[1] >= 0).all()))

    def open_columns(self) -> ColumnsOut | None:
        """Return the way for columns, None where there is none."""
        if self.columns is None and self.may_have_columns:
            try:
                self.columns = ColumnsOut(self.producer)
                self.refusal.follow(self.columns.note)
            except NoColumns as reason:
                self.may_have_columns = False
                log.info("columns go out record by record: %s", reason, extra={"action": "no_columns"})
        return self.columns

    def _is_lost(self, _error: KafkaException) -> bool:
        """Tell whether a record may be dropped, as nothing of its transaction will be seen."""
        return False

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record, also on a partition younger than what the client knows of the topic.

        Raises:
            MissingPartition: the broker does not show the partition within ``growth_timeout_s``.
            DeliveryFailed: a record before was refused for good.
        """
        deadline_s = None
        while True:
            try:
                self.producer.produce(topic, value, partition=partition)
                return
            except BufferError:
                self._wait_for_room()
            except KafkaException as error:
                if is_forbidden(error.args[0]):
                    raise refused(error.args[0], topic) from error
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                deadline_s = deadline_s or time.monotonic() + self.growth_timeout_s
                if time.monotonic() >= deadline_s:
                    raise missing_partition(topic, partition) from error
                self._look_again(topic)

    def _look_again(self, topic: str) -> None:
        """Refresh what the client knows of a topic: it asks by itself only every few minutes."""
        try:
            self.producer.list_topics(topic, RELIEF_S * 10)
        except KafkaException as error:
            log.warning("cannot look at %s: %s", topic, error.args[0].str(), extra={"action": "no_metadata"})
        self._poll(RELIEF_S)

    def _wait_for_room(self) -> None:
        self._poll(RELIEF_S)

    def serve(self) -> None:
        """Take delivery reports in. Raises DeliveryFailed."""
        self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        self.producer.poll(timeout_s)
        self._check()

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has everything. After an error the next records begin afresh.

        Raises:
            DeliveryFailed: a record was refused, or the time is up; what is left then is dropped.
        """
        left = self.producer.flush(timeout_s)
        if left:
            self.producer.purge()
            self.producer.flush(RELIEF_S)
        try:
            self.refusal.check()
        finally:
            self.refusal.forget()
        if left:
            raise DeliveryFailed(
                f"the broker has not taken all records within {timeout_s:g} s; those left were dropped"
            )

    def drain(self) -> None:
        """Wait until the broker has everything, with no limit but a stop's. Raises DeliveryFailed."""
        while self.producer.flush(RELIEF_S):
            self._check()
        self._check()

    def hurry(self) -> None:
        """Wait no longer than STOP_TIMEOUT_S from here on; may be called from a signal handler."""
        self._deadline_s = min(self._deadline_s, time.monotonic() + STOP_TIMEOUT_S)

    def _check(self) -> None:
        self.refusal.check()
        if len(self.producer) and time.monotonic() > self._deadline_s:
            raise DeliveryFailed(
                f"the broker has not taken all records within {STOP_TIMEOUT_S:g} s of the stop; "
                "the inputs behind them were not committed and will be read again"
            )


def missing_partition(topic: str, partition: int) -> MissingPartition:
    """Return what to raise when a partition does not show up."""
    return MissingPartition(
        f"topic {topic} shows no partition {partition}, though the topology has an acker for it; "
        "apply the topology again: acktree topology apply FILE"
    )


def refused(failure: KafkaError, topic: str) -> DeliveryFailed:
    """Return what to raise when the broker refuses a record."""
    hint = "; rights are printed by: acktree acl plan --role ROLE" if is_forbidden(failure) else ""
    if failure.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        hint = "; where the topic takes less than a megabyte at once, set message.max.bytes to what it takes"
    return DeliveryFailed(
        f"the broker did not take a record for topic {topic}: {failure.str()}; "
        f"the inputs behind it were not committed and will be read again{hint}"
    )
