"""One record by its coordinates: there, gone for good, or not known."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from acktree.core.errors import BrokerUnreachable
from acktree.core.kafka.clients import make_admin, make_consumer, make_producer
from acktree.core.kafka.settings import consumer_settings, producer_settings
from acktree.producers.spouts.driver.one_record import read_record

pytestmark = pytest.mark.simulated

RECORDS = 5


class Topic:
    """A topic with some records, and a consumer that reads one of them."""

    def __init__(self, bootstrap: str, name: str, admin: AdminClient, consumer: Consumer) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.admin, self.consumer = admin, consumer

    def value(self, offset: int) -> bytes | None:
        message = read_record(self.consumer, TopicPartition(self.name, 0, offset), self.bootstrap)
        return message.value() if message is not None else None


@contextmanager
def filled(bootstrap: str, name: str, reset: str) -> Iterator[Topic]:
    admin = make_admin(bootstrap, {})  # without its client, what was asked has no result
    admin.create_topics([NewTopic(name, 1)])[name].result()
    producer = make_producer(producer_settings(bootstrap, {}))
    for number in range(RECORDS):
        producer.produce(name, str(number))
    assert producer.flush(30) == 0
    settings = consumer_settings(bootstrap, f"{name}.group", {}, enable_partition_eof=True)
    consumer = make_consumer({**settings, "auto.offset.reset": reset})
    yield Topic(bootstrap, name, admin, consumer)
    consumer.close()


both_readers = pytest.mark.parametrize("reset", ["error", "earliest"])
"""The reader of dead letters, and that of replay commands."""


@both_readers
def test_a_record_is_read_at_its_offset_and_an_expired_one_is_missing(
    kafka: str, unique: str, reset: str
) -> None:
    with filled(kafka, unique, reset) as topic:
        assert topic.value(3) == b"3"
        place = TopicPartition(unique, 0, 3)
        topic.admin.delete_records([place])[place].result()
        assert topic.value(2) is None
        assert topic.value(4) == b"4"


@pytest.mark.parametrize("behind", [0, 2])
@both_readers
def test_a_record_beyond_the_end_of_the_log_is_unknown(
    kafka: str, unique: str, reset: str, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that lags behind the one before it looks like this, for a moment."""
    monkeypatch.setattr("acktree.producers.spouts.driver.one_record.BROKER_TIMEOUT_S", 2.0)
    with (
        filled(kafka, unique, reset) as topic,
        pytest.raises(BrokerUnreachable, match="lies beyond the end of the log"),
    ):
        topic.value(RECORDS + behind)
