"""Reads the records of dead letters: source records whose attempts are used up, with the failure added.

Invariant: neither the failed tuple's value nor the size of the record keeps a dead letter from being written.
The transaction that writes it commits that its record is done. Dead letters of large records are read few
at a time.
"""

from collections.abc import Sequence

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from acktree.core import world
from acktree.core.kafka.log_reader import LogReader
from acktree.producers.ledger.task import ExhaustedRecord
from acktree.producers.spouts.driver.failed_values import FailedValues
from acktree.producers.spouts.driver.one_record import by_partition, read_records
from acktree.producers.spouts.state_topic import DeadLetter, Letter
from acktree.producers.tuples import size_of
from acktree.wire.dead_letter import HEADERS_NOTE, DeadLetterFields, FailedValue, Headers, dead_letter_headers
from acktree.wire.errors import MalformedRecord
from acktree.wire.header import read_headers

_Place = tuple[str, int, int]
TOGETHER_BYTES = 4 << 20
"""About how many bytes of source records go into one transaction: they pass in time on a slow link."""
DAMAGED = "key, value and headers are left out: the record is damaged in the log and cannot be read"


class DeadLetterReader:
    """Reads the records that dead letters are made of, by their coordinates."""

    def __init__(self, reader: LogReader, topic: str, group: str, bootstrap: str) -> None:
        self._log = reader
        self._topic = topic
        self._group = group
        self._bootstrap = bootstrap
        self._values = FailedValues(reader, bootstrap)

    def read(self, records: Sequence[ExhaustedRecord]) -> list[DeadLetter | None]:
        """Return the dead letters of the first records, as many as fit; None for one that is gone.

        The records are in the order of their places.

        Raises:
            BrokerUnreachable, BrokerRefused: a record could not be read; call again.
        """
        found, damaged, left = self._read_sources(records)
        first = [each for each in records if left is None or place_of(each) < left]
        there = [each for each in first if place_of(each) in found or place_of(each) in damaged]
        read = self._values.read([(record.failed_tuple, record.root) for record in there])
        values = dict(zip(map(place_of, there), read, strict=True))
        return [
            self._dead_letter_of(record, found.get(place), values[place]) if place in values else None
            for record, place in zip(first, map(place_of, first), strict=True)
        ]

    def _dead_letter_of(
        self, record: ExhaustedRecord, message: Message | None, value: FailedValue
    ) -> DeadLetter:
        """Return a dead letter, without the record where that is damaged."""
        short = record._replace(failed_tuple=None)
        if message is None:
            return DeadLetter(
                self._topic,
                [(None, None, self._headers(each, None, value, DAMAGED)) for each in (record, short)],
            )
        forms = [
            self._whole(record, message, value),
            self._whole(short, message, FailedValue()),
            self._without_record(short, message),
        ]
        return DeadLetter(self._topic, forms)

    def _read_sources(
        self, records: Sequence[ExhaustedRecord]
    ) -> tuple[dict[_Place, Message], set[_Place], _Place | None]:
        """Return source records that are there, which are damaged, and the first that is left for later."""
        found: dict[_Place, Message] = {}
        damaged: set[_Place] = set()
        room = TOGETHER_BYTES
        for place, offsets in by_partition(map(place_of, records)).items():
            if room <= 0:
                return found, damaged, (*place, min(offsets))
            unread: set[int] = set()
            read, left = read_records(
                self._log, place, offsets, self._bootstrap, damaged=unread, max_bytes=room
            )
            found |= {(*place, offset): message for offset, message in read.items()}
            damaged |= {(*place, offset) for offset in unread}
            if left:
                return found, damaged, (*place, left[0])
            room -= sum(map(size_of, read.values()))
        return found, damaged, None

    def _whole(self, record: ExhaustedRecord, message: Message, value: FailedValue) -> Letter:
        headers = [*_source_headers(message), *self._headers(record, message, value)]
        return message.key(), message.value(), headers

    def _without_record(self, record: ExhaustedRecord, message: Message) -> Letter:
        note = (
            f"key, value and headers are left out: topic {self._topic} does not accept them; see the origin"
        )
        return None, None, self._headers(record, message, FailedValue(), note)

    def close(self) -> None:
        """Close the connections of the reader."""
        self._log.consumer.close()

    def _headers(
        self, record: ExhaustedRecord, message: Message | None, value: FailedValue, left_out: str = ""
    ) -> Headers:
        timestamp_type, timestamp_ms = (0, 0) if message is None else message.timestamp()
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


def place_of(record: ExhaustedRecord) -> tuple[str, int, int]:
    """Return topic, partition and offset of a record."""
    return record.source.topic, record.source.partition, record.offset


def _source_headers(message: Message) -> Headers:
    """Return the headers of the source record; a note in their place where they cannot be read."""
    try:
        return read_headers(message)
    except MalformedRecord as error:
        return [(HEADERS_NOTE, f"the headers of the source record are left out: {error}".encode())]
