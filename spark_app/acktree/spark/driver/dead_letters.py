"""Write a source record whose attempts are used up to ``T.dead-letter``, unchanged, with what went wrong.

Invariant: the record is on the dead-letter topic before its offset counts as done. The ``kafka_dlt-*``
headers are those that existing tools know (Spring Kafka's names and encodings).
"""

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Producer, TopicPartition

from acktree.schemas import world
from acktree.schemas.clients import BROKER_TIMEOUT_S
from acktree.schemas.errors import BrokerUnreachable
from acktree.schemas.kafka_errors import as_clear_error, clear_errors
from acktree.spark.ledger.task import ExhaustedRecord
from acktree.spark.tasks.reading.one_record import read_record


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
        headers = [*(message.headers() or []), *self._headers(record, *message.timestamp())]
        refused: list[KafkaError] = []
        with clear_errors(self._bootstrap, f"topic {self._topic}"):
            self._producer.produce(
                self._topic,
                message.value(),
                message.key(),
                headers=headers,
                on_delivery=lambda error, _message: refused.append(error) if error is not None else None,
            )
        if self._producer.flush(BROKER_TIMEOUT_S):
            raise BrokerUnreachable(f"the dead letter could not be written to {self._topic} in time")
        if refused:
            raise as_clear_error(refused[0], self._bootstrap)
        return True

    def _headers(
        self, record: ExhaustedRecord, timestamp_type: int, timestamp_ms: int
    ) -> list[tuple[str, bytes]]:
        source = record.source
        place = f"{source.topic}/{source.partition}/{record.offset}"
        last_ms = world.wall_ms()
        first_ms = last_ms - int(record.failing_s * 1000)
        kind = "LogAppendTime" if timestamp_type == TIMESTAMP_LOG_APPEND_TIME else "CreateTime"
        return [
            ("acktree-origin", place.encode()),
            ("acktree-attempts", str(record.attempts).encode()),
            ("acktree-cause", record.cause.name.encode()),
            ("acktree-task", record.task.encode()),
            ("acktree-reason", record.reason.encode()),
            ("acktree-first-time-ms", str(first_ms).encode()),
            ("acktree-last-time-ms", str(last_ms).encode()),
            ("kafka_dlt-original-topic", source.topic.encode()),
            ("kafka_dlt-original-partition", source.partition.to_bytes(4, "big")),
            ("kafka_dlt-original-offset", record.offset.to_bytes(8, "big")),
            ("kafka_dlt-original-timestamp", max(timestamp_ms, 0).to_bytes(8, "big")),
            ("kafka_dlt-original-timestamp-type", kind.encode()),
            ("kafka_dlt-original-consumer-group", self._group.encode()),
            ("kafka_dlt-exception-fqcn", f"acktree.{record.cause.name}".encode()),
            ("kafka_dlt-exception-message", record.reason.encode()),
        ]
