"""Finds what can be read behind a damaged batch.

Invariant: a readable record is never skipped. librdkafka does not say where a damaged batch ends, and may
take bytes inside it for the next one: so each offset is tried by a consumer that begins there.
"""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from acktree.core import world
from acktree.core.kafka.clients import BROKER_TIMEOUT_S, ask_bounds, make_consumer
from acktree.core.kafka.errors import is_damaged, is_transient
from acktree.core.kafka.settings import Settings, consumer_settings

READS = 2
"""How often to ask for an offset before its record counts as damaged: it may be damaged on its way."""


def next_readable(
    bootstrap: str, user: Settings, group: str, topic: str, partition: int, position: int
) -> int:
    """Return the first offset at or behind a position that can be read; at most the log's end.

    It takes about a millisecond for each damaged record.

    Raises:
        KafkaException: the broker does not answer, or refuses.
    """
    settings = consumer_settings(
        bootstrap, group, user, auto_offset_reset="error", enable_partition_eof=True, fetch_error_backoff_ms=0
    )
    consumer = make_consumer(settings)
    try:
        first, end = ask_bounds(consumer, TopicPartition(topic, partition))
        offset = min(max(position, first), end)
        while offset < end and not _is_readable(consumer, topic, partition, offset):
            offset += 1
        return offset
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
