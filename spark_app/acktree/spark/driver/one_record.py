"""Read one record by its coordinates.

Invariant: a record is said to be gone only where the log holds one behind it, or begins or ends behind it. A
log that ends before it proves nothing: a new leader may lag.
"""

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from acktree.schemas import world
from acktree.schemas.clients import BROKER_TIMEOUT_S
from acktree.schemas.errors import BrokerUnreachable
from acktree.schemas.kafka_errors import as_clear_error, clear_errors


def read_record(
    consumer: Consumer, place: TopicPartition, bootstrap: str, timeout_s: float = BROKER_TIMEOUT_S
) -> Message | None:
    """Return the record at a place, None if it is no longer there; the consumer's assignment is replaced.

    The consumer must report partition ends.

    Raises:
        BrokerUnreachable, BrokerRefused: it could not be read, or the log ends before it; nothing is known.
    """
    consumer.assign([place])
    deadline = world.monotonic_s() + timeout_s
    while world.monotonic_s() < deadline:
        message = consumer.poll(min(1.0, timeout_s))
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                if _begins_behind(consumer, place, bootstrap):
                    return None
                consumer.assign([place])
            elif error.code() == KafkaError._PARTITION_EOF:
                if (message.offset() or 0) > place.offset:
                    return None
            elif not error.retriable():
                raise as_clear_error(error, bootstrap)
            continue
        if (message.offset() or 0) >= place.offset:
            return message if message.offset() == place.offset else None
    raise BrokerUnreachable(
        f"{place.topic}/{place.partition}/{place.offset} could not be read in time, or the log ends before it"
    )


def _begins_behind(consumer: Consumer, place: TopicPartition, bootstrap: str) -> bool:
    with clear_errors(bootstrap):
        low, _ = consumer.get_watermark_offsets(place, BROKER_TIMEOUT_S)
    return low > place.offset
