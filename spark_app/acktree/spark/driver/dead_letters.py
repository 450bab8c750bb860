"""Write a source record whose attempts are used up to ``T.dead-letter``, unchanged, with what went wrong.

Invariant: the record is on the dead-letter topic before its offset counts as done. What the failed tuple held
never keeps a dead letter from being written.
"""

from typing import Any, cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from acktree.schemas import world
from acktree.schemas.clients import BROKER_TIMEOUT_S, wait_until_delivered
from acktree.schemas.dead_letter import HEADERS_NOTE, GivenUp, Headers, dead_letter_headers
from acktree.schemas.errors import BrokerRefused, BrokerUnreachable, MalformedRecord
from acktree.schemas.header import read_headers
from acktree.schemas.kafka_errors import as_clear_error
from acktree.spark.driver.failed_values import FailedValues
from acktree.spark.driver.one_record import read_record
from acktree.spark.ledger.task import ExhaustedRecord


class DeadLetterWriter:
    """Reads a record by its coordinates and writes it to the dead-letter topic."""

    def __init__(
        self, consumer: Consumer, producer: Producer, topic: str, group: str, bootstrap: str
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._topic = topic
        self._group = group
        self._bootstrap = bootstrap
        self._values = FailedValues(consumer, bootstrap)

    def write(self, record: ExhaustedRecord) -> bool:
        """Write one dead letter and wait for the broker; return False if its record is no longer there.

        Raises:
            BrokerUnreachable: the record could not be read or written; nothing is lost, call again.
            BrokerRefused: the broker refuses it; the record is not done.
        """
        source = record.source
        place = TopicPartition(source.topic, source.partition, record.offset)
        message = read_record(self._consumer, place, self._bootstrap)
        if message is None:
            return False
        headers = _source_headers(message)
        if not self._produce(message, [*headers, *self._headers(record, message)]):
            short = record._replace(failed_tuple=None)
            if not self._produce(message, [*headers, *self._headers(short, message)]):
                raise BrokerRefused(
                    f"topic {self._topic}: the dead letter is too large; raise max.message.bytes"
                )
        return True

    def _produce(self, message: Message, headers: Headers) -> bool:
        """Write a dead letter; return False if it is too large for its topic."""
        refused: list[KafkaError] = []
        try:
            self._producer.produce(
                self._topic,
                message.value(),
                message.key(),
                headers=cast(Any, headers),
                on_delivery=lambda error, _message: refused.append(error) if error is not None else None,
            )
        except KafkaException as error:
            refused.append(error.args[0])
        if wait_until_delivered(self._producer, BROKER_TIMEOUT_S):
            raise BrokerUnreachable(f"the dead letter could not be written to {self._topic} in time")
        if refused and refused[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return False
        if refused:
            raise as_clear_error(refused[0], self._bootstrap, f"topic {self._topic}")
        return True

    def _headers(self, record: ExhaustedRecord, message: Message) -> Headers:
        timestamp_type, timestamp_ms = message.timestamp()
        now_ms = world.wall_ms()
        given_up = GivenUp(
            topic=record.source.topic,
            partition=record.source.partition,
            offset=record.offset,
            timestamp_ms=timestamp_ms,
            is_log_append_time=timestamp_type == TIMESTAMP_LOG_APPEND_TIME,
            group=self._group,
            attempts=record.attempts,
            cause=record.cause,
            task=record.task,
            reason=record.reason,
            first_failed_ms=now_ms - int(record.failing_s * 1000),
            given_up_ms=now_ms,
            failed_tuple=record.failed_tuple,
            failed_value=self._values.read(record.failed_tuple, record.root),
        )
        return dead_letter_headers(given_up)


def _source_headers(message: Message) -> Headers:
    """Return the headers of the source record; a note in their place where they cannot be read."""
    try:
        return read_headers(message)
    except MalformedRecord as error:
        return [(HEADERS_NOTE, f"the headers of the source record are left out: {error}".encode())]
