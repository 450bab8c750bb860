"""Sends a worker's output: buffers its records, and makes them and the input offsets durable.

Invariant: input offsets are committed only after the broker has acknowledged every record produced before.
A record that the broker rejects for good stops the worker; its inputs stay uncommitted and are read again.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import make_producer, wait_until_delivered
from acktree.core.kafka.errors import is_forbidden
from acktree.core.kafka.outages import log_retry
from acktree.core.reports.liveness import Liveness
from acktree.producers.collecting.arithmetic.transaction_limit import Passage, TransactionLimit
from acktree.producers.collecting.collector import UserHeaders
from acktree.producers.columns import NO_TIMESTAMP, Rows, Unwritten, produce_each
from acktree.producers.errors import DeliveryFailed, MissingPartition, TooLarge
from acktree.producers.kafka.record_limits import NO_LIMITS, Limits

POLL_INTERVAL_S = 0.1
"""How long to poll a producer whose queue is full before the next try."""
STOP_TIMEOUT_S = 30.0
"""How long a worker that was asked to stop waits for a broker that does not answer."""

PARTITION_UA = -1
"""RD_KAFKA_PARTITION_UA: the partitioner chooses."""

SILENT_S = 5.0
"""A broker that confirms nothing for so long is away; one behind a slow link goes on confirming."""
FLUSH_S = 0.5

log = logging.getLogger("acktree.bolt")


class Output(Protocol):
    """The interface by which a worker sends its records and commits its offsets."""

    ack_interval_s: float
    sends_acks_early: bool
    """Whether acks are sent before their inputs are committed."""
    commit_interval_s: float
    commit_records: int
    must_abort: bool
    """Set when what was produced since the last commit may not be committed, because the group has given its
    inputs to another member; without a transaction it changes nothing."""
    limit: TransactionLimit | None
    """How much may be in a transaction; None without transactions."""
    executed: int
    """How many tuples were executed since the last commit; the worker sets it before each one."""
    owner: bytes
    """Names this worker to the next owner of its partitions, in every commit; empty where nobody needs it."""

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

    @property
    def is_full(self) -> bool:
        """Whether so much was produced that a commit should follow."""
        ...

    def send(self, topic: str, partition: int, value: bytes) -> None: ...

    def send_at_once(self, topic: str, partition: int, value: bytes) -> None:
        """Send a control record without waiting for data or for a commit."""
        ...

    def serve(self) -> None: ...

    def fence_previous_owners(self, places: Sequence[tuple[str, int]], /) -> None:
        """End the open transactions of dead owners of these partitions; called in the consumer's callback."""
        ...

    def begin_stop(self) -> None:
        """From now on, wait no longer than STOP_TIMEOUT_S; may be called from a signal handler."""
        ...

    def renew_stop(self) -> None:
        """Count that time from now on: the bolt has used the time that it has of a stop."""
        ...

    def flush_and_commit(
        self, consumer: Consumer, offsets: Sequence[TopicPartition], in_callback: bool = False
    ) -> bool:
        """Make everything produced durable, then commit the offsets; return False to retry the offsets later.

        ``in_callback``: the consumer waits for the caller, so it would block a call from another thread.
        """
        ...


