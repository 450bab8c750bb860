"""Finds where to continue reading a partition that has nothing to read at the reader's position.

The position may be behind the end of the log, below its start, or in a damaged batch. Invariant: a readable
record is never skipped. librdkafka does not say where a damaged batch ends, and may take bytes inside it for
the next one: so each offset is tried by a consumer that begins there.
"""

from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, ask_bounds, make_consumer
from acktree.core.kafka.errors import is_damaged, is_transient
from acktree.core.kafka.settings import Settings, consumer_settings

READS = 2
"""How often to ask for an offset before its record counts as damaged: it may be damaged on its way."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The bounds of the log, the reader's position (or OFFSET_BEGINNING), and where reading continues."""

    first: int
    end: int
    position: int
    next_offset: int

    @property
    def is_below(self) -> bool:
        """Whether the log ends before the position: records were lost that had been read."""
        return self.next_offset < self.position

    @property
    def damaged(self) -> range:
        """The offsets of the log that cannot be read."""
        return range(max(self.position, self.first), self.next_offset)

    @property
    def action(self) -> str:
        """Return the action of the log line."""
        if self.is_below:
            return "log_end_fell"
        return "invalid_record" if self.damaged else "records_lost"

    def describe(self, topic: str, partition: int) -> str:
        """Return what was found; "" if everything can be read."""
        name = f"{topic}[{partition}]"
        if self.is_below:
            return f"{name} ends at offset {self.end}, below {self.position}: reading continues at the end"
        if self.damaged:
            return f"records {name}@{self.damaged[0]} to {self.damaged[-1]} are damaged in the log"
        if 0 <= self.position < self.first:
            return f"records {name}@{self.position} to {self.first - 1} were removed before they were read"
        return ""


def find_continuation(
    bootstrap: str, user: Settings, group: str, topic: str, partition: int, position: int
) -> Continuation:
    """Return where to continue at or behind a position, OFFSET_BEGINNING for none; at most at the log's end.

    It takes about a millisecond for each damaged record.

    Raises:
        KafkaException: the broker does not answer, or refuses.
    """
    settings = consumer_settings(
        bootstrap, group, user, auto_offset_reset="error", enable_partition_eof=True, fetch_error_backoff_ms=0
    )
    consumer = make_consumer(settings)
    try:
        place = TopicPartition(topic, partition)
        first, end = ask_bounds(consumer, place)
        offset = min(max(position, first), end)
        while offset < end and not _is_readable(consumer, topic, partition, offset):
            offset += 1
        return Continuation(first, end, position, offset)
    finally:
        consumer.close()


def _is_readable(consumer: Consumer, topic: str, partition: int, offset: int) -> bool:
    return any(_can_read(consumer, topic, partition, offset) for _ in range(READS))


def _can_read(consumer: Consumer, topic: str, partition: int, offset: int) -> bool:
    consumer.assign([TopicPartition(topic, partition, offset)])
    until_s = world.monotonic_s() + BROKER_TIMEOUT_S
    while (left_s := until_s - world.monotonic_s()) > 0:
        message = consumer.poll(left_s)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            # The log has this offset: the client took bytes inside a damaged batch for the next one.
            consumer.assign([TopicPartition(topic, partition, offset)])
            continue
        if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
            return True
        if error is not None and is_damaged(error):
            return False
        if error is not None and not is_transient(error):
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
