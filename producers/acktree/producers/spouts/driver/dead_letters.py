"""Write source records whose attempts are used up to ``T.dead-letter``, unchanged, with what went wrong.

Invariant: the record is on the dead-letter topic before its offset counts as done. Neither what the failed
tuple held nor the size of the record keeps a dead letter from being written.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)

from acktree.core import world
from acktree.core.errors import BrokerRefused, BrokerUnreachable
from acktree.core.kafka.clients import BROKER_TIMEOUT_S
from acktree.core.kafka.errors import as_clear_error, clear_errors
from acktree.producers.ledger.task import ExhaustedRecord
from acktree.producers.spouts.driver.failed_values import FailedValues
from acktree.producers.spouts.driver.one_record import by_partition, read_records
from acktree.wire.dead_letter import HEADERS_NOTE, DeadLetterFields, FailedValue, Headers, dead_letter_headers
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import read_headers

FULL_QUEUE_WAIT_S = 0.1

Letter = tuple[bytes | str | None, bytes | str | None, Headers]
"""Key, value and headers of a dead letter."""


class DeadLetterWriter:
    """Reads records by their coordinates and writes them to the dead-letter topic."""

    def __init__(
        self, consumer: Consumer, producer: Producer, topic: str, group: str, bootstrap: str
    ) -> None:
        self._consumer = consumer
        self._producer = producer
        self._topic = topic
        self._group = group
        self._bootstrap = bootstrap
        self._values = FailedValues(consumer, bootstrap)

    def write(self, records: Sequence[ExhaustedRecord]) -> list[bool]:
        """Write dead letters and wait for the broker; return False for a record that is no longer there.

        Raises:
            BrokerUnreachable: a record could not be read or written; nothing is lost, call again.
            BrokerRefused: the broker refuses one; the records are not done.
        """
        messages = self._read_sources(records)
        there = [(r, m) for r, m in zip(records, messages, strict=True) if m is not None]
        values = self._values.read([(record.failed_tuple, record.root) for record, _ in there])
        too_large = self._produce(
            [self._whole(r, m, value) for (r, m), value in zip(there, values, strict=True)]
        )
        short = [(r._replace(failed_tuple=None), m) for r, m in (there[each] for each in too_large)]
        too_large = self._produce([self._whole(r, m, FailedValue()) for r, m in short])
        if self._produce([self._without_record(*short[each]) for each in too_large]):
            raise BrokerRefused(
                f"topic {self._topic} takes no dead letter, even without its record: "
                "raise the max.message.bytes of this topic"
            )
        return [message is not None for message in messages]

    def _read_sources(self, records: Sequence[ExhaustedRecord]) -> list[Message | None]:
        places = [(record.source.topic, record.source.partition, record.offset) for record in records]
        found = {
            partition: read_records(self._consumer, partition, offsets, self._bootstrap)
            for partition, offsets in by_partition(places).items()
        }
        return [found[topic, partition].get(offset) for topic, partition, offset in places]

    def _whole(self, record: ExhaustedRecord, message: Message, value: FailedValue) -> Letter:
        headers = [*_source_headers(message), *self._headers(record, message, value)]
        return message.key(), message.value(), headers

    def _without_record(self, record: ExhaustedRecord, message: Message) -> Letter:
        note = (
            f"key, value and headers are left out, as topic {self._topic} does not take them; see the origin"
        )
        return None, None, self._headers(record, message, FailedValue(), note)

    def _produce(self, letters: Sequence[Letter]) -> list[int]:
        """Write dead letters and wait for their own reports; return which are too large for the topic."""
        reports: dict[int, KafkaError | None] = {}
        deadline_s = world.monotonic_s() + BROKER_TIMEOUT_S
        with clear_errors(self._bootstrap, f"topic {self._topic}"):
            for at, letter in enumerate(letters):
                while not self._queue(letter, reports, at) and world.monotonic_s() < deadline_s:
                    self._producer.poll(FULL_QUEUE_WAIT_S)
            while len(reports) < len(letters) and (left_s := deadline_s - world.monotonic_s()) > 0:
                self._producer.poll(left_s)
        if len(reports) < len(letters):
            raise BrokerUnreachable(f"dead letters could not be written to {self._topic} in time")
        too_large = []
        for at, refused in sorted(reports.items()):
            if refused is not None and refused.code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise as_clear_error(refused, self._bootstrap, f"topic {self._topic}")
            if refused is not None:
                too_large.append(at)
        return too_large

    def _queue(self, letter: Letter, reports: dict[int, KafkaError | None], at: int) -> bool:
        """Queue a dead letter; return False if the client's queue is full."""
        key, value, headers = letter
        try:
            self._producer.produce(
                self._topic,
                value,
                key,
                headers=cast(Any, headers),
                on_delivery=partial(_record_report, reports, at),
            )
        except BufferError:
            return False
        except KafkaException as error:
            reports[at] = error.args[0]
        return True

    def close(self) -> None:
        """Close the connections of the reader."""
        self._consumer.close()

    def _headers(
        self, record: ExhaustedRecord, message: Message, value: FailedValue, left_out: str = ""
    ) -> Headers:
        timestamp_type, timestamp_ms = message.timestamp()
        now_ms = world.wall_ms()
        fields = DeadLetterFields(
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
            last_time_ms=now_ms,
            failed_tuple=record.failed_tuple,
            failed_value=value,
            left_out=left_out,
        )
        return dead_letter_headers(fields)


def _record_report(
    reports: dict[int, KafkaError | None], at: int, error: KafkaError | None, _sent: object
) -> None:
    reports[at] = error


def _source_headers(message: Message) -> Headers:
    """Return the headers of the source record; a note in their place where they cannot be read."""
    try:
        return read_headers(message)
    except MalformedRecord as error:
        return [(HEADERS_NOTE, f"the headers of the source record are left out: {error}".encode())]