class FirstDeliveryError:
    """The first delivery error of a producer that no retry can fix.

    It holds no reference to the producer. Every record in flight references the callback, invisible to the
    garbage collector: a producer reachable from there would never be freed.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self._topic = ""

    def on_delivery(self, error: KafkaError | None, record: Any) -> None:
        """Handle a delivery report."""
        if error is not None and self.error is None:
            self.error, self._topic = error, record.topic()

    def clear(self) -> None:
        """Clear the error."""
        self.error = None

    def check(self) -> None:
        """Raise DeliveryFailed if a record could not be delivered."""
        if self.error is not None:
            raise refused(self.error, self._topic)


class BufferedProducer:
    """A producer that waits while its queue is full, and remembers its first delivery error."""

    limit: TransactionLimit | None = None
    executed = 0
    is_full = False
    growth_timeout_s = 30.0
    """How long to wait for a partition that the topology says is there."""

    def __init__(
        self, settings: dict[str, Any], limits: Limits = NO_LIMITS, progress: Liveness | None = None
    ) -> None:
        """``progress``: that of the loop that waits here for the broker."""
        self._limits, self._progress = limits, progress or Liveness()
        self._has_limits = limits.are_any
        self.settings = settings
        self._deadline_s = math.inf
        self.has_written = False
        """Whether anything was given to the producer since this was last cleared."""
        self._connect()

    def _connect(self) -> None:
        """Create a new producer; delivery reports of the previous one are ignored."""
        self.delivery_error = FirstDeliveryError()
        settings = {**self.settings, "on_delivery": self.delivery_error.on_delivery}
        self.producer: Producer = make_producer(settings)

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

        ``on_delivery`` is called for this record instead of the producer's own callback.
        """
        # Life of an ack, step 4.
        self.has_written = True
        if self._has_limits or timestamp_ms:
            self._limits.check(topic, value, key, headers, timestamp_ms)
        written: Any = headers
        while True:
            try:
                # Positional arguments, because keywords cost a third of the whole call.
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
                self._raise_or_drop(error)
                return

    def produce_rows(self, topic: str, rows: Rows) -> Unwritten:
        """Queue records; while the queue is full, wait for room. Return the rows that can never be written.

        Raises:
            DeliveryFailed: a previous record was rejected for good.
        """
        return produce_each(self.produce, topic, rows)

    def _raise_or_drop(self, error: KafkaException) -> None:
        """Raise the error of a record; where its transaction cannot commit, the record is dropped instead."""
        raise error

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Queue a control record, also for a partition that is newer than the client's metadata.

        Raises:
            MissingPartition: the broker does not show the partition within ``growth_timeout_s``.
            DeliveryFailed: a previous record was rejected for good.
        """
        self.has_written, deadline_s = True, None
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
                deadline_s = deadline_s or world.monotonic_s() + self.growth_timeout_s
                if world.monotonic_s() >= deadline_s:
                    raise missing_partition(topic, partition) from error
                self._refresh_metadata(topic)

    def _refresh_metadata(self, topic: str) -> None:
        """Refresh a topic's metadata: the client itself does so only every few minutes."""
        try:
            self.producer.list_topics(topic, POLL_INTERVAL_S * 10)
        except KafkaException as error:
            log_retry(log, "no metadata of %s: %s", topic, error.args[0].str(), action="no_metadata")
        self._poll(POLL_INTERVAL_S)

    def _wait_for_room(self) -> None:
        with self._progress.waiting():
            self._poll(POLL_INTERVAL_S)

    def serve(self) -> None:
        """Serve delivery reports. Raises DeliveryFailed."""
        self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        self.producer.poll(timeout_s)
        self._check()

    def flush(self, timeout_s: float) -> None:
        """Wait until the broker has everything. An error is raised once, and then cleared.

        Raises:
            DeliveryFailed: a record was rejected, or the timeout expired and the remaining ones were dropped.
            KafkaException: a fatal error; the next record goes to a new producer.
        """
        left: int | None = None
        try:
            left = wait_until_delivered(self.producer, timeout_s)
            self.delivery_error.check()
        finally:
            self.delivery_error.clear()
            if left != 0:
                # Not purged: confluent-kafka's purge returns early, and also drops what is produced after it.
                self._connect()
        if left:
            raise DeliveryFailed(
                f"the broker did not accept all records within {timeout_s:g} s; the remaining ones were "
                "dropped"
            )

    def drain(self) -> None:
        """Wait until the broker has everything, without limit until a stop.

        Raises:
            DeliveryFailed: a record was rejected, or a stop has waited long enough.
            KafkaException: a fatal error.
        """
        while wait_until_delivered(self.producer, POLL_INTERVAL_S):
            self._check()
        self._check()

    def begin_stop(self) -> None:
        """From now on, wait no longer than STOP_TIMEOUT_S; may be called from a signal handler."""
        self._deadline_s = min(self._deadline_s, world.monotonic_s() + STOP_TIMEOUT_S)

    def renew_stop(self) -> None:
        """Count STOP_TIMEOUT_S from now on, if a stop has begun."""
        if self._deadline_s < math.inf:
            self._deadline_s = world.monotonic_s() + STOP_TIMEOUT_S

    def _check(self) -> None:
        self.delivery_error.check()
        if len(self.producer) and world.monotonic_s() > self._deadline_s:
            raise DeliveryFailed(
                f"the broker did not accept all records within {STOP_TIMEOUT_S:g} s of the stop; "
                "their inputs were not committed and will be read again"
            )


def wait_until_passed(producer: Producer, count: int, since_s: float, timeout_s: float) -> Passage | None:
    """Wait until the broker has confirmed ``count`` records, for so long after ``since_s``.

    Return how far it has; None if it does not confirm anything any more. Raises as ``wait_until_delivered``.
    """
    last, last_s = wait_until_delivered(producer, 0.0), since_s  # what came by now is no sign of life
    while (left := wait_until_delivered(producer, FLUSH_S)) > 0:
        now_s = world.monotonic_s()
        if left < last:
            last, last_s = left, now_s
        if now_s >= since_s + timeout_s:
            is_silent = now_s > last_s + SILENT_S
            return None if is_silent else Passage(max(0.0, 1 - left / count), now_s - since_s)
    return Passage(1.0, world.monotonic_s() - since_s)


def missing_partition(topic: str, partition: int) -> MissingPartition:
    """Return the error for a partition that does not show up."""
    return MissingPartition(
        f"topic {topic} has no partition {partition}, but the topology has an acker for it; "
        "apply the topology again: acktree topology apply FILE"
    )


def refused(failure: KafkaError, topic: str) -> DeliveryFailed:
    """Return the error for a record that the broker rejects."""
    hint = "; print the rights it needs: acktree acl plan --role ROLE" if is_forbidden(failure) else ""
    if failure.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        hint = (
            "; if the topic's max.message.bytes is below a megabyte, set message.max.bytes to the same value"
        )
    return DeliveryFailed(
        f"the broker did not accept a record for topic {topic}: {failure.str()}; "
        f"its inputs were not committed and will be read again{hint}"
    )
