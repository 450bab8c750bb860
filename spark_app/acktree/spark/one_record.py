"""Read one record by its coordinates."""

import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from acktree.schemas.clients import BROKER_TIMEOUT_S, as_clear_error
from acktree.schemas.errors import BrokerUnreachable


def read_record(consumer: Consumer, place: TopicPartition, bootstrap: str) -> Message | None:
    """Return the record at a place, None if it is no longer there; the consumer's assignment is replaced.

    Raises:
        BrokerUnreachable, BrokerRefused: it could not be read; nothing is known of it.
    """
    consumer.assign([place])
    deadline = time.monotonic() + BROKER_TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                return None
            if error.retriable():
                continue
            raise as_clear_error(error, bootstrap)
        return message if message.offset() == place.offset else None
    raise BrokerUnreachable(f"{place.topic}/{place.partition}/{place.offset} could not be read in time")
