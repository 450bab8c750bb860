"""Write a source record whose attempts are used up to ``T.dead-letter``, unchanged, with what went wrong.

Invariant: the record is on the dead-letter topic before its offset counts as done. The ``kafka_dlt-*``
headers are those that existing tools know (Spring Kafka's names and encodings).
"""

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from acktree.schemas.clients import BROKER_TIMEOUT_S
from acktree.schemas.errors import BrokerUnreachable
from acktree.spark.task_ledger import DeadLetter


class DeadLetterWriter:
    """Reads a record by its coordinates and writes it to the dead-letter topic."""

    def __init__(self, consumer: Consumer, producer: Producer, topic: str, group: str) -> None:
        self._consumer = consumer
        self._producer = producer
        self._topic = topic
        self._group = group

    def write(self, letter: DeadLetter) -> bool:
        """Write one letter and wait for the broker; return False if the record is no longer in its topic.

        Raises:
            BrokerUnreachable: the record could not be read or written; nothing is lost, call again.
        """
        message = self._read(letter)
        if message is None:
            return False
        headers = [*(message.headers() or []), *self._headers(letter, message.timestamp()[1])]
        self._producer.produce(self._topic, message.value(), message.key(), headers=headers)
        if self._producer.flush(BROKER_TIMEOUT_S):
            raise BrokerUnreachable(f"the dead letter could not be written to {self._topic} in time")
        return True

    def _read(self, letter: DeadLetter):  # type: ignore[no-untyped-def]
        source = letter.source
        self._consumer.assign([TopicPartition(source.topic, source.partition, letter.offset)])
        deadline = time.monotonic() + BROKER_TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                    return None
                raise KafkaException(error)
            return message if message.offset() == letter.offset else None
        raise BrokerUnreachable(
            f"{source.topic}/{source.partition}/{letter.offset} could not be read in time"
        )

    def _headers(self, letter: DeadLetter, timestamp_ms: int) -> list[tuple[str, bytes]]:
        source = letter.source
        place = f"{source.topic}/{source.partition}/{letter.offset}"
        return [
            ("acktree-origin", place.encode()),
            ("acktree-attempts", str(letter.attempts).encode()),
            ("acktree-cause", letter.cause.name.encode()),
            ("acktree-task", letter.task.encode()),
            ("acktree-reason", letter.reason.encode()),
            ("acktree-time-ms", str(int(time.time() * 1000)).encode()),
            ("kafka_dlt-original-topic", source.topic.encode()),
            ("kafka_dlt-original-partition", source.partition.to_bytes(4, "big")),
            ("kafka_dlt-original-offset", letter.offset.to_bytes(8, "big")),
            ("kafka_dlt-original-timestamp", max(timestamp_ms, 0).to_bytes(8, "big")),
            ("kafka_dlt-original-consumer-group", self._group.encode()),
            ("kafka_dlt-exception-message", letter.reason.encode()),
        ]
