"""One record by its coordinates: there, gone for good, or not known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.log_reader import Found, LogRange, LogReader, Place, reader_settings
from acktree.core.kafka.settings import producer_settings
from acktree.producers.spouts.driver.one_record import read_records
from acktree.testing.kafka.clients.message import SimulatedMessage

pytestmark = pytest.mark.simulated

RECORDS = 5


class Topic:
    """A topic with some records, and a reader of one of them."""

    def __init__(self, bootstrap: str, name: str, admin: AdminClient, reader: LogReader) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.admin, self.reader = admin, reader

    def value(self, offset: int) -> bytes | None:
        found, _ = read_records(self.reader, (self.name, 0), [offset], self.bootstrap)
        return found[offset].value() if offset in found else None


@contextmanager
def filled(bootstrap: str, name: str) -> Iterator[Topic]:
    admin = make_admin(bootstrap, {})  # without its client, what was asked has no result
    admin.create_topics([NewTopic(name, 1)])[name].result()
    producer = make_producer(producer_settings(bootstrap, {}))
    for number in range(RECORDS):
        producer.produce(name, str(number))
    assert producer.flush(30) == 0
    about = bootstrap, f"{name}.group", {}
    reader = LogReader(make_consumer(reader_settings(*about)), *about)
    yield Topic(bootstrap, name, admin, reader)
    reader.consumer.close()


def test_a_record_is_read_at_its_offset_and_an_expired_one_is_missing(kafka: str, unique: str) -> None:
    with filled(kafka, unique) as topic:
        assert topic.value(3) == b"3"
        place = TopicPartition(unique, 0, 3)
        topic.admin.delete_records([place])[place].result()
        assert topic.value(2) is None
        assert topic.value(4) == b"4"


@pytest.mark.parametrize("behind", [0, 2])
def test_a_record_beyond_the_end_of_the_log_is_unknown(
    kafka: str, unique: str, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that lags behind the one before it looks like this, for a moment."""
    monkeypatch.setattr("acktree.producers.spouts.driver.one_record.BROKER_TIMEOUT_S", 2.0)
    with (
        filled(kafka, unique) as topic,
        pytest.raises(BrokerUnreachable, match="lies beyond the end of the log"),
    ):
        topic.value(RECORDS + behind)


class Falls:
    """A log that falls just behind a record, which comes in the same answer."""

    places: ClassVar[list[Place]] = []

    def begin(self, starts):
        pass

    def read(self, _most, _wait_s):
        record = SimulatedMessage("t", 0, 3)
        return [LogRange(("t", 0), Found.READ, 3, 4, [record]), LogRange(("t", 0), Found.FELL, 2, 4)]


def test_a_record_that_came_before_its_log_fell_is_returned() -> None:
    found, _ = read_records(Falls(), ("t", 0), [3], "nowhere")
    assert set(found) == {3}
